"""Runs that tools start in the context of their own, however that one is executed."""

from __future__ import annotations

import pytest

from deuz_workers import Budget
from tests.drivers.driver import Driver
from tests.drivers.test_subagents import is_asking


@pytest.mark.spec("CHD-010")
def test_tools_start_runs_that_count_for_theirs(driver: Driver) -> None:
    """From the loop and from a thread: each completes, and what it used is part of what the run has spent."""
    handle = driver.start("nesting", budget=Budget.of(tokens=1_000_000))
    result = driver.result(handle)
    assert (result.status, result.output) == ("completed", "done")
    assert [part.text for message in result.messages for part in message.tool_results] == ["advice", "advice"]
    for name in ("loop", "thread"):
        inner = driver.app.handle(f"{handle.run_id}-{name}").envelope()
        assert inner.nested is not None
        assert (inner.status, inner.nested.scope_id) == ("completed", f"{handle.run_id}/{name}")
        assert driver.lines(f"{handle.run_id}-{name}") == ["note x"]
    assert result.accounting.spent.tokens == 6 * 15
    assert (result.accounting.reserved.tokens, result.accounting.unknown.tokens) == (0, 0)


@pytest.mark.spec("CHD-010")
def test_a_cancel_ends_the_run_that_a_tool_has_started(driver: Driver) -> None:
    """In the middle of its model call."""
    handle = driver.start("nesting-long")
    ending = driver.begin(handle)
    inner = driver.app.handle(f"{handle.run_id}-long")
    driver.wait_for(lambda: is_asking(inner), "the model of the inner run is asked")
    assert handle.cancel("enough")
    assert (ending.result().status, ending.result().reason) == ("stopped", "aborted")
    driver.wait_for(lambda: inner.status() == "stopped", "the inner run has ended")
    assert inner.envelope().reason == "aborted"
