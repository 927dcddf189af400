"""Small swarms. The same with every driver."""

from __future__ import annotations

import pytest

from deuz_workers import Swarm, Task
from tests.drivers.driver import Driver


@pytest.mark.spec("DST-009")
def test_a_diamond_with_a_reducer(driver: Driver) -> None:
    """Two tasks wait for one, and a reducer for both."""
    tasks = [
        Task("plan", agent="echo", prompt="go"),
        Task("left", agent="echo", prompt="left", depends_on=["plan"]),
        Task("right", agent="echo", prompt="right", depends_on=["plan"]),
        Task("end", reducer="merge", depends_on=["left", "right"]),
    ]
    swarm, result = driver.swarm(Swarm("diamond", tasks))
    assert (result.status, dict(result.counts)) == ("completed", {"completed": 4})
    [(left, seen), (right, _)] = result.outputs["end"]  # pyright: ignore[reportGeneralTypeIssues]
    assert (left, right) == ("left", "right")
    assert "saw" in str(seen)
    assert swarm.output("end") == result.outputs["end"]


@pytest.mark.spec("DST-009")
def test_what_waits_for_a_task_that_failed_is_blocked(driver: Driver) -> None:
    """The rest of the swarm ends as usual."""
    tasks = [
        Task("bad", agent="broken", prompt="go"),
        Task("after", agent="echo", prompt="go", depends_on=["bad"]),
        Task("alone", agent="talker", prompt="go"),
    ]
    _, result = driver.swarm(Swarm("broken", tasks))
    assert (result.status, dict(result.tasks)) == (
        "partial",
        {"bad": "failed", "after": "blocked", "alone": "completed"},
    )
