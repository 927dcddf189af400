"""Transfers in the record of a run: when they take effect, what is refused, what a build of before makes of them."""

from __future__ import annotations

import pytest

from deuz_workers.core.decide import decide
from deuz_workers.core.effects import AnswerTurn, CallModel
from deuz_workers.core.events import CallCompleted, CallExecuted, CallStarted, HandedOff, TurnAnswered
from deuz_workers.core.handoff import Handoff, driver_of, refusal, transferred, up_to
from deuz_workers.core.live import parts_of
from deuz_workers.core.run import Run
from deuz_workers.core.states import ImpossibleTransition
from tests.core.runs import after, call, opened, queued, ran, replied, stored

TWO = (Handoff(2, "t", "a", "b"), Handoff(5, "u", "b", "a"))


def handed(to: str = "b", *beside: str) -> Run:
    """Its first turn asks for a transfer and calls beside it; the transfer is made and the others have not begun."""
    calls = [call("t", "transfer_to_b", reason="why"), *(call(name) for name in beside)]
    run = after(queued(), opened(), replied(*calls), CallStarted("t", "transfer_to_b", True))
    return after(run, CallExecuted("t", "Transferred to 'b'."), HandedOff("t", to), CallCompleted("t"))


def test_a_transfer_takes_effect_when_its_turn_is_answered() -> None:
    """Until then the calls beside it are the first agent's, in this process and in the next one."""
    run = handed("b", "x")
    for one in (run, stored(run)):
        assert (one.driver, one.envelope.active_agent) == ("a", "b")
    done = after(run, *ran("x"))
    assert isinstance(decide(done), AnswerTurn)
    answered = after(done, TurnAnswered({"t": "Transferred to 'b'.", "x": "3"}))
    for one in (answered, stored(answered)):
        assert (one.driver, one.envelope.active_agent, one.record_version) == ("b", "b", 2)
    assert isinstance(decide(answered), CallModel)
    later = after(answered, opened(), replied(call("y")))
    assert (later.step, later.driver) == (2, "b")


def test_the_record_says_who_and_when() -> None:
    """Each transfer with turn, call and both agents, in the body and in the journal; without one the key is absent."""
    run = after(handed(), TurnAnswered({"t": "x"}))
    back = after(run, opened(), replied(call("u", "transfer_to_a")), *ran("u"), HandedOff("u", "a"))
    assert back.envelope.handoffs == (Handoff(1, "t", "a", "b"), Handoff(2, "u", "b", "a"))
    assert [record for record in run.unsaved.journal if record["type"] == "run.handed_off"] == [
        {"type": "run.handed_off", "step": 1, "call_id": "t", "from": "a", "to": "b"}
    ]
    assert stored(back).envelope.handoffs == back.envelope.handoffs
    assert stored(queued()).envelope.handoffs == ()


def test_readers_are_told_with_the_reason() -> None:
    """Also where the same commit answers the turn."""
    for run in (handed(), after(handed(), TurnAnswered({"t": "x"}))):
        [part] = [part for part in parts_of(run, 3) if part.kind == "handoff"]
        assert (part.step, part.epoch) == (1, 3)
        assert part.data == {"from": "a", "to": "b", "call_id": "t", "reason": "why"}


def test_only_a_running_run_is_handed_over() -> None:
    """Neither one that has not begun nor one that has ended."""
    with pytest.raises(ImpossibleTransition):
        after(queued(), HandedOff("t", "b"))


@pytest.mark.parametrize(
    ("made", "open_step", "driver"),
    [(0, None, "a"), (0, 4, "a"), (1, 2, "a"), (1, None, "b"), (1, 3, "b"), (2, 5, "b"), (2, None, "a"), (2, 6, "a")],
)
def test_who_drives_a_turn(made: int, open_step: int | None, driver: str) -> None:
    """The newest transfer counts from the turn after its own."""
    assert driver_of("a", TWO[:made], open_step) == driver


def test_a_fork_keeps_what_had_taken_effect() -> None:
    """Transfers up to the turn that it begins behind."""
    assert [len(up_to(TWO, turn)) for turn in (0, 1, 2, 4, 5, 9)] == [0, 0, 1, 1, 2, 2]


def test_why_a_transfer_is_refused() -> None:
    """Another one of its turn goes ahead or is made already, or the run has had all that it may."""
    assert refusal((), 1, 5, is_first=True) is None
    assert refusal(TWO, 6, 3, is_first=True) is None
    for handoffs, step, first in (((), 1, False), (TWO, 5, True)):
        refused = refusal(handoffs, step, 9, is_first=first)
        assert refused is not None
        assert refused[1] == "not_first"
    assert refusal(TWO, 6, 2, is_first=True) == ("Handoff limit (2) reached; continue yourself.", "max_handoffs")
    assert refusal((), 1, 0, is_first=True) == ("Handoff limit (0) reached; continue yourself.", "max_handoffs")


@pytest.mark.parametrize(
    ("reason", "text"),
    [(None, "Transferred to 'b'."), ("", "Transferred to 'b'."), ("why", "Transferred to 'b'. Reason: why")],
)
def test_what_the_model_is_told(reason: str | None, text: str) -> None:
    """The agent, and the reason where there is one."""
    assert transferred("b", reason) == text
