"""Failed runs that are taken up again: what stays, what begins anew, who is refused."""

from __future__ import annotations

from typing import Literal

import pytest

from deuz_workers.core.decide import decide
from deuz_workers.core.effects import CallModel, Finish, Nothing
from deuz_workers.core.events import Finished, ModelCallFailed, NotesFolded, OutputAsked, TurnAnswered
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import user
from deuz_workers.core.run import Run
from deuz_workers.core.taking_up import reopened
from deuz_workers.core.transient import TransientKind, transient_kind
from deuz_workers.errors import (
    DeuzError,
    ModelAuthenticationError,
    ModelBreakerOpenError,
    ModelError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
    RetryRefusedError,
)
from tests.core.runs import after, call, opened, queued, ran, replied, stored

Billed = Literal["no", "unknown"]


def failed(billed: Billed = "unknown", kind: TransientKind | None = "server-error", *, reruns: bool = False) -> ModelCallFailed:
    """The call failed, and so has the run, or it is taken up again by itself after a while."""
    error = {"name": "ModelUnavailableError", "code": "model_unavailable"}
    return ModelCallFailed(error, billed, kind, 9_000 if reruns else None, reruns=reruns)


def turn() -> Run:
    """A run whose first turn is answered."""
    return after(queued(), opened(), replied(call("c")), *ran("c"), TurnAnswered({"c": "3"}))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelUnavailableError("x"), "no-connection"),
        (ModelTimeoutError("x"), "timeout"),
        (ModelUnavailableError("x", status=500), "server-error"),
        (ModelUnavailableError("x", status=503), "server-error"),
        (ModelUnavailableError("x", status=599), "server-error"),
        (ModelUnavailableError("x", status=529), "overload"),
        (ModelRateLimitedError("x", status=429), "rate-limit"),
        (ModelBreakerOpenError("x"), "breaker-open"),
        (ModelStreamBrokenError("x"), "broken-stream"),
        (ModelUnavailableError("x", status=409), None),
        (ModelResponseError("x"), None),
        (ModelRequestError("x", status=400), None),
        (ModelAuthenticationError("x", status=401), None),
        (ModelError("x"), None),
    ],
)
def test_a_cause_passes_or_lasts(error: ModelError, kind: str | None) -> None:
    """By class and status alone."""
    assert transient_kind(error) == kind


def test_a_failed_call_keeps_its_turn_and_the_next_one_is_another() -> None:
    """Taken up again, the run calls in the turn after, and what was answered stays in the history."""
    run = stored(after(turn(), opened(), failed()))
    assert (run.envelope.status, (run.envelope.retry or {})["kind"]) == ("failed", "server-error")
    assert decide(run) == Nothing()
    again = stored(reopened(run))
    assert (again.envelope.status, again.envelope.error, again.envelope.retry) == ("running", None, None)
    assert decide(again) == CallModel(3, 2)
    done = stored(after(again, opened(2), replied("done")))
    assert done.envelope.checkpoint.step == 3
    assert decide(after(again, opened(2))) == CallModel(3, 3), "one that is interrupted is made again in its turn"


def test_a_failed_call_for_the_final_answer_stays_counted() -> None:
    """In the phase that it failed in, as one of the answers that may be asked for."""
    run = after(queued(finalizes=True), opened(), replied("done"), OutputAsked(user("now as JSON")), opened(), failed())
    again = stored(reopened(stored(run)))
    assert (again.envelope.phase, again.envelope.checkpoint.output_attempts) == ("finalizing", 1)
    asked = after(again, opened(2))
    assert asked.envelope.checkpoint.output_attempts == 2
    exhausted = reopened(stored(after(asked, failed())))
    assert decide(exhausted) == Finish(Finished("stopped", "output-attempts-exhausted", {"max_output_attempts": 2}))


def test_the_limit_of_turns_counts_failed_calls() -> None:
    """A run at its limit stops where it is taken up."""
    run = after(queued(limits=Limits(max_steps=1)), opened(), failed())
    assert decide(reopened(stored(run))) == Finish(Finished("stopped", "max-steps", {"max_steps": 1}))


@pytest.mark.parametrize("billed", ["no", "unknown"])
def test_an_estimate_stays_where_nobody_knows_what_was_billed(billed: Billed) -> None:
    """Once, however often the run is taken up."""
    run = stored(after(queued(), opened(), failed(billed)))
    assert run.envelope.unknown_tokens == (100 if billed == "unknown" else 0)
    assert reopened(run).envelope.unknown_tokens == run.envelope.unknown_tokens


def test_a_run_that_takes_itself_up_is_not_failed() -> None:
    """It waits, with the cause recorded, and its next call is a turn of its own; a reply forgets both."""
    run = stored(after(turn(), opened(), failed(reruns=True)))
    assert (run.envelope.status, run.due_in_ms, run.envelope.checkpoint.reruns) == ("running", 0, 1)
    assert (run.envelope.retry or {})["kind"] == "server-error"
    assert decide(run) == CallModel(3, 2)
    done = after(run, opened(2), replied(call("d")))
    assert (done.envelope.retry, done.envelope.checkpoint.reruns, done.envelope.checkpoint.new_turn) == (None, 0, False)


@pytest.mark.parametrize(
    "ending",
    [
        Finished("stopped", "aborted"),
        Finished("failed", error={"code": "deadline_exceeded"}),
        Finished("stopped", "max-steps"),
        Finished("completed", output="x", has_output=True),
    ],
)
def test_no_other_end_keeps_a_transient_cause(ending: Finished) -> None:
    """Although the run waited because of one."""
    run = stored(after(queued(), opened(), ModelCallFailed({"code": "x"}, "no", "rate-limit", 50)))
    assert run.envelope.retry is not None
    assert stored(after(run, ending)).envelope.retry is None
    cancelled = stored(after(run, NotesFolded(1, cancelled=True)))
    assert isinstance(decide(cancelled), Finish)


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (after(queued(), opened(), failed(kind=None)), "not_transient"),
        (after(queued(), Finished("failed", error={"name": "HookError"})), "not_transient"),
        (after(queued(swarm_rid=queued().envelope.rid, task_id="t"), opened(), failed()), "task_ended"),
    ],
)
def test_who_is_not_taken_up(run: Run, code: str) -> None:
    """A lasting cause, and a task of a swarm that went on; the error is a TypeError."""
    with pytest.raises(TypeError) as caught:
        reopened(run)
    assert isinstance(caught.value, RetryRefusedError)
    assert isinstance(caught.value, DeuzError)
    assert caught.value.code == code
