"""Budget scopes as reports and operators see them. Reserving and settling are parts of a commit (`core.change`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from deuz_workers.core.shared_budget import Window
from deuz_workers.core.usage import Budget, Usage


@dataclass(frozen=True, slots=True)
class ScopeBalance:
    """A budget scope after folding what was settled: `spent`, `held` (reserved now), `unknown` (holds nobody can settle).

    All three are of its whole life, also where only a window counts.
    """

    key: str
    limit: Budget
    spent: Budget
    held: Budget
    unknown: Budget
    window: Window | None = None
    """None: the limit is for life."""
    in_window: Budget | None = None
    """What counts against the limit in the window now: spent, held and unknown together."""
    warn_at_percent: int | None = None
    slices: int = 0
    """Rows that are asked in its place, so that it is no hot one."""

    @property
    def counted(self) -> Budget:
        """What counts against the limit now."""
        if self.in_window is not None:
            return self.in_window
        parts = (self.spent, self.held, self.unknown)
        return Budget(sum(part.tokens or 0 for part in parts), sum(part.usd_micros or 0 for part in parts))


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What calls of one model used in a scope; `model` is empty where that was not recorded."""

    model: str
    calls: int
    spent: Budget
    held: Budget
    unknown: Budget
    usage: Usage
    """Tokens by kind, of settled calls, and their cost."""


@dataclass(frozen=True, slots=True)
class UnknownHold:
    """A call whose outcome nobody knows, so that its estimate stays counted in `scope_keys` until somebody releases it."""

    rid: UUID
    request_id: str
    tokens: int
    cost_micros: int
    scope_keys: tuple[str, ...]
    at_ms: int
    """When it was reserved, Unix time in milliseconds by the store's clock."""
    age_ms: int
    model: str
    scope: str | None
    """Of its run, with `run_id`; None where the run is gone."""
    run_id: str | None


@dataclass(frozen=True, slots=True)
class LedgerCompaction:
    """What became of the calls of a run and of all below it."""

    runs: int
    """How many there are, with the one that was named."""
    settled: int
    """Calls that are sums from now on, in all of their budgets."""
    released: int
    """Calls that are forgotten, since they cost nothing."""
    unknown: int
    """Calls whose outcome nobody knows: each is still listed, can be released, and counts as unknown."""
    waiting: int
    """Calls that a budget with a window has not taken in yet. They stay until somebody reserves there; compact again then."""


@dataclass(frozen=True, slots=True)
class StillOpen:
    """A run among them that has not ended, so that nothing was done."""

    run_id: str
    status: str
    """Final, where only work behind the end is left to do."""
    parked: str | None
    """Why nobody may step it."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What somebody did to a budget: `set` its limit to `tokens` and `micros`, `released` a hold of so much, or `compacted` so
    much of run `rid` and those below it, which counts as before."""

    at_ms: int
    actor: str
    action: str
    reason: str
    scope_key: str
    rid: UUID | None
    request_id: str | None
    tokens: int | None
    micros: int | None


class BudgetStore(Protocol):
    async def set_budget(
        self,
        key: str,
        limit: Budget,
        *,
        window: Window | None = None,
        warn_at_percent: int | None = None,
        slices: int | None = None,
        actor: str = "",
        reason: str = "",
    ) -> None:
        """Create the scope row or change its limit, and write down who did; what was spent and held stays.

        What is None of the others stays as it is. `slices`: rows that are asked in its place, each granted a part of the limit
        in advance, for scopes in which hundreds of calls a second reserve; a scope with a window takes none. Raises
        `BudgetLedgerError` (`window_mismatch`) for a window other than that of the first use; nothing was written then.
        """
        ...

    async def balance(self, key: str) -> ScopeBalance | None:
        """The scope and its slices as of one moment; None where nobody has used or set it."""
        ...

    async def usage(self, key: str, since_ms: int | None = None) -> tuple[ModelUse, ...]:
        """What was used in a scope, by model, in all or since a moment (Unix time, milliseconds).

        A bucket that `since_ms` falls into counts whole: of the scope's window, else an hour of UTC. It looks at every call.
        """
        ...

    async def holds(self, key: str | None = None, *, older_ms: int = 0, limit: int = 100) -> tuple[UnknownHold, ...]:
        """Calls whose outcome nobody knows, oldest first; those that are held in `key` and were reserved `older_ms` ago."""
        ...

    async def release_hold(self, rid: UUID, request_id: str, *, actor: str, reason: str = "") -> tuple[str, ...]:
        """Free what an unknown call holds, in all its scopes, and write down who did; their keys.

        Works once: empty where the request is none of the run's, is settled, held by a call at work, or was released before.
        """
        ...

    async def compact_ledger(
        self, scope: str, run_id: str, *, actor: str, reason: str = ""
    ) -> LedgerCompaction | StillOpen | None:
        """Replace what is settled of an ended run, and of all that goes with it in `prune`, by sums: of each budget, by model
        and bucket. None where there is no such run.

        No total, balance or usage changes, nor those of its own budget. Calls that were released are forgotten, those whose
        outcome nobody knows stay as they are. `StillOpen` unless all these runs have ended and have no work behind the end;
        nothing was written then. Atomic; again, it finds nothing to do. Who did it is written down for each budget of which
        something was replaced or forgotten.
        """
        ...

    async def budget_audit(self, key: str | None = None, *, limit: int = 100) -> tuple[AuditRow, ...]:
        """What was done to budgets, newest first."""
        ...
