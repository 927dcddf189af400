"""What the verifier's word leads to, as rules: attempts are counted before it is asked, its verdicts bound the run."""

from __future__ import annotations

import pytest

from deuz_workers.core.decide import completed, decide
from deuz_workers.core.effects import CallModel, CheckOutput, Finish, VerifyCandidate
from deuz_workers.core.events import (
    Bound,
    Event,
    Finished,
    NotesFolded,
    OutputRejected,
    VerificationEnded,
    VerificationStarted,
)
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import user
from deuz_workers.core.run import Run, to_change
from tests.core.runs import COMMIT, after, opened, queued, replied, stored

LIMITS = Limits(max_verify_attempts=2, max_output_attempts=2)


def bound(*, finalizes: bool = False, verifies: bool = True, limits: Limits = LIMITS) -> Run:
    return after(queued(), Bound({}, limits, finalizes=finalizes, has_loop=False, verifies=verifies))


def answered(run: Run, text: str, attempt: int = 1) -> Run:
    return after(run, opened(attempt), replied(text))


def rejected(run: Run) -> Run:
    return after(run, VerificationStarted(), VerificationEnded("rejected", "no"))


@pytest.mark.parametrize("finalizes", [True, False])
def test_a_candidate_is_verified_before_the_run_completes(finalizes: bool) -> None:
    """Typed or not, once the agent has a verifier; without one the text is the end, or is checked for its type."""
    run = answered(bound(finalizes=finalizes), "42")
    assert decide(run) == VerifyCandidate("42", 1)
    plain = answered(bound(finalizes=finalizes, verifies=False), "42")
    assert decide(plain) == (CheckOutput("42") if finalizes else Finish(completed(plain, "42")))


@pytest.mark.parametrize("finalizes", [True, False])
def test_an_attempt_stands_in_the_record_before_the_verifier_is_asked(finalizes: bool) -> None:
    """Loaded in between: phase `finalizing`, the attempt counted, the run in the middle of a step; the same candidate is the
    next attempt, and neither step nor answer is counted again."""
    run = after(answered(bound(finalizes=finalizes), "42"), VerificationStarted())
    assert to_change(run, COMMIT).starts
    loaded = stored(run)
    assert (loaded.envelope.phase, loaded.envelope.checkpoint.verify_attempts, loaded.is_mid_step) == ("finalizing", 1, True)
    assert decide(loaded) == VerifyCandidate("42", 2)
    assert (loaded.envelope.checkpoint.step, loaded.envelope.checkpoint.output_attempts) == (1, int(finalizes))


def test_spent_attempts_end_the_run_without_the_verifier() -> None:
    """The second and last attempt died: nobody asks again."""
    run = after(answered(bound(), "42"), VerificationStarted())
    run = stored(after(stored(run), VerificationStarted()))
    details = {"max_verify_attempts": 2}
    assert decide(run) == Finish(Finished("stopped", "verification-attempts-exhausted", details))


@pytest.mark.parametrize("finalizes", [True, False])
def test_a_rejection_asks_the_model_again_with_the_feedback(finalizes: bool) -> None:
    """As a user turn. A typed run stays in its final phase; another one is back in its loop, where its answers come from."""
    run = stored(rejected(answered(bound(finalizes=finalizes), "42")))
    assert decide(run) == CallModel(2, 1)
    assert (run.history[-1].role, "no" in run.history[-1].text) == ("user", True)
    assert (run.envelope.phase, run.is_mid_step) == ("finalizing" if finalizes else "loop", False)


@pytest.mark.spec("VER-006")
def test_the_last_rejection_ends_the_run() -> None:
    """As `verification-attempts-exhausted`, with what was wrong; the model is not asked for an answer that nobody reads."""
    run = rejected(answered(rejected(answered(bound(), "41")), "42", 2))
    envelope = stored(run).envelope
    assert (envelope.status, envelope.reason) == ("stopped", "verification-attempts-exhausted")
    assert envelope.stop_details == {"max_verify_attempts": 2, "feedback": "no"}
    assert not run.is_mid_step


def test_a_rejected_candidate_has_no_say_in_the_repairs_of_the_next() -> None:
    """invalid, valid, rejected, invalid, valid, verified: four answers, where two invalid ones in a row end the run."""
    run = after(answered(bound(finalizes=True), "?"), OutputRejected("no number"))
    assert decide(run) == CallModel(2, 1)
    run = rejected(answered(run, "41", 2))
    assert run.envelope.checkpoint.output_attempts == 0
    run = after(answered(run, "?", 3), OutputRejected("no number"))
    assert decide(run) == CallModel(4, 1)
    assert decide(answered(run, "42", 4)) == VerifyCandidate("42", 2)
    run = after(answered(run, "?", 4), OutputRejected("no number"))
    assert (run.envelope.status, run.envelope.reason) == ("stopped", "output-attempts-exhausted")


@pytest.mark.parametrize("reason", ["nobody was there", None])
def test_an_inconclusive_verdict_stops_the_run(reason: str | None) -> None:
    """Without an output; a reason stands in the details."""
    run = after(answered(bound(), "42"), VerificationStarted(), VerificationEnded("inconclusive", reason))
    envelope = run.envelope
    assert (envelope.status, envelope.reason, envelope.has_output) == ("stopped", "verification-inconclusive", False)
    assert envelope.stop_details == (None if reason is None else {"reason": reason})


@pytest.mark.parametrize("events", [(Finished("failed"),), (Finished("stopped", "aborted"),)])
def test_an_end_leaves_no_verification_open(events: tuple[Event, ...]) -> None:
    """A cancel or a deadline that came before the verdict."""
    run = after(answered(bound(), "42"), VerificationStarted(), *events)
    assert not run.is_mid_step


def test_a_message_that_arrives_during_a_verification_is_answered_in_the_loop() -> None:
    """The process died in the verifier and somebody spoke meanwhile: an untyped run goes on where its answers come from."""
    run = stored(after(answered(bound(), "42"), VerificationStarted()))
    run = after(run, NotesFolded(1, messages=(user("wait"),)))
    assert decide(run) == CallModel(2, 1)
    run = after(run, opened(2))
    assert (run.envelope.phase, run.envelope.checkpoint.verifying) == ("loop", False)


def test_the_journal_says_that_a_verification_began_and_how_it_ended() -> None:
    """Numbers and the verdict; neither the answer nor the feedback."""
    run = answered(rejected(answered(bound(finalizes=True), "41")), "42", 2)
    kinds = [record for record in run.unsaved.journal if str(record["type"]).startswith("verification")]
    assert kinds == [
        {"type": "verification.started", "step": 1, "attempt": 1},
        {"type": "verification.ended", "step": 1, "attempt": 1, "verdict": "rejected"},
    ]
