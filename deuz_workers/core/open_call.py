"""The model call that is open: how it begins and ends in the record of a run, and what is settled with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from deuz_workers.core.accounting import added
from deuz_workers.core.budget_warning import stood
from deuz_workers.core.change import Reserve, ScopeUse, Settle
from deuz_workers.core.draft import Draft
from deuz_workers.core.envelope import OpenCall
from deuz_workers.core.events import HistorySummarized, ModelFailedOver
from deuz_workers.core.failover import FailOver, Models, short
from deuz_workers.core.usage import Usage

NO_USAGE = Usage()


def open_call(draft: Draft, call: OpenCall, **place: int) -> None:
    """`place`: what the journal says beside it of where the history stands."""
    draft.move(open_call=call)
    draft.starts = True
    scopes = draft.envelope.scopes if call.scopes is None else call.scopes
    if scopes:
        draft.reserve = Reserve(
            call.request_id,
            scopes,
            call.tokens,
            call.cost_micros,
            draft.envelope.shared if call.scopes is None else call.shared,
            call.charged_model,
            call.uncounted,
            call.warn_percent,
        )
    purpose, model = purpose_of(call), call.model
    draft.journal("model.called", step=draft.step, attempt=call.attempt, purpose=purpose, model=model, **place)


def purpose_of(call: OpenCall | None) -> str | None:
    """None for what most calls are for."""
    return None if call is None or call.purpose == "turn" else call.purpose


def start_summary(draft: Draft, call: OpenCall) -> None:
    if draft.point("open_call") is not None:
        abandon_call(draft)
    draft.move(summaries=draft.point("summaries") + 1)
    open_call(draft, call)


def fold_summary(draft: Draft, event: HistorySummarized) -> None:
    used = event.usage
    close_call(draft, "unknown" if used is None else "settled", used)
    add_usage(draft, used, event.model)
    draft.move(retries=0)
    draft.progress = True
    draft.compact(event.compaction)
    draft.journal(
        "history.compacted",
        layer="summary",
        before_tokens=event.before_tokens,
        after_tokens=event.after_tokens,
        input_tokens=used.input_tokens if used else None,
        output_tokens=used.output_tokens if used else None,
    )


def fail_over(draft: Draft, event: ModelFailedOver) -> str:
    """The turn goes on with another model; what the run is warned of is returned."""
    close_call(draft, "released" if event.billed == "no" else "unknown")
    phase, before = draft.value("phase"), draft.value("models")
    failed_over = FailOver(event.step, event.attempt, phase, event.failed, event.next, event.kind, short(event.error))
    draft.change(models=Models((*(() if before is None else before.failovers), failed_over)), retry=None)
    draft.move(retries=0, overflow="none")
    failed, following = event.failed.name, event.next.name
    draft.journal("model.failed", step=event.step, error=event.error.get("code"), model=failed, next_model=following)
    return f"{failed} failed in turn {event.step} ({event.kind}); the run goes on with {following}"


def add_usage(draft: Draft, used: Usage | None, model: str) -> None:
    if used is not None and model:
        by_model: Mapping[str, Usage] = draft.value("usage_by_model")
        draft.change(usage_by_model={**by_model, model: by_model.get(model, NO_USAGE) + used})
    usage: Usage = draft.value("usage")
    draft.change(usage=usage + used if used is not None else replace(usage, cost_micros=None), retry=None)


def abandon_call(draft: Draft) -> None:
    purpose = purpose_of(draft.point("open_call"))
    close_call(draft, "unknown")
    draft.journal("model.abandoned", step=draft.step, purpose=purpose)


def close_call(draft: Draft, outcome: Literal["settled", "released", "unknown"], used: Usage | None = None) -> None:
    """The open model call has ended; its reservation, if it has one, is settled in the same commit."""
    call: OpenCall | None = draft.point("open_call")
    if call is None:
        return
    draft.move(open_call=None)
    is_own = call.scopes is None  # what is charged elsewhere is not counted here
    if outcome == "settled" and used is not None and used.cost_micros is None and call.cost_micros is not None:
        # Money was reserved for it, and what it costs is not known: the estimate stays held (LED-001, BUD-007).
        if is_own:
            draft.change(unsettled_tokens=draft.value("unsettled_tokens") + used.total_tokens)
        outcome = "unknown"
    if not is_own:
        pass
    elif outcome == "unknown":
        draft.change(unknown_tokens=draft.value("unknown_tokens") + call.tokens)
        draft.change(unknown_cost_micros=added(draft.value("unknown_cost_micros"), call.cost_micros))
    elif outcome == "settled" and used is not None:
        draft.change(settled_cost_micros=added(draft.value("settled_cost_micros"), used.cost_micros))
    scopes = draft.envelope.scopes if call.scopes is None else call.scopes
    if not scopes:
        return
    if outcome == "settled" and used is not None:
        settle = Settle(call.request_id, scopes, "settled", used.total_tokens, used.cost_micros, used)
    else:
        settle = Settle(call.request_id, scopes, outcome)
    draft.settle = (*draft.settle, settle)


def watch_budgets(draft: Draft, charged: tuple[ScopeUse, ...]) -> None:
    warnings, told = stood(charged, draft.value("warned"))
    draft.change(warned=told)
    for warning in warnings:
        draft.journal("budget.warned", key=warning.key, dimension=warning.dimension, percent=warning.percent)
