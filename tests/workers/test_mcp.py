"""Tool servers of agents on real workers: connections that outlive steps, deaths in the middle of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from deuz_workers import Deuz
from tests.mcp.agents import SHOP, application
from tests.mcp.shop import Shop, is_alive
from tests.workers.pool import DEADLINE_S, Pool, wait_until

Kind = Literal["threads", "prefork"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "shop"
    made.mkdir()
    return made


def started(pool: Pool, folder: Path, kind: Kind = "threads", concurrency: int = 2) -> Deuz:
    """A worker, and a client of it."""
    pool.module = "tests.mcp.agents:app"
    start(pool, folder, kind, concurrency)
    return application(pool.settings, folder)


def start(pool: Pool, folder: Path, kind: Kind = "threads", concurrency: int = 2) -> None:
    settings: dict[str, Any] = {SHOP: str(folder)}
    pool.start(kind, concurrency, **settings)


@pytest.mark.processes
@pytest.mark.spec("MCC-007")
@pytest.mark.parametrize("workers", ["threads", "prefork"])
def test_two_runs_of_a_worker_share_a_connection(pool: Pool, folder: Path, workers: Kind) -> None:
    """Six steps, one handshake; the server that was started for it ends with the worker."""
    app, shop = started(pool, folder, workers, 1), Shop(folder, "stdio")
    for _ in range(2):
        assert app.enqueue("stdio-say", "go").result(DEADLINE_S).status == "completed"
    assert (shop.calls["say"], shop.handshakes) == (4, 1)
    pid = shop.pid
    pool.workers[0].signal(15)
    pool.workers[0].ended()
    wait_until(lambda: not is_alive(pid), "the server has ended")
    app.close()


@pytest.mark.processes
@pytest.mark.spec("MCR-002", "MCI-001")
def test_a_worker_that_is_killed_during_a_call(pool: Pool, folder: Path) -> None:
    """The server has the call once: the run stops for reconciliation, and the one whose tool is declared is repeated. A server
    that the dead worker had started does not stay."""
    app, shop = started(pool, folder), Shop(folder, "stdio")
    undeclared = app.enqueue("stdio-wait", "go")
    wait_until(lambda: shop.calls["wait"] == 1, "the call is at the server")
    pid = shop.pid
    pool.workers[0].kill()
    wait_until(lambda: not is_alive(pid), "its server has ended")
    start(pool, folder)
    stopped = undeclared.result(DEADLINE_S)
    assert (stopped.reason, shop.calls["wait"]) == ("tool-reconciliation-required", 1)
    declared = app.enqueue("stdio-again", "go")
    wait_until(lambda: shop.calls["wait"] == 2, "the second call is at the server")
    pool.workers[1].kill()
    (folder / "go").touch()
    start(pool, folder)
    assert declared.result(DEADLINE_S).status == "completed"
    assert shop.calls["wait"] == 3
    app.close()


@pytest.mark.processes
@pytest.mark.spec("MCB-009")
@pytest.mark.parametrize(
    ("agent", "outcome"), [("stdio-learn", ("stopped", "mcp-catalog-changed")), ("stdio-accept", ("completed", None))]
)
def test_a_change_between_two_steps(pool: Pool, folder: Path, agent: str, outcome: tuple[str, str | None]) -> None:
    """Of one run, each a Celery task of its own: the agent's rule applies."""
    app, shop = started(pool, folder), Shop(folder, "stdio")
    result = app.enqueue(agent, "go").result(DEADLINE_S)
    assert (result.status, result.reason) == outcome
    assert shop.calls["refund"] == (result.status == "completed")
    assert [warning.setting for warning in result.warnings] == ["mcp"]
    app.close()
