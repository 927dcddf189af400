"""Compacting the ledger of runs that have ended: sums in the place of calls; `deuz budget compact`."""

from __future__ import annotations

from deuz_workers.app.access import not_found
from deuz_workers.core.change import FINAL
from deuz_workers.errors import RunNotEndedError
from deuz_workers.ports.budgets import LedgerCompaction, StillOpen
from deuz_workers.ports.store import RunStore


async def compact(store: RunStore, scope: str, run_id: str, *, actor: str, reason: str = "") -> LedgerCompaction:
    """Replace the settled calls of an ended run and of all below it (tasks, delegated runs) by sums, and write down who did.

    What was spent of each budget, and by which model, stays what it was. A call whose outcome nobody knows stays a row of its
    own, counted as unknown, so that `ledger.holds` lists it and `ledger.release_hold` frees it. Runs that a tool started in the
    execution context of another are not below that one; each is compacted by its own id. Again, it finds nothing to do.

    Raises `RunNotEndedError` where one of them goes on, waits, is parked, or has work left behind its end, `RunNotFoundError`.
    Nothing was written then.
    """
    done = await store.compact_ledger(scope, run_id, actor=actor, reason=reason)
    if done is None:
        raise not_found(scope, run_id)
    if isinstance(done, StillOpen):
        below = "" if done.run_id == run_id else f", which is below {run_id!r},"
        if done.parked is not None:
            why, way_out = f"is parked ({done.parked})", "retry, reconcile or cancel it, and compact once it has ended"
        elif done.status in FINAL:
            why, way_out = f"is {done.status} and has work left behind its end", "compact once that is done"
        else:
            why, way_out = f"is {done.status}", "compact once it has ended"
        raise RunNotEndedError(f"run {done.run_id!r}{below} {why}; {way_out}", run_id=done.run_id, status=done.status)
    return done
