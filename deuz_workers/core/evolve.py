"""Folding what happened into the run. `evolve(run, event)` returns the next run and leaves the given one as it is.

Events of the journal, which readers of a run see: `run.bound`, `run.cancelling`, `run.message`, `run.inputs`, `model.called`,
`model.replied`, `model.failed`, `model.abandoned`, `tool.started`, `tool.rejected`, `tool.executed`, `tool.failed`,
`tool.completed`, `turn.answered`, `run.suspended`, `run.resumed`, `run.completed`, `run.stopped`, `run.failed`. They carry ids,
names, counts and error texts; never prompts, arguments or results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deuz_workers.core.change import Reserve, Settle, Stage
from deuz_workers.core.envelope import AgentRunEnvelope, LoopCheckpoint, OpenCall
from deuz_workers.core.events import (
    Bound,
    CallCompleted,
    CallExecuted,
    CallFailed,
    CallRejected,
    CallStarted,
    CallUnprojectable,
    Event,
    Finished,
    InputsGiven,
    ModelCallAbandoned,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    NotesFolded,
    Resumed,
    Suspended,
    TurnAnswered,
    Waited,
)
from deuz_workers.core.messages import Message, ToolResultPart, ToolUsePart
from deuz_workers.core.receipts import MISSING, Receipt
from deuz_workers.core.run import Run
from deuz_workers.core.states import next_run_status, next_stage
from deuz_workers.core.usage import Usage


def evolve(run: Run, event: Event) -> Run:
    """The run after `event`. Raises `ImpossibleTransition` for an event that cannot happen now."""
    wanted = event.status if isinstance(event, Finished) else None
    status = next_run_status(run.envelope.status, type(event).__name__, wanted)
    run = _with(run, status=status)
    run = replace(run, due_in_ms=0, unsaved=replace(run.unsaved, any=True))
    match event:
        case NotesFolded():
            return _fold_notes(run, event)
        case Bound(binding):
            return _with(run, binding=binding)
        case InputsGiven(messages):
            return _journal(_append(replace(run, inputs_given=True), messages), "run.inputs", count=len(messages))
        case ModelCallStarted(call):
            return _start_model_call(run, call)
        case ModelReplied():
            return _fold_reply(run, event)
        case ModelCallFailed():
            return _fold_model_failure(run, event)
        case ModelCallAbandoned():
            return _journal(_close_call(run, "unknown"), "model.abandoned", step=run.step)
        case CallStarted() | CallRejected() | CallExecuted() | CallFailed() | CallCompleted() | CallUnprojectable():
            return _fold_call(run, event)
        case TurnAnswered(texts):
            return _answer_turn(run, texts)
        case Suspended():
            return _suspend(run, event)
        case Resumed(verdicts):
            run = _with(run, verdicts={**run.envelope.verdicts, **verdicts})
            return _journal(run, "run.resumed", answers=len(verdicts))
        case Finished():
            return _finish(run, event)
        case Waited():
            return replace(run, due_in_ms=None)


def evolve_all(run: Run, events: tuple[Event, ...]) -> Run:
    for event in events:
        run = evolve(run, event)
    return run


def _fold_notes(run: Run, event: NotesFolded) -> Run:
    run = _with(run, seen_seq=event.seen_seq)
    if run.envelope.status == "suspended" and not event.cancelled:
        run = replace(run, due_in_ms=None)
    if event.cancelled and not run.envelope.cancelled:
        run = _journal(_with(run, cancelled=True), "run.cancelling")
    if event.messages:
        run = _journal(_append(run, event.messages), "run.message", count=len(event.messages))
    run = replace(run, retry_call_ids=run.retry_call_ids | event.retry_call_ids)
    for call_id, outcome in event.outcomes.items():
        receipt = run.receipts.get(call_id)
        if receipt is None or receipt.stage != "executing":
            continue
        if outcome.get("is_error") is True:
            run = _fold_call(run, CallFailed(call_id, str(outcome.get("output"))))
        else:
            run = _fold_call(run, CallExecuted(call_id, outcome.get("output")))
    return run


def _start_model_call(run: Run, call: OpenCall) -> Run:
    if run.envelope.checkpoint.open_call is not None:
        run = _journal(_close_call(run, "unknown"), "model.abandoned", step=run.step)
    checkpoint = run.envelope.checkpoint
    step = checkpoint.step if checkpoint.attempts else checkpoint.step + 1
    run = _checkpoint(run, step=step, attempts=checkpoint.attempts + 1, open_call=call)
    if step != checkpoint.step:
        run = replace(run, receipts={})
    if run.envelope.scopes:
        reserve = Reserve(call.request_id, run.envelope.scopes, call.tokens, call.cost_micros)
        run = replace(run, unsaved=replace(run.unsaved, reserve=reserve))
    return _journal(run, "model.called", step=step, attempt=call.attempt)


def _fold_reply(run: Run, event: ModelReplied) -> Run:
    used = event.usage
    run = _close_call(run, "unknown" if used is None else "settled", used)
    run = _checkpoint(run, attempts=0, retries=0)
    envelope = run.envelope
    usage = envelope.usage + used if used is not None else replace(envelope.usage, cost_micros=None)
    run = _progress(_with(run, usage=usage, retry=None, binding=envelope.binding))
    step = run.step
    run = _append(run, (identify_calls(event.message, step),))
    run = _journal(
        run,
        "model.replied",
        step=step,
        finish_reason=event.finish_reason,
        calls=len(event.message.tool_uses),
        input_tokens=used.input_tokens if used else None,
        output_tokens=used.output_tokens if used else None,
    )
    if event.finish_reason == "content_filter":
        return _finish_within(run, Finished("stopped", "refusal"))
    if event.finish_reason == "length" and event.message.tool_uses:
        return _finish_within(run, Finished("stopped", "length", {"cut_off_calls": len(event.message.tool_uses)}))
    return run


def _fold_model_failure(run: Run, event: ModelCallFailed) -> Run:
    run = _close_call(run, "released" if event.billed == "no" else "unknown")
    retry = event.error if event.transient else None
    run = _with(run, retry=retry)
    run = _journal(run, "model.failed", step=run.step, error=event.error.get("code"), retry_in_ms=event.retry_in_ms)
    if event.retry_in_ms is not None:
        run = _checkpoint(run, retries=run.envelope.checkpoint.retries + 1)
        return replace(run, due_in_ms=event.retry_in_ms)
    return _finish_within(run, Finished("failed", error=event.error))


def _close_call(run: Run, outcome: str, used: Usage | None = None) -> Run:
    """The open model call has ended; its reservation, if it has one, is settled in the same commit."""
    call = run.envelope.checkpoint.open_call
    if call is None:
        return run
    run = _checkpoint(run, open_call=None)
    if outcome == "unknown":
        run = _with(run, unknown_tokens=run.envelope.unknown_tokens + call.tokens)
    if not run.envelope.scopes:
        return run
    if outcome == "settled" and used is not None:
        settle = Settle(call.request_id, run.envelope.scopes, "settled", used.total_tokens, used.cost_micros)
    else:
        settle = Settle(call.request_id, run.envelope.scopes, "released" if outcome == "released" else "unknown")
    return replace(run, unsaved=replace(run.unsaved, settle=(*run.unsaved.settle, settle)))


CallEvent = CallStarted | CallRejected | CallExecuted | CallFailed | CallCompleted | CallUnprojectable


def _fold_call(run: Run, event: CallEvent) -> Run:
    before = run.receipts.get(event.call_id)
    name: str
    detail: dict[str, object] = {}
    stage: Stage = next_stage(before.stage if before else None, type(event).__name__)
    if before is None:
        tool = event.tool if isinstance(event, CallStarted | CallRejected) else ""
        receipt = Receipt(run.step, event.call_id, 0, stage, tool)
    else:
        receipt = replace(before, seq=before.seq + 1, stage=stage)
    match event:
        case CallStarted():
            if before is None:
                receipt = replace(receipt, idempotent=event.idempotent)
            else:
                receipt = replace(receipt, attempt=before.attempt + 1)
            name, detail = "tool.started", {"attempt": receipt.attempt}
        case CallRejected():
            receipt, name = replace(receipt, error=event.error), "tool.rejected"
        case CallExecuted():
            receipt, name = replace(receipt, value=event.value), "tool.executed"
        case CallFailed():
            receipt, name = replace(receipt, error=event.error), "tool.failed"
        case CallCompleted():
            receipt, name = replace(receipt, text=event.text), "tool.completed"
        case CallUnprojectable():
            receipt = replace(receipt, stage=event.stage, error=event.error)
            name, detail = "tool.completed", {"stage": event.stage}
    run = _save_receipt(run, receipt, before)
    if not isinstance(event, CallStarted):
        run = _progress(run)
    if name == "tool.completed" and _journalled(run, "tool.executed", event.call_id):
        run = _unjournal(run, "tool.executed", event.call_id)
    return _journal(run, name, step=receipt.step, call_id=receipt.call_id, tool=receipt.tool, **detail)


def _save_receipt(run: Run, receipt: Receipt, before: Receipt | None) -> Run:
    """One row per call and commit: stages passed since the last commit are stored as the last of them."""
    pairs = list(run.unsaved.receipts)
    for place, (unsaved, stored) in enumerate(pairs):
        if (unsaved.step, unsaved.call_id) == (receipt.step, receipt.call_id):
            receipt = replace(receipt, seq=unsaved.seq)
            pairs[place] = (receipt, stored)
            break
    else:
        pairs.append((receipt, before))
    return replace(
        run, receipts={**run.receipts, receipt.call_id: receipt}, unsaved=replace(run.unsaved, receipts=tuple(pairs))
    )


def _answer_turn(run: Run, texts: Mapping[str, str]) -> Run:
    parts = tuple(_result_part(run.receipts[call.call_id], call, texts) for call in run.open_calls)
    run = _append(run, (Message("tool", parts),))
    return _journal(_with(run, verdicts={}), "turn.answered", step=run.step, calls=len(parts))


def _result_part(receipt: Receipt, call: ToolUsePart, texts: Mapping[str, str]) -> ToolResultPart:
    if receipt.error is not None:
        return ToolResultPart(call.call_id, call.name, receipt.error, True, None, call.provider_call_id)
    if receipt.text is not None or receipt.value is MISSING:
        return ToolResultPart(call.call_id, call.name, receipt.text or "", False, None, call.provider_call_id)
    return ToolResultPart(call.call_id, call.name, texts[call.call_id], False, receipt.step, call.provider_call_id)


def _suspend(run: Run, event: Suspended) -> Run:
    counts = dict(run.envelope.checkpoint.approval_request_counts)
    for call_id in event.call_ids:
        counts[call_id] = counts.get(call_id, 0) + 1
    run = _checkpoint(run, approval_request_counts=counts)
    run = replace(run, due_in_ms=None, unsaved=replace(run.unsaved, items=event.items))
    return _journal(run, "run.suspended", step=run.step, items=[item.item_id for item in event.items])


def _finish_within(run: Run, event: Finished) -> Run:
    """An ending that follows from another event and belongs to its commit."""
    return evolve(run, event)


def _finish(run: Run, event: Finished) -> Run:
    if run.envelope.checkpoint.open_call is not None:
        run = _journal(_close_call(run, "unknown"), "model.abandoned", step=run.step)
    run = _with(
        run,
        reason=event.reason,
        stop_details=event.details,
        error=event.error,
        output=event.output,
        has_output=event.has_output,
        verdicts={},
    )
    run = replace(run, due_in_ms=None)
    detail: dict[str, object] = {}
    if event.reason is not None:
        detail["reason"] = event.reason
    if event.error is not None:
        detail["error"] = event.error.get("code") or event.error.get("name")
    return _journal(run, f"run.{event.status}", **detail)


def identify_calls(message: Message, step: int) -> Message:
    """The message with a call id on every call that no other call of the turn has (RCP-001).

    The provider's id where it is there and unique, else `s<step>c<place>` with the provider's kept beside it.
    """
    given = [part.call_id for part in message.parts if isinstance(part, ToolUsePart)]
    parts = list(message.parts)
    ordinal = 0
    for place, part in enumerate(parts):
        if not isinstance(part, ToolUsePart):
            continue
        ordinal += 1
        if not part.call_id or given.count(part.call_id) > 1:
            own = f"s{step}c{ordinal}"
            while own in given:
                own += "_"
            parts[place] = replace(part, call_id=own, provider_call_id=part.call_id or None)
    return replace(message, parts=tuple(parts))


def _with(run: Run, **changes: Any) -> Run:
    envelope: AgentRunEnvelope = replace(run.envelope, **changes)
    return replace(run, envelope=envelope)


def _checkpoint(run: Run, **changes: Any) -> Run:
    checkpoint: LoopCheckpoint = replace(run.envelope.checkpoint, **changes)
    return _with(run, checkpoint=checkpoint)


def _progress(run: Run) -> Run:
    return replace(run, unsaved=replace(run.unsaved, progress=True))


def _append(run: Run, messages: tuple[Message, ...]) -> Run:
    run = _with(run, last_seq=run.envelope.last_seq + len(messages))
    unsaved = replace(run.unsaved, messages=run.unsaved.messages + messages)
    return replace(run, history=run.history.append(*messages), unsaved=unsaved)


def _journal(run: Run, kind: str, **detail: object) -> Run:
    record = {"type": kind, **{name: value for name, value in detail.items() if value is not None}}
    run = _with(run, journal_seq=run.envelope.journal_seq + 1)
    return replace(run, unsaved=replace(run.unsaved, journal=(*run.unsaved.journal, record)))


def _journalled(run: Run, kind: str, call_id: str) -> bool:
    return any(record["type"] == kind and record.get("call_id") == call_id for record in run.unsaved.journal)


def _unjournal(run: Run, kind: str, call_id: str) -> Run:
    left = tuple(record for record in run.unsaved.journal if record["type"] != kind or record.get("call_id") != call_id)
    run = _with(run, journal_seq=run.envelope.journal_seq - (len(run.unsaved.journal) - len(left)))
    return replace(run, unsaved=replace(run.unsaved, journal=left))
