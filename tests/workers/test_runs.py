"""Runs on real workers with real servers, on every pool."""

from __future__ import annotations

import pytest

from deuz_workers.app.swarm import Swarm, Task
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kind", ["threads", "prefork", "solo"])
def test_a_run_of_several_turns_completes_on_every_pool(pool: Pool, kind: str) -> None:
    """Every tool ran once, the run is completed, and nothing is left in the broker."""
    pool.start(kind)
    handle = pool.app.enqueue("worker", "6 turns please")
    result = handle.result(30)
    assert (result.status, result.text) == ("completed", "done")
    assert len(pool.lines("write")) == 4
    assert len(pool.lines("read")) == 2


@pytest.mark.spec("RES-019")
def test_a_handle_reports_what_a_worker_committed(pool: Pool) -> None:
    """A suspension and then the end, in the process that enqueued the run and in one that was only told its id."""
    pool.start()
    handle = pool.app.enqueue("signer", "contract")
    elsewhere = pool.silent()
    other = elsewhere.handle(handle.run_id)
    waiting = handle.result(30)
    assert (waiting.status, other.result(30)) == ("suspended", waiting)
    [asked] = waiting.pending_approvals
    handle.approve(asked.approval_id)
    result = handle.result(30)
    assert (result.status, result.output, other.result(30)) == ("completed", "done", result)
    elsewhere.close()


@pytest.mark.spec("SWM-029")
def test_a_handle_follows_a_swarm_that_workers_execute(pool: Pool) -> None:
    """Result and events are there in the process that started it, though none of its tasks ran in it."""
    tasks = [Task(name, agent="worker", prompt="1 turn", depends_on=before) for name, before in (("a", []), ("b", ["a"]))]
    pool.start()
    handle = pool.app.run_swarm(Swarm("s", tasks))
    result = handle.result(30)
    assert (result.status, result.outputs) == ("completed", {"b": "done"})
    assert [event.type for event in handle.events(follow=False)][-1] == "run.completed"
    assert len(pool.lines("write")) == 2
