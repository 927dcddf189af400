"""One event loop for the life of a process, and one HTTP client on it."""

from __future__ import annotations

import pytest

from deuz_workers.app.deuz import Deuz
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.model_server import ModelServer, ReceivedRequest
from tests.faults import http_agents
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes
STEPS = 200
POOLED = 8
"""Connections that pools may open late, beside others: the store's has up to 4. One for each step would be a hundred."""


def script(request: ReceivedRequest) -> Entry:
    return "done" if request.turn > STEPS else calls(call("where"))


@pytest.mark.spec("FR-33")
def test_two_hundred_steps_of_one_child_share_a_loop_and_a_client(pool: Pool) -> None:
    """No step fails, all of them ran on the same loop, and sockets do not grow in number, here or at the model's."""
    pool.module = "tests.faults.http_agents:app"
    with ModelServer(script) as server:
        worker = pool.start("prefork", concurrency=1, TEST_MODEL_URL=server.base_url)
        app = Deuz([http_agents.app.agents["caller"]], settings=pool.settings)
        try:
            result = app.enqueue("caller", "go").result(60)
        finally:
            app.close()
        assert (result.status, result.text) == ("completed", "done")
        assert server.received == STEPS + 1
        assert server.accepted == 1
    lines = [line.split() for line in pool.lines("where")]
    assert len(lines) == STEPS
    assert len({(pid, loop) for pid, loop, _ in lines}) == 1
    sockets = [int(count) for _, _, count in lines]
    assert max(sockets[STEPS // 2 :]) <= max(sockets[: STEPS // 2]) + POOLED
    assert not worker.said("Event loop is closed")
    assert not worker.said("ERROR")
