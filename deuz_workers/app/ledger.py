"""The ledger: what a run spends from, as its result reports it, and what operators ask about budgets and say."""

from __future__ import annotations

from uuid import UUID

from deuz_workers.core.accounting import Accounting, Amount, accounting_of
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.shared_budget import RESERVED, SharedBudget, Window
from deuz_workers.core.usage import Budget, check_budget
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.budgets import AuditRow, ModelUse, ScopeBalance, UnknownHold
from deuz_workers.ports.store import Loaded, RunStore

MAX_SLICES = 64
"""More than a machine has processors to serve them."""


async def accounting(store: RunStore, loaded: Loaded) -> Accounting:
    """Of the nearest budget of the run, its swarm or its parent, whoever else spends from it; without one, of its own calls and
    of those of runs that were started in its execution context.

    A budget is read as it stands now. Raises `CheckpointVersionError` or `CodecError` for rows of another build.
    """
    envelope = decode_envelope(loaded.head)
    own = accounting_of(envelope)
    shared = {budget.key for budget in envelope.shared}
    nearest = next((key for key in envelope.scopes if key not in shared), None)
    balance = None if nearest is None else await store.balance(nearest)
    if balance is None:
        below = await store.balance(run_scope_key(envelope.rid))
        return own if below is None else own.with_nested(below.spent.tokens, below.held.tokens, below.unknown.tokens)
    # With a limit in dollars nothing is admitted whose price is not known; without one the run can only speak for itself.
    is_priced = balance.limit.usd_micros is not None
    is_own = nearest == run_scope_key(envelope.rid)

    def amount(total: Budget, mine: Amount) -> Amount:
        is_known = is_priced or (is_own and mine.cost_micros is not None)
        return Amount(total.tokens or 0, total.usd_micros if is_known else None)

    return Accounting(
        amount(balance.spent, own.spent), amount(balance.held, own.reserved), amount(balance.unknown, own.unknown)
    )


# -- what operators ask and say; `deuz budget` -----------------------------------------------------------------------------


async def set_budget(
    store: RunStore,
    key: str,
    limit: Budget,
    *,
    window: Window | None = None,
    warn_at_percent: int | None = None,
    slices: int | None = None,
    actor: str,
    reason: str = "",
) -> ScopeBalance:
    """Limit a shared budget, or one of a run by its key `run:...`, and write down who did; how it stands now.

    What is None of the others stays as it is. Raises `ConfigurationError` for what cannot be meant, `BudgetLedgerError` for a
    window other than that of its first use; nothing was written then.
    """
    check_budget(f"budget scope {key!r}", limit)
    if key.startswith(RESERVED):
        if await store.balance(key) is None:
            told = f"there is no budget of a run under {key!r}; it has one if it was started with one"
            raise ConfigurationError(told, code="no_budget")
    else:
        SharedBudget(key, warn_at_percent=warn_at_percent)
    if slices is not None and (type(slices) is not int or not 0 <= slices <= MAX_SLICES):
        raise ConfigurationError(f"a budget has 0 to {MAX_SLICES} slices, not {slices!r}")
    before = await store.balance(key)
    if slices and (window is not None or (before is not None and before.window is not None)):
        raise ConfigurationError(f"budget scope {key!r} has a window, and what slices were granted would outlive it; take none")
    told = {"actor": actor, "reason": reason}
    await store.set_budget(key, limit, window=window, warn_at_percent=warn_at_percent, slices=slices, **told)
    return await budget(store, key)


async def budget(store: RunStore, key: str) -> ScopeBalance:
    """How it stands now. Raises `ConfigurationError` for one that nobody has set or used."""
    found = await store.balance(key)
    if found is None:
        told = f"there is no budget {key!r}: nobody has set it, and no run was charged to it"
        raise ConfigurationError(told, code="no_budget")
    return found


async def usage(store: RunStore, key: str, since_ms: int | None = None) -> tuple[ModelUse, ...]:
    """By model, since a moment (Unix time, milliseconds) or in all. Raises like `budget`."""
    await budget(store, key)
    return await store.usage(key, since_ms)


async def holds(store: RunStore, key: str | None = None, *, older_ms: int = 0, limit: int = 100) -> tuple[UnknownHold, ...]:
    """Calls whose outcome nobody knows, oldest first: their estimates count until somebody releases them."""
    return await store.holds(key, older_ms=older_ms, limit=limit)


async def release_hold(store: RunStore, request_id: str, *, actor: str, reason: str = "") -> tuple[str, ...]:
    """Free what an unknown call holds in all its budgets, and write down who did; the keys of these.

    Raises `ConfigurationError` where nothing is unknown under that id: the call is at work, settled, or was released before.
    """
    try:
        rid = UUID(hex=request_id.partition(":")[0])
    except ValueError:
        raise ConfigurationError(
            f"{request_id!r} is no id of a model call; `deuz budget holds` lists those that can be", code="no_hold"
        ) from None
    keys = await store.release_hold(rid, request_id, actor=actor, reason=reason)
    if not keys:
        raise ConfigurationError(
            f"nothing is held by an unknown call {request_id!r}: it is at work, settled, or was released before; "
            "`deuz budget holds` lists those that can be",
            code="no_hold",
        )
    return keys


async def audit(store: RunStore, key: str | None = None, *, limit: int = 100) -> tuple[AuditRow, ...]:
    """What was done to budgets, newest first."""
    return await store.budget_audit(key, limit=limit)
