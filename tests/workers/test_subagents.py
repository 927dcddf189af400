"""Runs that others delegated, on workers of their own."""

from __future__ import annotations

import pytest

from tests.drivers.agents import application
from tests.drivers.test_subagents import is_asking
from tests.workers.pool import DEADLINE_S, Pool, wait_until


@pytest.mark.processes
@pytest.mark.spec("CHD-009")
def test_a_cancel_of_the_parent_stops_a_child_in_another_worker(pool: Pool) -> None:
    """Of two workers with one slot each the child's model call keeps one busy, so that the other one ends the parent; the child
    stops in the middle of its call, and its worker is free again."""
    pool.module = "tests.drivers.agents:app"
    for _ in range(2):
        pool.start("threads", 1)
    app = application(pool.settings)
    parent = app.enqueue("waiting-below", "go")
    child = app.handle(f"{parent.run_id}/slow:1:call_1_1")
    wait_until(lambda: is_asking(child), "the model of the child is asked")
    assert parent.cancel("enough")
    result = parent.result(DEADLINE_S)
    assert (result.status, result.reason) == ("stopped", "aborted")
    wait_until(lambda: child.status() == "stopped", "the child has ended")
    assert child.envelope().reason == "aborted"
    talkers = [app.enqueue("talker", "hi") for _ in range(4)]
    assert [talker.result(DEADLINE_S).status for talker in talkers] == ["completed"] * 4
    app.close()
