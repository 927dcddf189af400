"""Turns of a run: tools, answers, hooks. The same with every driver."""

from __future__ import annotations

import pytest

from deuz_workers.core.compaction import is_summary
from tests.drivers.agents import Invoice
from tests.drivers.driver import Driver


@pytest.mark.spec("DST-009")
def test_tools_of_every_replay_policy_and_calls_that_fail(driver: Driver) -> None:
    """Side by side in one turn; what fails, and what nobody knows, is told to the model, and the run goes on."""
    run = driver.start("worker")
    result = driver.result(run)
    assert (result.status, result.output, result.steps) == ("completed", "done", 4)
    assert sorted(driver.effects(run)) == ["look b", "note a", "stumble"]
    told = {part.call_id: (part.text, part.is_error) for message in result.messages for part in message.tool_results}
    assert (told["a"], told["b"]) == (("noted a", False), ("saw b", False))
    assert len([text for text, is_error in told.values() if is_error]) == 2


@pytest.mark.spec("DST-009")
def test_a_run_without_tools(driver: Driver) -> None:
    """One turn, one text."""
    result = driver.result(driver.start("talker"))
    assert (result.status, result.output, result.usage.total_tokens) == ("completed", "hello", 15)


@pytest.mark.spec("DST-009")
@pytest.mark.parametrize(("agent", "status", "steps"), [("typed", "completed", 3), ("mute", "stopped", 2)])
def test_a_typed_answer_is_repaired_or_given_up(driver: Driver, agent: str, status: str, steps: int) -> None:
    """The model is told what is wrong, as often as the limit says."""
    result = driver.result(driver.start(agent))
    assert (result.status, result.steps) == (status, steps)
    if status == "completed":
        assert result.output == Invoice(number="A7", due=3)
    else:
        assert result.reason == "output-attempts-exhausted"


@pytest.mark.spec("DST-009")
def test_a_verifier_sends_an_answer_back_once(driver: Driver) -> None:
    """With what it asks for; the next one it accepts."""
    result = driver.result(driver.start("verified"))
    assert (result.status, result.output, result.steps) == ("completed", Invoice(number="A7", due=3), 2)


@pytest.mark.spec("DST-009")
def test_guardrails_of_all_four_places(driver: Driver) -> None:
    """Input rewritten, one call blocked, the result of the other shortened, the answer rewritten."""
    run = driver.start("guarded", "  GO ")
    result = driver.result(run)
    assert (result.status, result.output, result.messages[0].text) == ("completed", "done", "go")
    assert driver.effects(run) == ["note plain"]
    told = {part.call_id: part.text for message in result.messages for part in message.tool_results}
    assert told == {"s": "Blocked by guardrail 'keep_secrets': secret", "p": "noted"}


@pytest.mark.spec("DST-009")
def test_an_input_that_is_refused_costs_no_model_call(driver: Driver) -> None:
    """The run is stopped and says by whom."""
    result = driver.result(driver.start("shut"))
    assert (result.status, result.reason, result.steps) == ("stopped", "guardrail:input", 0)


@pytest.mark.spec("DST-009")
def test_a_step_is_prepared(driver: Driver) -> None:
    """The first one is offered one tool, the second none."""
    run = driver.start("planned")
    assert driver.result(run).output == "none 3"
    assert driver.effects(run) == ["look it"]


@pytest.mark.spec("DST-009")
@pytest.mark.parametrize(("agent", "reason", "steps"), [("stopped", "stop-condition", 3), ("endless", "max-steps", 3)])
def test_a_loop_ends_by_condition_or_limit(driver: Driver, agent: str, reason: str, steps: int) -> None:
    """At the boundary of a turn: every call of it has its result."""
    run = driver.start(agent)
    result = driver.result(run)
    assert (result.status, result.reason, result.steps) == ("stopped", reason, steps)
    assert len(driver.effects(run)) == steps


def test_a_history_is_kept_within_its_window(driver: Driver) -> None:
    """By results left out and a summary; the transcript is whole, and no page is looked at twice."""
    run = driver.start("long")
    result = driver.result(run)
    assert (result.status, result.output, result.steps) == ("completed", "done", 9)
    assert sum(is_summary(message) for message in result.messages) == 1
    assert len(result.messages) < len(result.transcript) == 1 + 2 * 8 + 1
    assert len(driver.effects(run)) == 8
