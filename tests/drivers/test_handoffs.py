"""Runs that are handed over, however they are executed."""

from __future__ import annotations

import pytest

from tests.drivers.driver import OUTCOME_COMMIT, Driver


@pytest.mark.spec("HND-009")
def test_a_run_is_handed_over_and_back(driver: Driver) -> None:
    """Whoever takes the next step asks the agent that drives; a person answers a call of the second one in between."""
    run = driver.start("desk")
    waiting = driver.until(run, "suspended")
    assert [asked.tool_name for asked in waiting.pending_approvals] == ["pay"]
    assert run.envelope().active_agent == "till"
    run.approve(waiting.pending_approvals[0].approval_id)
    result = driver.until(run, "completed")
    assert (result.output, run.envelope().active_agent) == ("at the desk", "desk")
    assert [(made.step, made.source, made.to) for made in run.envelope().handoffs] == [(1, "desk", "till"), (4, "till", "desk")]
    assert driver.effects(run) == ["pay ann 1", "note b"]


@pytest.mark.spec("HND-009", "HND-010")
def test_a_call_of_the_second_agent_is_taken_over(driver: Driver) -> None:
    """Its process is killed in the middle of the call: the next one runs it again, since it may, and stays with that agent."""
    [run] = driver.interrupted("holding-desk", at=3 + OUTCOME_COMMIT)
    driver.open(run.run_id)
    result = driver.until(run, "completed")
    assert (result.output, run.envelope().active_agent) == ("done", "holding-till")
    assert driver.effects(run) == ["hold it", "hold it"]
