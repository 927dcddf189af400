"""Folding what happens to a run's memory into its record."""

from __future__ import annotations

from dataclasses import replace

from deuz_workers.core.draft import Draft
from deuz_workers.core.memory_events import (
    ExtractionAdmitted,
    ExtractionEnded,
    ExtractionPlanned,
    ExtractionProgressed,
    ExtractionReopened,
    MemoryAttached,
    MemoryEvent,
    MemoryRecalled,
    RecallStarted,
)
from deuz_workers.core.open_call import abandon_call, add_usage, close_call, open_call
from deuz_workers.core.run import Run
from deuz_workers.core.run_memory import Extraction, RunMemory
from deuz_workers.core.usage import Usage


def fold_memory(draft: Draft, event: MemoryEvent) -> None:
    match event:
        case MemoryAttached(scope, extracts, given):
            draft.change(memory=RunMemory(scope, extracts, given))
        case RecallStarted(call):
            open_call(draft, call)
        case MemoryRecalled():
            _fold_recall(draft, event)
        case ExtractionAdmitted(call):
            if draft.point("open_call") is not None:
                abandon_call(draft)
            before = _extraction(draft)
            _extract(draft, replace(before, status="pending", planned=None, mutations=0, attempts=before.attempts + 1))
            open_call(draft, call)
        case ExtractionPlanned(planned, usage, model):
            _settle(draft, usage, model)
            _extract(draft, replace(_extraction(draft), planned=planned))
            draft.progress = True
            draft.journal("memory.planned", planned=planned)
        case ExtractionProgressed(mutations):
            _extract(draft, replace(_extraction(draft), mutations=mutations))
        case ExtractionEnded(outcome, released):
            close_call(draft, "released" if released else "unknown")
            _extract(draft, outcome)
            draft.change(phase="finalizing" if draft.value("finalizes") or draft.value("verifies") else "loop")
            draft.due_in_ms = None
            error = None if outcome.error is None else outcome.error.get("code")
            draft.journal(f"memory.{outcome.status}", mutations=outcome.mutations, error=error)
        case ExtractionReopened():
            _extract(draft, replace(_extraction(draft), status="pending", attempts=0))
            draft.change(phase="extracting")


def begin_extraction(draft: Draft) -> None:
    """Behind the end of a completed run: it stays due until the outcome of its extraction is saved (MEM-009, MEM-032)."""
    memory: RunMemory | None = draft.value("memory")
    if memory is None or not memory.extracts or draft.status != "completed":
        return
    _extract(draft, Extraction("pending", draft.envelope.rid.hex))
    draft.change(phase="extracting")
    draft.due_in_ms = 0


def not_admitted(run: Run, code: str) -> ExtractionEnded:
    """Its reservation was refused, so nothing of it begins."""
    memory = run.envelope.memory
    assert memory is not None
    assert memory.extraction is not None
    message = "no budget had room for the extraction of what the run said; reconcile the run once there is"
    error = {"name": "BudgetLedgerError", "code": code, "message": message}
    return ExtractionEnded(replace(memory.extraction, status="failed", error=error))


def _fold_recall(draft: Draft, event: MemoryRecalled) -> None:
    _settle(draft, event.usage, event.model)
    memory: RunMemory = draft.value("memory")
    draft.change(memory=replace(memory, recall=event.record))
    if event.message is not None:
        draft.append(event.message)
    draft.journal("memory.recalled", status=event.record.get("status"), count=event.record.get("count"))


def _settle(draft: Draft, used: Usage | None, model: str) -> None:
    """The open call has ended. What is charged elsewhere is no part of the run's usage."""
    call = draft.point("open_call")
    if call is None:
        return
    close_call(draft, "unknown" if used is None else "settled", used)
    if call.scopes is None:
        add_usage(draft, used, model)


def _extraction(draft: Draft) -> Extraction:
    memory: RunMemory = draft.value("memory")
    assert memory.extraction is not None
    return memory.extraction


def _extract(draft: Draft, extraction: Extraction) -> None:
    memory: RunMemory = draft.value("memory")
    draft.change(memory=replace(memory, extraction=extraction))
