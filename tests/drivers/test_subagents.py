"""Agents that delegate, however their runs are executed."""

from __future__ import annotations

import contextlib

import pytest

from deuz_workers.app.handle import Handle
from deuz_workers.errors import RunNotFoundError
from tests.drivers.driver import Driver


@pytest.mark.spec("SUB-010")
def test_children_and_tools_of_one_turn(driver: Driver) -> None:
    """Two children that work and one that fails: the parent goes on once all have ended, once, however often it is rung."""
    handle = driver.start("delegating")
    for _ in range(5):
        handle.ring()
    result = driver.result(handle)
    for _ in range(5):
        handle.ring()
    assert [event.type for event in handle.events(follow=False)].count("run.resumed") == 1
    assert (result.status, result.output) == ("completed", "done")
    told = [(part.text, part.outcome) for message in result.messages for part in message.tool_results]
    assert told[:3] == [("noted", None), ("saw b", None), ("noted", None)]
    assert told[3][1] == "child-failed"
    assert driver.effects(handle) == ["look b"]
    below = [f"{handle.run_id}/worker-below:1:call_1_{place}" for place in (1, 3)]
    assert [driver.lines(name) for name in below] == [["note x"], ["note x"]]


@pytest.mark.spec("APR-017")
def test_an_approval_three_levels_deep(driver: Driver) -> None:
    """Shown once at the root for each of two agents of one name; each answer reaches its own."""
    handle = driver.start("asking-below")
    waiting = driver.until(handle, "suspended")
    assert [asked.agent_path for asked in waiting.pending_approvals] == [("asking-below", "between", "payer-below")] * 2
    first, second = handle.pending()
    handle.approve(first.approval_id)
    handle.deny(second, "not twice")
    result = driver.until(handle, "completed")
    assert result.output == "done"
    assert driver.lines(first.run_id) == ["pay ann 1"]
    assert driver.lines(second.run_id) == []


def test_a_cancel_of_the_root_ends_children_that_wait(driver: Driver) -> None:
    """Each run below stops, although nobody had answered it."""
    handle = driver.start("asking-below")
    waiting = driver.until(handle, "suspended")
    assert handle.cancel("enough")
    assert driver.until(handle, "stopped").reason == "aborted"
    for asked in waiting.pending_approvals:
        child = driver.app.handle(asked.run_id)
        driver.wait_for(lambda child=child: child.status() == "stopped", "the child has ended")


def test_a_cancel_of_the_root_ends_a_child_at_work(driver: Driver) -> None:
    """In the middle of its model call."""
    handle = driver.start("waiting-below")
    ending = driver.begin(handle)
    child = driver.app.handle(f"{handle.run_id}/slow:1:call_1_1")
    driver.wait_for(lambda: is_asking(child), "the model of the child is asked")
    assert handle.cancel("enough")
    assert (ending.result().status, ending.result().reason) == ("stopped", "aborted")
    driver.until(handle, "stopped")
    driver.wait_for(lambda: child.status() == "stopped", "the child has ended")
    assert child.envelope().reason == "aborted"


def is_asking(run: Handle) -> bool:
    """It exists, and its model has been asked and has not answered."""
    with contextlib.suppress(RunNotFoundError):
        return run.envelope().checkpoint.open_call is not None
    return False
