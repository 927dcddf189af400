"""Shared budgets that are named when a run is resumed: more of them, or stricter limits, and never another window."""

from __future__ import annotations

from dataclasses import replace

from deuz_workers.app.order import SharedBudgets, shared_budgets
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.shared_budget import SharedBudget, Window
from deuz_workers.errors import BudgetLedgerError
from deuz_workers.ports.store import Loaded, RunStore


async def added_budgets(store: RunStore, loaded: Loaded, given: SharedBudgets) -> tuple[SharedBudget, ...]:
    """`given` as the run can be held to it; a limit without a window counts in the one that its key has.

    Raises `BudgetLedgerError` (`window_mismatch`) for a window other than a key has, as the run is held to it or as it is
    stored; `ConfigurationError` for what cannot be meant; store errors. Nothing was written then.
    """
    held = {one.key: one for one in decode_envelope(loaded.head).shared}
    found: list[SharedBudget] = []
    for one in shared_budgets(given):
        mine = held.get(one.key)
        stored = await store.balance(one.key)
        if mine is not None and not mine.as_stored:
            has_window, window = True, mine.window
        else:
            has_window, window = stored is not None, None if stored is None else stored.window
        if has_window and one.window is not None and one.window != window:
            raise BudgetLedgerError(
                f"the budget {one.key!r} counts {_spelled(window)} since its first use, not {_spelled(one.window)}; name that "
                "or none, or take another key",
                code="window_mismatch",
                scope=one.key,
            )
        found.append(one if one.as_stored or not has_window else replace(one, window=window))
    return tuple(found)


def _spelled(window: Window | None) -> str:
    return "for life" if window is None else f"in {window.buckets} buckets of {window.ms} ms together"
