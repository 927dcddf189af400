"""Deciding: the next effect follows from what is saved and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from deuz_workers.core.change import ItemRow
from deuz_workers.core.decide import decide
from deuz_workers.core.effects import (
    AnswerTurn,
    AwaitAnswers,
    CallModel,
    ConductSwarm,
    Finish,
    GatherInputs,
    Nothing,
    Reconcile,
    RunCalls,
)
from deuz_workers.core.events import (
    CallCompleted,
    CallExecuted,
    CallFailed,
    CallRejected,
    CallStarted,
    CallUnprojectable,
    Finished,
    InputsGiven,
    ModelCallAbandoned,
    ModelCallFailed,
    NotesFolded,
    Resumed,
    Suspended,
    TurnAnswered,
)
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import ToolUsePart
from deuz_workers.core.reconciliation import Word
from tests.core.runs import after, call, opened, queued, ran, replied, settled, stored

THREE = (call("c1", a=1), call("c2", a=2), call("c3", a=3))


def test_a_new_run_asks_the_model() -> None:
    """The first effect is the first attempt of turn 1."""
    assert decide(queued()) == CallModel(1, 1)


def test_a_reply_without_calls_ends_the_run() -> None:
    """The text is the output (RES-015)."""
    run = after(queued(), opened(), replied("four"))
    assert decide(run) == Finish(Finished("completed", output="four", has_output=True))


def test_two_of_three_answers_are_saved_and_the_worker_dies() -> None:
    """Whoever loads the run is ordered exactly the third call, under the id it had before."""
    run = settled(after(queued(), opened(), replied(*THREE)))
    run = after(run, *ran("c1"), *ran("c2"))
    effect = decide(stored(run))
    assert isinstance(effect, RunCalls)
    assert [(planned.call.call_id, planned.action) for planned in effect.calls] == [("c3", "start")]


@pytest.mark.spec("RCP-007")
def test_an_interrupted_call_proves_nothing() -> None:
    """A call left `executing` orders reconciliation: no model request, no other call, no answer made up for it."""
    run = after(queued(), opened(), replied(*THREE), *ran("c1"), CallStarted("c2", "add", False))
    effect = decide(stored(run))
    assert isinstance(effect, Reconcile)
    assert [receipt.call_id for receipt in effect.unknown] == ["c2"]


def test_an_interrupted_idempotent_call_runs_again() -> None:
    """Its receipt says so, and so nobody has to."""
    run = after(queued(), opened(), replied(THREE[0]), CallStarted("c1", "add", True))
    effect = decide(stored(run))
    assert isinstance(effect, RunCalls)
    assert [(planned.call.call_id, planned.action) for planned in effect.calls] == [("c1", "rerun")]


@pytest.mark.spec("RCP-005")
def test_a_raw_result_is_projected_without_running_the_tool() -> None:
    """`executed` orders the projection from the recorded value."""
    run = after(queued(), opened(), replied(THREE[0]), CallStarted("c1", "add", False), CallExecuted("c1", {"sum": 3}))
    effect = decide(stored(run))
    assert isinstance(effect, RunCalls)
    planned = effect.calls[0]
    assert (planned.action, planned.receipt and planned.receipt.value) == ("project", {"sum": 3})


@pytest.mark.parametrize(
    "ending",
    [
        (CallRejected("c1", "add", "no"),),
        (CallStarted("c1", "add", False), CallFailed("c1", "boom")),
        ran("c1"),
    ],
)
def test_every_answered_receipt_closes_the_turn(ending: tuple[CallRejected, ...]) -> None:
    """A rejected, failed or completed call needs nothing more."""
    assert decide(stored(after(queued(), opened(), replied(THREE[0]), *ending))) == AnswerTurn()


@pytest.mark.parametrize("stage", ["validation-failed", "projection-failed"])
def test_an_unprojectable_result_is_tried_once_by_every_executor(
    stage: Literal["validation-failed", "projection-failed"],
) -> None:
    """Whoever found it goes on; whoever loads it orders the projection again, and the run of the tool never (TSC-004)."""
    unshown = (CallExecuted("c1", 1), CallUnprojectable("c1", stage, "bad"))
    run = after(queued(), opened(), replied(THREE[0]), CallStarted("c1", "add", False), *unshown)
    assert decide(run) == AnswerTurn()
    loaded = stored(run)
    effect = decide(loaded)
    assert isinstance(effect, RunCalls)
    assert [(planned.action, planned.receipt and planned.receipt.value) for planned in effect.calls] == [("project", 1)]
    assert decide(after(loaded, CallUnprojectable("c1", stage, "bad"))) == AnswerTurn()
    shown = after(loaded, CallCompleted("c1", "one"))
    assert decide(shown) == AnswerTurn()
    assert shown.receipts["c1"].error is None


def test_an_answered_turn_leads_to_the_next_call_of_the_model() -> None:
    """The turn number goes up by one, its attempts start anew."""
    run = after(queued(), opened(), replied(THREE[0]), *ran("c1"), TurnAnswered({"c1": "3"}))
    assert decide(run) == CallModel(2, 1)


def test_a_call_that_nobody_knows_the_end_of_is_made_again_in_the_same_turn() -> None:
    """A dead executor's model call costs an attempt, not a turn."""
    assert decide(stored(after(queued(), opened()))) == CallModel(1, 2)
    assert decide(stored(after(queued(), opened(), ModelCallAbandoned()))) == CallModel(1, 2)


def test_a_transient_failure_is_tried_again_in_the_same_turn() -> None:
    """The wait is the store's business; once due, the same turn is called."""
    failure = ModelCallFailed({"name": "ModelRateLimitedError", "code": "model_rate_limited"}, "no", "rate-limit", 800)
    run = after(queued(), opened(), failure)
    assert run.due_in_ms == 800
    assert decide(stored(run)) == CallModel(1, 2)


def test_the_step_limit_stops_the_run() -> None:
    """No model call beyond `max_steps`."""
    run = after(queued(limits=Limits(max_steps=1)), opened(), replied(THREE[0]), *ran("c1"), TurnAnswered({"c1": "3"}))
    assert decide(run) == Finish(Finished("stopped", "max-steps", {"max_steps": 1}))


def test_a_cancel_comes_before_everything_but_the_end() -> None:
    """Cancelled while queued, running or suspended: the run stops as aborted; once it has ended, nothing happens."""
    aborted = Finish(Finished("stopped", "aborted"))
    waiting = after(queued(), opened(), replied(THREE[0]), Suspended((ItemRow("i", "approval", "{}"),), ("c1",)))
    for run in (queued(), after(queued(), opened(), replied(THREE[0])), waiting):
        assert decide(after(run, NotesFolded(1, cancelled=True))) == aborted
    assert decide(after(queued(), opened(), replied("x"), Finished("completed", output="x", has_output=True))) == Nothing()


def test_a_suspended_run_waits_and_goes_on_with_its_verdicts() -> None:
    """Approved calls carry their verdict, denied ones their reason."""
    run = after(queued(), opened(), replied(THREE[0], THREE[1]), Suspended((ItemRow("i", "approval", "{}"),), ("c1", "c2")))
    assert decide(run) == AwaitAnswers()
    run = after(run, Resumed({"c1": {"approved": True}, "c2": {"approved": False, "reason": "too dear"}}))
    effect = decide(stored(run))
    assert isinstance(effect, RunCalls)
    assert [(planned.verdict, planned.denial_reason) for planned in effect.calls] == [
        ("approved", None),
        ("denied", "too dear"),
    ]


def test_a_note_may_allow_or_replace_an_interrupted_call() -> None:
    """A retry runs it again, a reconciled outcome answers it; the other calls of the turn follow."""
    run = stored(after(queued(), opened(), replied(*THREE[:2]), CallStarted("c1", "add", False)))
    effect = decide(after(run, NotesFolded(1, words=(Word("c1", again=True),))))
    assert isinstance(effect, RunCalls)
    assert [planned.action for planned in effect.calls] == ["again", "start"]
    known = after(run, NotesFolded(1, words=(Word("c1", output=5),)))
    effect = decide(known)
    assert isinstance(effect, RunCalls)
    assert [planned.action for planned in effect.calls] == ["project", "start"]
    failed = after(run, NotesFolded(1, words=(Word("c1", output="card refused", is_error=True),)))
    assert failed.receipts["c1"].error == "card refused"


def test_a_swarm_task_gathers_its_inputs_once() -> None:
    """Before its first model call, and never again."""
    run = replace(queued(task_id="t"))
    assert decide(run) == GatherInputs()
    assert decide(after(run, InputsGiven(()))) == CallModel(1, 1)
    assert decide(stored(after(run, InputsGiven(()), opened()))) == CallModel(1, 2)


def test_a_swarm_conducts_itself() -> None:
    """Its own head never calls a model."""
    assert decide(queued(run_kind="swarm")) == ConductSwarm()


def test_a_reducer_is_one_call() -> None:
    """Started, then its value is the output; a failure is the task's."""
    run = queued(run_kind="reducer", agent="merge")
    effect = decide(run)
    assert isinstance(effect, RunCalls)
    assert effect.calls[0].call == ToolUsePart("reduce", "merge", {})
    done = stored(after(run, CallStarted("reduce", "merge", True), CallExecuted("reduce", [1, 2])))
    assert decide(done) == Finish(Finished("completed", output=[1, 2], has_output=True))
    failed = decide(stored(after(run, CallStarted("reduce", "merge", True), CallFailed("reduce", "no"))))
    assert isinstance(failed, Finish)
    assert failed.ending.status == "failed"
    assert isinstance(decide(stored(after(run, CallStarted("reduce", "merge", False)))), Reconcile)
