"""User code that would take a worker along."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from deuz_workers.app.deuz import Deuz
from tests.faults import hostile_agents
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def app(pool: Pool) -> Generator[Deuz]:
    """A client of workers that run the agents of :mod:`tests.faults.hostile_agents`."""
    pool.module = "tests.faults.hostile_agents:app"
    app = Deuz(hostile_agents.agents, settings=pool.settings)
    yield app
    app.close()


def test_no_slot_is_lost(pool: Pool, app: Deuz) -> None:
    """A worker with two slots survives twelve calls that raise no `Exception`, each of which has ended its run or waits."""
    worker = pool.start("threads", concurrency=2)
    for name in ("thread", "loop", "shown"):
        assert [app.enqueue(name, "go").result(30).status for _ in range(3)] == ["completed"] * 3
    asking = [app.enqueue("asking", "go") for _ in range(3)]
    wait_until(lambda: all(handle.pending() for handle in asking), "all of them wait for a person")
    assert worker.process.poll() is None
    assert not worker.said("step_failed")


@pytest.mark.parametrize("kind", ["threads", "solo"])
def test_a_worker_whose_loop_was_ended_leaves(pool: Pool, app: Deuz, kind: str) -> None:
    """At once and with a code of its own, though the user's was 0; the run goes on in the next worker."""
    worker = pool.start(kind, concurrency=2 if kind == "threads" else 1)
    handle = app.enqueue("leaver", "gate")
    pool.wait_for_lines("leave")
    assert worker.ended() == 70
    assert worker.said("loop_died error=SystemExit at=hostile_agents.py:")
    pool.go("gate")
    pool.start()
    assert handle.result(30).status == "completed"


def test_a_child_whose_loop_was_ended_is_replaced(pool: Pool, app: Deuz) -> None:
    """Its parent goes on, and so does the run."""
    worker = pool.start("prefork")
    handle = app.enqueue("leaver", "gate")
    left = int(pool.wait_for_lines("leave")[0].split()[1])
    worker.wait_for("loop_died")
    pool.go("gate")
    assert handle.result(30).status == "completed"
    assert worker.process.poll() is None
    wait_until(lambda: left not in worker.children, "its parent has taken note of the end")
