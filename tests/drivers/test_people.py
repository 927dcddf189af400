"""Runs that wait for people and clients. The same with every driver."""

from __future__ import annotations

import pytest

from tests.drivers.driver import Driver


@pytest.mark.spec("DST-009")
def test_one_call_is_approved_with_other_arguments_and_one_denied(driver: Driver) -> None:
    """Answered one by one; only what was approved runs, with the arguments that were approved."""
    run = driver.start("payer")
    waiting = driver.result(run)
    assert (waiting.status, driver.effects(run)) == ("suspended", [])
    ann, bob = sorted(waiting.pending_approvals, key=lambda asked: asked.tool_call_id)
    assert run.deny(bob, "not bob", by="boss").open_items == 1
    assert driver.result(run).status == "suspended"
    assert run.approve(ann, arguments={"to": "ann", "amount": 7}).open_items == 0
    result = driver.until(run, "completed")
    assert driver.effects(run) == ["pay ann 7"]
    told = {part.call_id: part.text for message in result.messages for part in message.tool_results}
    assert told == {"ann": "paid 7 to ann", "bob": "Tool call denied. Reason: not bob"}


@pytest.mark.spec("DST-009")
def test_two_of_three_people_approve(driver: Driver) -> None:
    """The first approval is counted, the second releases the call."""
    run = driver.start("signer")
    [asked] = driver.result(run).pending_approvals
    assert run.approve(asked, by="ann").still_needed == 1
    assert (driver.result(run).status, driver.effects(run)) == ("suspended", [])
    assert run.approve(asked, by="cid").open_items == 0
    assert driver.until(run, "completed").output == "done"
    assert driver.effects(run) == ["sign it"]


@pytest.mark.spec("DST-009")
def test_a_request_that_nobody_answers_expires(driver: Driver) -> None:
    """The call is denied, the run goes on by itself."""
    run = driver.start("hurried")
    result = driver.until(run, "completed")
    [told] = [part.text for message in result.messages for part in message.tool_results]
    assert told.startswith("Tool call denied.")
    assert driver.effects(run) == []


@pytest.mark.spec("DST-009")
def test_a_client_executes_calls(driver: Driver) -> None:
    """One result and one failure, handed in apart."""
    run = driver.start("asker")
    age, name = sorted(driver.result(run).pending_client_calls, key=lambda wanted: wanted.tool_call_id)
    assert run.answer(age, error="none of your business").open_items == 1
    assert run.answer(name, {"name": "Ann"}).open_items == 0
    result = driver.until(run, "completed")
    told = {part.call_id: (part.text, part.is_error) for message in result.messages for part in message.tool_results}
    assert told == {"q": ('{"name": "Ann"}', False), "a": ("none of your business", True)}


@pytest.mark.spec("DST-009")
def test_a_turn_with_a_gated_a_clients_and_a_plain_call(driver: Driver) -> None:
    """Nothing of it runs before everything is answered; then all of it, once."""
    run = driver.start("mixed")
    waiting = driver.result(run)
    assert (waiting.status, driver.effects(run)) == ("suspended", [])
    [asked], [wanted] = waiting.pending_approvals, waiting.pending_client_calls
    run.answer(wanted, "Ann")
    run.approve(asked)
    assert driver.until(run, "completed").output == "done"
    assert sorted(driver.effects(run)) == ["note c", "pay ann 1"]
