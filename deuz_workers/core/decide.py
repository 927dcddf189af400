"""What to do next: a pure function of the run.

Called again after a crash with what was saved, it orders exactly what is missing, under the ids it had before. The caller has
folded in notes and answers first; a call found `executing` here was interrupted, since a live executor keeps its own account
of what it launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, cast

from deuz_workers.core.approval import people_of
from deuz_workers.core.effects import (
    AnswerTurn,
    AskForOutput,
    AwaitAnswers,
    CallModel,
    CheckOutput,
    ConductSwarm,
    Effect,
    ExtractMemory,
    Finish,
    GatherInputs,
    Nothing,
    PlannedCall,
    Reconcile,
    RunCalls,
)
from deuz_workers.core.events import Finished
from deuz_workers.core.messages import ToolUsePart
from deuz_workers.core.receipts import MISSING
from deuz_workers.core.reconciliation import unknown_effects
from deuz_workers.core.run import Run
from deuz_workers.core.verification import verify_candidate

REDUCE = "reduce"
"""Call id of a reducer's only call."""


def decide(run: Run) -> Effect:
    """The next effect. Never raises."""
    envelope = run.envelope
    if envelope.is_final:
        return ExtractMemory() if envelope.phase == "extracting" else Nothing()
    if envelope.run_kind == "swarm":
        return ConductSwarm()
    if envelope.cancelled:
        return Finish(Finished("stopped", "aborted", envelope.stop_details))
    if envelope.status == "suspended":
        return AwaitAnswers()
    if unknown := unknown_effects(run):
        return Reconcile(unknown)
    if envelope.run_kind == "reducer":
        return _reduce(run)
    if calls := run.open_calls:
        return _settle_turn(run, calls)
    if len(run.history) and run.history[-1].role == "assistant":
        return _judge_reply(run, run.history[-1].text)
    if envelope.task_id is not None and envelope.status == "queued" and not run.inputs_given:
        return GatherInputs()
    return _call_model(run)


def _judge_reply(run: Run, text: str) -> Effect:
    """A reply without calls ends the loop. What is asked for then is a candidate until it is checked and verified."""
    envelope = run.envelope
    if envelope.finalizes and envelope.phase != "finalizing":
        return AskForOutput()
    if envelope.verifies:
        return verify_candidate(run, text)
    return CheckOutput(text) if envelope.finalizes else Finish(completed(run, text))


def completed(run: Run, output: object) -> Finished:
    """The end of a run whose newest reply is its answer."""
    details = {"finish_reason": "length"} if run.envelope.checkpoint.cut_off else None
    return Finished("completed", details=details, output=output, has_output=True)


def _call_model(run: Run) -> Effect:
    checkpoint = run.envelope.checkpoint
    begins = not checkpoint.attempts or checkpoint.new_turn
    step = checkpoint.step + 1 if begins else checkpoint.step
    if step > run.envelope.limits.max_steps:
        return Finish(Finished("stopped", "max-steps", {"max_steps": run.envelope.limits.max_steps}))
    most = run.envelope.limits.max_output_attempts
    if run.envelope.phase == "finalizing" and begins and checkpoint.output_attempts >= most:
        return Finish(Finished("stopped", "output-attempts-exhausted", {"max_output_attempts": most}))
    return CallModel(step, checkpoint.attempts + 1)


def _settle_turn(run: Run, calls: tuple[ToolUsePart, ...]) -> Effect:
    planned: list[PlannedCall] = []
    for call in calls:
        receipt = run.receipts.get(call.call_id)
        verdict = run.envelope.verdicts.get(call.call_id)
        state, because = _state_of(verdict)
        asked_for = None if verdict is None else verdict.get("approved_arguments")
        sealed = asked_for if state == "approved" and isinstance(asked_for, str) else None
        if state == "approved" and verdict is not None and isinstance(edited := verdict.get("arguments"), Mapping):
            call = replace(call, arguments=cast(Mapping[str, object], edited), raw_arguments=None)
        if receipt is None:
            is_late = verdict is not None and verdict.get("late") is True
            by = people_of(verdict) if is_late else ()
            planned.append(PlannedCall(call, "start", None, state, because, sealed, by, is_late))
        elif receipt.stage == "executing" and call.call_id in run.retry_verdicts:
            verdict = run.retry_verdicts[call.call_id]
            state, because = _state_of(verdict)
            planned.append(PlannedCall(call, "again", receipt, state, because, sealed, people_of(verdict)))
        elif receipt.stage == "executing":
            planned.append(PlannedCall(call, "rerun", receipt, state, because, sealed))
        elif receipt.stage == "suspended":
            planned.append(PlannedCall(call, "lost", receipt))
        elif receipt.stage == "executed" or (
            receipt.stage in ("validation-failed", "projection-failed") and call.call_id not in run.projected
        ):
            planned.append(PlannedCall(call, "project", receipt, state, because))
    return RunCalls(run.step, tuple(planned)) if planned else AnswerTurn()


def _state_of(verdict: Mapping[str, object] | None) -> tuple[Literal["none", "approved", "denied"], str | None]:
    """Of the gate, and the reason that was given."""
    if verdict is None:
        return "none", None
    reason = verdict.get("reason")
    return "approved" if verdict.get("approved") is True else "denied", reason if isinstance(reason, str) else None


def _reduce(run: Run) -> Effect:
    receipt = run.receipts.get(REDUCE)
    call = ToolUsePart(REDUCE, run.envelope.agent, {})
    if receipt is None:
        return RunCalls(1, (PlannedCall(call, "start", None),))
    match receipt.stage:
        case "executing":
            return RunCalls(1, (PlannedCall(call, "rerun", receipt),))
        case "failed":
            return Finish(Finished("failed", error={"name": "ReducerError", "message": receipt.error or "", "code": "reducer"}))
        case _:
            value = None if receipt.value is MISSING else receipt.value
            return Finish(Finished("completed", output=value, has_output=True))
