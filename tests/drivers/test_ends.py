"""Runs that are cancelled, come too late, fail, or are interrupted. The same with every driver."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.drivers.driver import Driver


@pytest.mark.spec("DST-009")
def test_a_model_call_is_cancelled(driver: Driver) -> None:
    """At once, whoever executes it."""
    run = driver.start("slow")
    ending = driver.begin(run)
    driver.wait_for(lambda: run.envelope().checkpoint.open_call is not None, "the model is asked")
    assert run.cancel("enough")
    result = ending.result()
    assert (result.status, result.reason, result.stop_details) == ("stopped", "aborted", {"cancel_reason": "enough"})
    assert not run.cancel()


@pytest.mark.spec("DST-009")
def test_a_run_that_waits_is_cancelled(driver: Driver) -> None:
    """Nothing of what waited runs."""
    run = driver.start("payer")
    driver.result(run)
    assert run.cancel()
    assert driver.until(run, "stopped").reason == "aborted"
    assert driver.effects(run) == []


@pytest.mark.spec("DST-009")
def test_a_deadline_passes(driver: Driver) -> None:
    """In the middle of a model call."""
    run = driver.start("slow", deadline=timedelta(milliseconds=400))
    result = driver.result(run)
    assert (result.status, (result.error or {})["code"]) == ("failed", "deadline_exceeded")


@pytest.mark.spec("DST-009")
def test_a_model_fails_for_good(driver: Driver) -> None:
    """The run fails with what the model said, and keeps what it had."""
    run = driver.start("broken")
    result = driver.result(run)
    assert (result.status, (result.error or {})["code"]) == ("failed", "model_request")
    assert driver.effects(run) == ["look on"]


@pytest.mark.spec("DST-009")
def test_a_model_fails_for_a_moment(driver: Driver) -> None:
    """It is asked again, and nobody hears of it."""
    assert driver.until(driver.start("flaky"), "completed").output == "done"


@pytest.mark.spec("DST-009")
def test_a_failed_run_is_taken_up_again(driver: Driver) -> None:
    """Where it stood, when its cause has passed."""
    driver.shut("provider")
    run = driver.start("away", "provider")
    assert driver.result(run).status == "failed"
    driver.open("provider")
    assert run.retry_failed()
    assert driver.until(run, "completed").output == "back"
    driver.shut("provider")


@pytest.mark.spec("DST-009")
def test_interrupted_tools_are_parked_settled_or_run_again(driver: Driver) -> None:
    """What may not be repeated waits for somebody: its outcome is recorded, or a repeat allowed. What may is repeated."""
    recorded, repeated, again = driver.interrupted("holder", "holder", "holder-again")
    for run in (recorded, repeated, again):
        driver.open(run.run_id)
    for run in (recorded, repeated):
        parked = driver.until(run, "stopped")
        assert parked.reason == "tool-reconciliation-required"
        assert [effect.tool_call_id for effect in parked.unknown_effects] == ["h"]
    recorded.reconcile({"h": "found to be held"})
    assert repeated.retry() == ("h",)
    runs = {run: driver.until(run, "completed") for run in (recorded, repeated, again)}
    told = [part.text for result in runs.values() for message in result.messages for part in message.tool_results]
    assert told == ["found to be held", "held it", "held it"]
    assert [len(driver.effects(run)) for run in runs] == [1, 2, 2]


@pytest.mark.spec("DST-009")
def test_runs_of_one_key_take_turns(driver: Driver) -> None:
    """Of a key with one slot one run is at work at a time; all of them end."""
    driver.clear("room")
    runs = [driver.start("keyed", "room", concurrency_key="one at a time") for _ in range(3)]
    assert {result.status for result in driver.results(*runs)} == {"completed"}
    lines = driver.lines("room")
    assert len(lines) == 12
    for number in range(0, 12, 4):  # two calls of a run, each with its beginning and its end
        assert len({line.split()[1] for line in lines[number : number + 4]}) == 1
