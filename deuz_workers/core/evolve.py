"""Folding what happened into the run. `evolve(run, event)` returns the next run and leaves the given one as it is.

Events of the journal, which readers of a run see: `run.bound`, `run.policy_narrowed`, `run.budgets_narrowed`, `run.cancelling`,
`run.message`, `run.inputs`, `model.called`, `model.replied`, `model.failed`, `model.abandoned`, `output.rejected`,
`verification.started`, `verification.ended`, `tool.started`, `tool.rejected`, `tool.executed`, `tool.failed`, `tool.completed`,
`child.started`, `guardrail`, `warning`, `turn.answered`, `run.rewritten`, `history.compacted`, `run.suspended`, `run.resumed`,
`run.retried`, `call.approved`, `call.denied`, `run.handed_off`, `budget.warned`, `run.completed`, `run.stopped`, `run.failed`;
of its memory `memory.recalled`, `memory.planned`, `memory.completed`, `memory.failed`. They carry ids, names, counts, error
texts and reasons of guardrails; never prompts, arguments, results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from deuz_workers.core.accounting import added
from deuz_workers.core.call_ids import identify_calls
from deuz_workers.core.candidate import ask_for_repair
from deuz_workers.core.change import Stage
from deuz_workers.core.draft import Draft
from deuz_workers.core.envelope import CATALOG, OpenCall
from deuz_workers.core.estimate import calibration_of
from deuz_workers.core.events import (
    Bound,
    BudgetStood,
    CallCompleted,
    CallDelegated,
    CallExecuted,
    CallFailed,
    CallRejected,
    CallStarted,
    CallUnprojectable,
    CatalogRecorded,
    ChildEnded,
    ContextOverflowed,
    Event,
    Finished,
    GuardrailFired,
    HandedOff,
    HistoryPruned,
    HistoryRewritten,
    HistorySummarized,
    InputChecked,
    InputsGiven,
    ModelCallAbandoned,
    ModelCallFailed,
    ModelCallStarted,
    ModelFailedOver,
    ModelReplied,
    NotesFolded,
    OutputAsked,
    OutputRejected,
    PolicyNarrowed,
    Reopened,
    Resumed,
    SummaryStarted,
    Suspended,
    TurnAnswered,
    VerificationEnded,
    VerificationStarted,
    Waited,
    Warned,
)
from deuz_workers.core.failure import bounded
from deuz_workers.core.handing_off import hand_off
from deuz_workers.core.late_verdict import fold_late_verdicts
from deuz_workers.core.messages import Message, ToolResultPart, ToolUsePart
from deuz_workers.core.narrowing import charge, narrow
from deuz_workers.core.open_call import (
    abandon_call,
    add_usage,
    close_call,
    fail_over,
    fold_summary,
    open_call,
    purpose_of,
    start_summary,
    watch_budgets,
)
from deuz_workers.core.outcomes import NO_TOOL_ERRORS, CallOutcome
from deuz_workers.core.receipts import MISSING, Receipt
from deuz_workers.core.reconciliation import accepted
from deuz_workers.core.remembering import begin_extraction, fold_memory
from deuz_workers.core.render import render
from deuz_workers.core.run import Run
from deuz_workers.core.states import next_run_status, next_stage
from deuz_workers.core.successor import successor
from deuz_workers.core.undispatched import answer_undispatched
from deuz_workers.core.usage import Usage
from deuz_workers.core.verification import end_verification, leave_verification, start_verification
from deuz_workers.core.warned import warn


def evolve(run: Run, event: Event) -> Run:
    """The run after `event`. Raises `ImpossibleTransition` for an event that cannot happen now."""
    return evolve_all(run, (event,))


def evolve_all(run: Run, events: tuple[Event, ...]) -> Run:
    """The run after all `events`, in order. Raises `ImpossibleTransition`; the given run stays as it is either way."""
    if not events:
        return run
    draft = Draft(run)
    for event in events:
        _fold(draft, event)
    return draft.finished()


def _fold(draft: Draft, event: Event) -> None:
    wanted = event.status if isinstance(event, Finished) else None
    draft.status = next_run_status(draft.status, type(event).__name__, wanted)
    draft.due_in_ms = 0
    match event:
        case NotesFolded():
            _fold_notes(draft, event)
        case Bound(binding, limits):
            draft.change(binding=binding, limits=limits or draft.value("limits"))
            draft.change(finalizes=event.finalizes, verifies=event.verifies)
            if event.finalizes and not event.has_loop:
                draft.change(phase="finalizing")
        case CatalogRecorded(catalog):
            draft.change(binding={**(draft.value("binding") or {}), CATALOG: dict(catalog)})
        case PolicyNarrowed(policy, shared):
            narrow(draft, policy)
            charge(draft, shared)
        case GuardrailFired():
            draft.journal(
                "guardrail", hook=event.hook, action=event.action, name=event.name, reason=event.reason, call_id=event.call_id
            )
        case InputChecked():
            draft.move(input_checked=True)
        case HistoryRewritten(messages):
            draft.rewrite(messages, event.replaced, is_remembered=event.is_remembered)
            draft.journal("run.rewritten", messages=len(messages))
        case Warned(setting, text, kind):
            warn(draft, setting, text, kind)
        case OutputAsked(message):
            draft.change(phase="finalizing")
            draft.append(message)
        case OutputRejected():
            _reject_output(draft, event)
        case VerificationStarted():
            start_verification(draft)
        case VerificationEnded():
            if ending := end_verification(draft, event):
                _fold(draft, ending)
        case InputsGiven(messages):
            draft.inputs_given = True
            draft.append(*messages)
            draft.journal("run.inputs", count=len(messages))
        case BudgetStood(charged):
            watch_budgets(draft, charged)
        case ModelCallStarted(call):
            _start_model_call(draft, call)
        case ModelReplied():
            _fold_reply(draft, event)
        case ModelCallFailed():
            _fold_model_failure(draft, event)
        case ModelFailedOver():
            warn(draft, "fallbackModels", fail_over(draft, event))
        case HistoryPruned(layer, compaction):
            draft.compact(compaction)
            draft.journal("history.compacted", layer=layer, before_tokens=event.before_tokens, after_tokens=event.after_tokens)
        case SummaryStarted(call):
            start_summary(draft, call)
        case HistorySummarized():
            fold_summary(draft, event)
        case ContextOverflowed(error, billed):
            close_call(draft, "released" if billed == "no" else "unknown")
            draft.move(overflow="refused")
            draft.journal("model.failed", step=draft.step, error=error.get("code"), retry_in_ms=0)
        case ModelCallAbandoned():
            abandon_call(draft)
        case CallStarted() | CallRejected() | CallExecuted() | CallFailed() | CallCompleted() | CallUnprojectable():
            _fold_call(draft, event)
        case CallDelegated(child=child):
            _fold_call(draft, event)
            draft.children = (*draft.children, child)
        case ChildEnded():
            _fold_child(draft, event)
        case HandedOff():
            hand_off(draft, event)
        case TurnAnswered():
            _answer_turn(draft, event)
        case Suspended():
            _suspend(draft, event)
        case Resumed():
            _resume(draft, event)
        case Reopened():
            draft.change(error=None, retry=None, reason=None, stop_details=None)
            draft.move(retries=0, new_turn=True, input_checked=False)
            draft.journal("run.retried")
        case Finished():
            _finish(draft, event)
        case Waited(due_in_ms):
            draft.due_in_ms = due_in_ms
        case _:
            fold_memory(draft, event)


def _fold_notes(draft: Draft, event: NotesFolded) -> None:
    # Words and messages may stand behind what the step had carried, and notes that came later ahead of them.
    draft.change(seen_seq=max(draft.value("seen_seq"), event.seen_seq))
    if event.policy is not None:
        narrow(draft, event.policy)
    charge(draft, event.shared)
    if event.verdicts and draft.status == "running" and draft.point("taken_up"):
        fold_late_verdicts(draft, event.verdicts)
    for place, kind in event.unreadable:
        draft.journal("run.note_unreadable", place=place, note=kind)
    if draft.status == "suspended" and not event.cancelled:
        draft.due_in_ms = None
    if event.cancelled and not draft.value("cancelled"):
        reason = event.cancel_reason
        draft.change(cancelled=True, stop_details=None if reason is None else {"cancel_reason": bounded(reason)})
        draft.journal("run.cancelling")
    if event.messages:
        if draft.open_calls:
            draft.change(held=(*draft.value("held"), *event.messages))
        else:
            draft.append(*event.messages)
        draft.journal("run.message", count=len(event.messages))
    for word in accepted(event.words, draft.receipts, draft.settled_calls):
        draft.move(input_checked=False)  # the run had stopped for it, so what follows is a leg of its own
        if word.again:
            draft.retry_verdicts = {**draft.retry_verdicts, word.call_id: word.verdict}
        elif word.is_error:
            _fold_call(draft, CallFailed(word.call_id, render(word.output), reconciled=True))
        else:
            _fold_call(draft, CallExecuted(word.call_id, word.output, reconciled=True))


def _start_model_call(draft: Draft, call: OpenCall) -> None:
    if draft.point("open_call") is not None:
        abandon_call(draft)
    leave_verification(draft)
    step = draft.point("step")
    if not draft.point("attempts") or draft.point("new_turn"):
        step += 1
        draft.receipts = {}
        draft.projected = frozenset()
        if draft.value("phase") == "finalizing":
            draft.move(output_attempts=draft.point("output_attempts") + 1)
        if draft.point("overflow") == "retried":
            draft.move(overflow="none")
    if draft.point("overflow") == "refused":
        draft.move(overflow="retried")
    draft.move(step=step, attempts=draft.point("attempts") + 1, new_turn=False)
    open_call(draft, call, **(draft.place if step == call.attempt == 1 else {}))


def _fold_reply(draft: Draft, event: ModelReplied) -> None:
    used = event.usage
    call: OpenCall | None = draft.point("open_call")
    if used is not None and used.input_tokens and call is not None and call.input_tokens:
        draft.change(calibration=calibration_of(call.input_tokens, used.input_tokens))
    close_call(draft, "unknown" if used is None else "settled", used)
    draft.move(attempts=0, retries=0, reruns=0, cut_off=event.finish_reason == "length", overflow="none")
    add_usage(draft, used, event.model)
    draft.progress = True
    draft.append(identify_calls(event.message, draft.step))
    calls = len(event.message.tool_uses)
    draft.journal(
        "model.replied",
        step=draft.step,
        finish_reason=event.finish_reason,
        calls=calls,
        model=None if call is None else call.model,
        input_tokens=used.input_tokens if used else None,
        output_tokens=used.output_tokens if used else None,
    )
    if calls and event.finish_reason in ("content_filter", "length"):
        answer_undispatched(draft, event.finish_reason)
    if event.finish_reason == "content_filter":
        _end_with(draft, Finished("stopped", "refusal"))
    elif event.finish_reason == "length" and calls:
        _end_with(draft, Finished("stopped", "length", {"cut_off_calls": calls}))
    elif event.finish_reason == "length" and draft.value("finalizes"):
        _end_with(draft, Finished("stopped", "length"))


def _end_with(draft: Draft, ended: Finished) -> None:
    """The end that follows from an event. Not of a run whose cancel was taken in: that ends as aborted, whatever came."""
    if not draft.value("cancelled"):
        _fold(draft, ended)


def _reject_output(draft: Draft, event: OutputRejected) -> None:
    attempts: int = draft.point("output_attempts")
    draft.journal("output.rejected", step=draft.step, attempt=attempts)
    most: int = draft.value("limits").max_output_attempts
    if attempts >= most:
        details = {"max_output_attempts": most, "problem": event.problem}
        _end_with(draft, Finished("stopped", "output-attempts-exhausted", details))
    else:
        draft.append(ask_for_repair(event.problem))


def _fold_model_failure(draft: Draft, event: ModelCallFailed) -> None:
    purpose = purpose_of(draft.point("open_call"))
    close_call(draft, "released" if event.billed == "no" else "unknown")
    retry = None if event.kind is None else {**event.error, "kind": event.kind}
    error = event.error.get("code")
    draft.journal("model.failed", step=draft.step, error=error, retry_in_ms=event.retry_in_ms, purpose=purpose)
    if event.retry_in_ms is None:
        _end_with(draft, Finished("failed", error=event.error, retry=retry))
        return
    draft.change(retry=retry)
    if event.reruns:
        draft.move(retries=0, reruns=draft.point("reruns") + 1, new_turn=True)
        draft.journal("run.retried", rerun=draft.point("reruns"))
    else:
        draft.move(retries=draft.point("retries") + 1)
    draft.due_in_ms = event.retry_in_ms


CallEvent = CallStarted | CallRejected | CallDelegated | CallExecuted | CallFailed | CallCompleted | CallUnprojectable


def _fold_call(draft: Draft, event: CallEvent) -> None:
    before = draft.receipts.get(event.call_id)
    stage: Stage = next_stage(before.stage if before else None, type(event).__name__)
    if before is None:
        tool = event.tool if isinstance(event, CallStarted | CallRejected | CallDelegated) else ""
        receipt = Receipt(draft.step, event.call_id, 0, stage, tool)
    else:
        receipt = successor(before, seq=before.seq + 1, stage=stage)
    detail: dict[str, object] = {}
    match event:
        case CallStarted():
            attempt = 1 if before is None else before.attempt + 1
            idempotent = event.idempotent if before is None else before.idempotent
            receipt, name = successor(receipt, attempt=attempt, idempotent=idempotent), "tool.started"
            draft.starts = True
            draft.retry_verdicts = {name: given for name, given in draft.retry_verdicts.items() if name != event.call_id}
            detail["attempt"] = attempt
        case CallRejected():
            receipt = successor(receipt, error=event.error, outcome=event.outcome, reason=event.reason)
            name = "tool.rejected"
        case CallDelegated():
            receipt, name = successor(receipt, child=event.child.run_id), "child.started"
            detail |= {"child": event.child.run_id, "agent": event.child.agent}
        case CallExecuted():
            receipt = successor(receipt, value=event.value, reconciled=event.reconciled)
            name = "tool.executed"
        case CallFailed():
            receipt = successor(receipt, error=event.error, outcome=event.outcome, reason=event.reason)
            receipt, name = successor(receipt, reconciled=event.reconciled), "tool.failed"
        case CallCompleted():
            receipt, name = successor(receipt, text=event.text, error=None, outcome=None, reason=None), "tool.completed"
        case CallUnprojectable():
            outcome: CallOutcome = "invalid-result" if event.stage == "validation-failed" else "projection-failed"
            receipt, name = successor(receipt, stage=event.stage, error=event.error, outcome=outcome), "tool.completed"
            detail["stage"] = event.stage
            draft.projected |= {event.call_id}
    _save_receipt(draft, receipt, before)
    if not isinstance(event, CallStarted):
        draft.progress = True
    if name == "tool.completed":
        draft.unjournal("tool.executed", receipt.step, receipt.call_id)
    if receipt.outcome is not None:
        detail["outcome"] = receipt.outcome
    if receipt.reconciled:
        detail["reconciled"] = True
    draft.journal(name, step=receipt.step, call_id=receipt.call_id, tool=receipt.tool, **detail)


def _fold_child(draft: Draft, event: ChildEnded) -> None:
    """What the child and everybody below it used counts for the run too (SUB-005)."""
    usage: Usage = draft.value("usage")
    draft.change(
        usage=usage + event.usage,
        settled_cost_micros=added(draft.value("settled_cost_micros"), event.settled_cost_micros),
        unknown_tokens=draft.value("unknown_tokens") + event.unknown_tokens,
        unknown_cost_micros=added(draft.value("unknown_cost_micros"), event.unknown_cost_micros),
        unsettled_tokens=draft.value("unsettled_tokens") + event.unsettled_tokens,
    )
    _fold_call(draft, event.outcome)


def _save_receipt(draft: Draft, receipt: Receipt, before: Receipt | None) -> None:
    """One row per call and commit: stages passed since the last commit are stored as the last of them."""
    pairs = list(draft.unsaved_receipts)
    for place, (unsaved, stored) in enumerate(pairs):
        if (unsaved.step, unsaved.call_id) == (receipt.step, receipt.call_id):
            receipt = successor(receipt, seq=unsaved.seq)
            pairs[place] = (receipt, stored)
            break
    else:
        pairs.append((receipt, before))
    draft.receipts = {**draft.receipts, receipt.call_id: receipt}
    draft.unsaved_receipts = tuple(pairs)


def _answer_turn(draft: Draft, event: TurnAnswered) -> None:
    parts = tuple(_guarded_part(draft, call, event) for call in draft.open_calls)
    draft.append(Message("tool", parts), *draft.value("held"))
    draft.change(verdicts={}, held=())
    draft.move(taken_up=False)
    draft.journal("turn.answered", step=draft.step, calls=len(parts), **draft.place)
    _count_tool_errors(draft, parts)


TOOL_ERRORS_IN_A_ROW = 3
"""Turns with an error of the same tool after which the run stops (PTH-015)."""


def _count_tool_errors(draft: Draft, parts: tuple[ToolResultPart, ...]) -> None:
    """A turn without an error of the tool, or with a success beside it, begins anew; what somebody decided is no error."""
    failed = {part.name for part in parts if part.outcome is not None and part.outcome not in NO_TOOL_ERRORS}
    failed -= {part.name for part in parts if not part.is_error}
    before: Mapping[str, int] = draft.point("tool_errors")
    counts = {name: before.get(name, 0) + 1 for name in sorted(failed)}
    if counts or before:
        draft.move(tool_errors=counts)
    worst = max(counts, key=lambda name: counts[name], default=None)
    if worst is not None and counts[worst] >= TOOL_ERRORS_IN_A_ROW:
        _end_with(draft, Finished("stopped", "tool-errors", {"tool": worst, "turns": counts[worst]}))


def _guarded_part(draft: Draft, call: ToolUsePart, event: TurnAnswered) -> ToolResultPart:
    """The result as the model gets it; a guardrail's text stands in the message alone, the receipt keeps the truth."""
    part = _result_part(draft.receipts[call.call_id], call, event.texts)
    text = event.guarded.get(call.call_id)
    if text is None:
        return part
    if call.call_id in event.withheld:
        return replace(part, text=text, receipt_step=None, is_error=True, outcome="withheld")
    return replace(part, text=text, receipt_step=None)


def _result_part(receipt: Receipt, call: ToolUsePart, texts: Mapping[str, str]) -> ToolResultPart:
    if receipt.error is not None:
        outcome = receipt.outcome or "error"
        return ToolResultPart(
            call.call_id, call.name, receipt.error, True, None, call.provider_call_id, outcome, receipt.reason
        )
    if receipt.text is not None or receipt.value is MISSING:
        return ToolResultPart(call.call_id, call.name, receipt.text or "", False, None, call.provider_call_id)
    return ToolResultPart(call.call_id, call.name, texts[call.call_id], False, receipt.step, call.provider_call_id)


def _suspend(draft: Draft, event: Suspended) -> None:
    counts: dict[str, int] = dict(draft.point("approval_request_counts"))
    for call_id in event.call_ids:
        counts[call_id] = counts.get(call_id, 0) + 1
    draft.move(approval_request_counts=counts)
    draft.items = event.items
    times = [item.expires_in_ms for item in event.items] + [event.due_in_ms]
    draft.due_in_ms = min((in_ms for in_ms in times if in_ms is not None), default=None)
    draft.journal("run.suspended", step=draft.step, items=[item.item_id for item in event.items])


def _resume(draft: Draft, event: Resumed) -> None:
    draft.change(verdicts={**draft.value("verdicts"), **event.verdicts})
    draft.move(taken_up=True, input_checked=False)
    draft.journal("run.resumed", answers=event.answers)
    for call in draft.open_calls:
        verdict = event.verdicts.get(call.call_id)
        if verdict is None:
            continue
        digest, by = verdict.get("digest"), verdict.get("by")
        kind = "call.approved" if verdict.get("approved") is True else "call.denied"
        draft.journal(kind, step=draft.step, call_id=call.call_id, by=by, edited_to=digest)


def _finish(draft: Draft, event: Finished) -> None:
    if draft.point("open_call") is not None:
        abandon_call(draft)
    draft.move(verifying=False)
    draft.change(
        reason=event.reason,
        stop_details=event.details,
        error=event.error,
        retry=event.retry,
        output=event.output,
        has_output=event.has_output,
        verdicts={},
    )
    draft.due_in_ms = 0 if draft.has_children else None  # the cancel of what it delegated is work after the end
    begin_extraction(draft)
    error = None if event.error is None else event.error.get("code") or event.error.get("name")
    draft.journal(f"run.{event.status}", reason=event.reason, error=error)
