"""The ledger that a run spends from, as its result reports it."""

from __future__ import annotations

from deuz_workers.core.accounting import Accounting, Amount, accounting_of
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.usage import Budget
from deuz_workers.ports.store import Loaded, RunStore


async def accounting(store: RunStore, loaded: Loaded) -> Accounting:
    """Of the nearest budget that the run's calls reserve in, whoever else does; without one, of its own calls.

    A budget is read as it stands now. Raises `CheckpointVersionError` or `CodecError` for rows of another build.
    """
    envelope = decode_envelope(loaded.head)
    own = accounting_of(envelope)
    balance = await store.balance(envelope.scopes[0]) if envelope.scopes else None
    if balance is None:
        return own
    # With a limit in dollars nothing is admitted whose price is not known; without one the run can only speak for itself.
    is_priced = balance.limit.usd_micros is not None
    is_own = envelope.scopes[0] == run_scope_key(envelope.rid)

    def amount(total: Budget, mine: Amount) -> Amount:
        is_known = is_priced or (is_own and mine.cost_micros is not None)
        return Amount(total.tokens or 0, total.usd_micros if is_known else None)

    return Accounting(
        amount(balance.spent, own.spent), amount(balance.held, own.reserved), amount(balance.unknown, own.unknown)
    )
