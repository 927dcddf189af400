"""Runs on Celery workers over every wire: real processes, a real model server, and what breaks between them."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from deuz_workers.app.deuz import Deuz
from deuz_workers.providers.script import call, calls, reply
from deuz_workers.testing.model_faults import cut
from deuz_workers.testing.model_server import ModelServer, ReceivedRequest, ServerEntry
from tests.providers.wires import WIRES
from tests.workers import wire_agents
from tests.workers.pool import Pool
from tests.workers.wire_agents import AGENTS

pytestmark = pytest.mark.processes

BOTH = calls(call("pay", usd=1250, to="é"), call("pay", usd=7), text="Paying.")


def answer(request: ReceivedRequest) -> ServerEntry:
    """By what the first message of the conversation asks for."""
    asked = re.search(rb"(tools|typed|signature|cut) please", request.raw)
    assert asked is not None
    match asked[1].decode(), request.turn:
        case "signature", 1:
            return reply("", call("sign", name="é"), reasoning="Hm.")
        case "typed", 3:
            return '{"cents": 7}'
        case "cut", 1 if request.attempt == 1:
            return cut(BOTH, 300)
        case _, 1:
            return BOTH
        case _:
            return "done"


@contextmanager
def serving(pool: Pool) -> Generator[Deuz]:
    """A client of a pool whose workers talk to a model server."""
    pool.module = "tests.workers.wire_agents:app"
    with ModelServer(answer) as server:
        pool.start(concurrency=8, TEST_MODEL_ROOT=server.root)
        app = wire_agents.application(pool.settings)
        yield app
        app.close()


def paid(pool: Pool, run_id: str) -> list[str]:
    return sorted(line.partition(" ")[2].strip() for line in pool.lines("pay") if line.startswith(run_id))


def test_runs_of_all_wires_end_alike(pool: Pool) -> None:
    """Calls in parallel, a typed answer and a stream that is cut in the first attempt: every call runs once, whatever the
    wire."""
    with serving(pool) as app:
        handles = {
            (name, asked): app.enqueue(f"{name}-typed" if asked == "typed" else name, f"{asked} please, {name}")
            for name in AGENTS
            for asked in ("tools", "typed", "cut")
        }
        for (name, asked), handle in handles.items():
            result = handle.result(60)
            assert (name, asked, result.status) == (name, asked, "completed")
            assert result.output == ({"cents": 7} if asked == "typed" else "done")
            assert paid(pool, handle.run_id) == ["1250 é", "7"]
            assert (result.accounting.unknown.tokens > 0) == (asked == "cut")
    assert len(WIRES) * 2 == len(AGENTS)


def test_a_call_waits_for_a_person_on_all_wires(pool: Pool) -> None:
    """The answer goes back under the call's own id, to a worker that may be another."""
    with serving(pool) as app:
        handles = [app.enqueue(name, f"signature please, {name}") for name in AGENTS]
        for handle in handles:
            [asked] = handle.result(60).pending_approvals
            handle.approve(asked.approval_id)
        for handle in handles:
            assert (handle.result(60).status, handle.result(60).text) == ("completed", "done")
        assert len(pool.lines("sign")) == len(AGENTS)
