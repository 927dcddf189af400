"""A verdict that nobody had been asked for any more: on a gated call of a turn that is being settled (APR-012)."""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.core.approval import people_of
from deuz_workers.core.draft import Draft
from deuz_workers.core.pending_item import binding_of_call


def fold_late_verdicts(draft: Draft, given: Mapping[str, Mapping[str, object]]) -> None:
    """On calls of the turn that have neither begun nor a verdict yet (APR-012)."""
    for call in draft.open_calls:
        verdict = given.get(binding_of_call("approval", draft.value("run_id"), draft.step, call).item_id)
        known: Mapping[str, Mapping[str, object]] = draft.value("verdicts")
        if verdict is None or call.call_id in known or call.call_id in draft.receipts:
            continue
        said = {name: value for name, value in verdict.items() if name != "token"}
        draft.change(verdicts={**known, call.call_id: {**said, "late": True}})
        kind = "call.approved" if verdict.get("approved") is True else "call.denied"
        draft.journal(kind, step=draft.step, call_id=call.call_id, by=", ".join(people_of(verdict)) or None)
