"""Verification of a candidate: when the verifier may be asked, and what its verdict leads to.

The newest reply of the history is the candidate; counter and phase stand in the envelope. Whoever asks records the attempt
first, so that a process that dies inside the verifier, or cannot save its verdict, has used one up: the verifier is asked about
the same candidate again while attempts are left, and never more often than the run allows.
"""

from __future__ import annotations

from deuz_workers.core.candidate import ask_for_another
from deuz_workers.core.draft import Draft
from deuz_workers.core.effects import Finish, VerifyCandidate
from deuz_workers.core.events import Finished, VerificationEnded
from deuz_workers.core.failure import bounded
from deuz_workers.core.run import Run

EXHAUSTED = "verification-attempts-exhausted"
INCONCLUSIVE = "verification-inconclusive"


def verify_candidate(run: Run, text: str) -> VerifyCandidate | Finish:
    """The next attempt, or the end of a run that has used all of them up."""
    attempts, most = run.envelope.checkpoint.verify_attempts, run.envelope.limits.max_verify_attempts
    if attempts >= most:
        return Finish(Finished("stopped", EXHAUSTED, {"max_verify_attempts": most}))
    return VerifyCandidate(text, attempts + 1)


def start_verification(draft: Draft) -> None:
    """One attempt is used up. A candidate under verification is stored as `finalizing`, typed or not (VER-010)."""
    attempt: int = draft.point("verify_attempts") + 1
    draft.change(phase="finalizing")
    draft.move(verify_attempts=attempt, verifying=True)
    draft.starts = True
    draft.journal("verification.started", step=draft.step, attempt=attempt)


def end_verification(draft: Draft, event: VerificationEnded) -> Finished | None:
    """Fold the verdict in. Returns the end that it means for the run, if it means one.

    A rejected candidate is answered by a user turn with the feedback, and the next one has all its repairs (FIN-008).
    """
    attempt: int = draft.point("verify_attempts")
    draft.move(verifying=False)
    draft.journal("verification.ended", step=draft.step, attempt=attempt, verdict=event.verdict)
    if event.verdict == "verified":
        return None
    text = None if event.text is None else bounded(event.text)
    if event.verdict == "inconclusive":
        return Finished("stopped", INCONCLUSIVE, None if text is None else {"reason": text})
    most: int = draft.value("limits").max_verify_attempts
    if attempt >= most:
        return Finished("stopped", EXHAUSTED, {"max_verify_attempts": most, "feedback": text})
    draft.move(output_attempts=0)
    leave_verification(draft)
    draft.append(ask_for_another(text or "no feedback was given"))
    return None


def leave_verification(draft: Draft) -> None:
    """The model is asked next. A run without an output type goes on with its tool loop, where its answers come from."""
    draft.move(verifying=False)
    if draft.value("phase") == "finalizing" and not draft.value("finalizes"):
        draft.change(phase="loop")
