"""Budget scopes over SQL: parameters in, rows to values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from deuz_workers.core.shared_budget import Window
from deuz_workers.core.usage import Budget
from deuz_workers.errors import BudgetLedgerError
from deuz_workers.ports.budgets import AuditRow, BudgetStore, LedgerCompaction, ModelUse, ScopeBalance, StillOpen, UnknownHold
from deuz_workers.store.dialect import Row
from deuz_workers.store.rows import balance_of, hold_of, model_use_of


class SqlBudgets(BudgetStore):
    """The part of a SQL store that is about budgets."""

    @abstractmethod
    async def _fetch(self, operation: str, params: Mapping[str, object], connection: Any = None) -> Sequence[Row]: ...

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
        asked = {
            "key": key,
            "tokens": limit.tokens,
            "micros": limit.usd_micros,
            "window_ms": None if window is None else window.ms,
            "buckets": None if window is None else window.buckets,
            "warn_percent": warn_at_percent,
            "slices": slices,
            "actor": actor,
            "reason": reason,
        }
        if not await self._fetch("set_budget", asked):
            raise BudgetLedgerError(
                f"budget scope {key!r} has another window since its first use; name that one or none, or take another key",
                code="window_mismatch",
                scope=key,
            )

    async def balance(self, key: str) -> ScopeBalance | None:
        rows = await self._fetch("balance", {"key": key})
        return balance_of(key, rows[0]) if rows else None

    async def usage(self, key: str, since_ms: int | None = None) -> tuple[ModelUse, ...]:
        return tuple(map(model_use_of, await self._fetch("usage", {"key": key, "since_ms": since_ms})))

    async def holds(self, key: str | None = None, *, older_ms: int = 0, limit: int = 100) -> tuple[UnknownHold, ...]:
        return tuple(map(hold_of, await self._fetch("holds", {"key": key, "older_ms": older_ms, "limit": limit})))

    async def release_hold(self, rid: UUID, request_id: str, *, actor: str, reason: str = "") -> tuple[str, ...]:
        asked = {"rid": rid, "request_id": request_id, "actor": actor, "reason": reason}
        return tuple(str(row["scope_key"]) for row in await self._fetch("release_hold", asked))

    async def compact_ledger(
        self, scope: str, run_id: str, *, actor: str, reason: str = ""
    ) -> LedgerCompaction | StillOpen | None:
        asked = {"scope": scope, "run_id": run_id, "actor": actor, "reason": reason}
        settled = released = 0
        while True:
            rows = await self._fetch("compact_ledger", asked)
            if not rows:
                return None
            [row] = rows
            if row["open_run_id"] is not None:
                return StillOpen(row["open_run_id"], row["open_status"], row["open_parked"])
            settled, released = settled + row["settled"], released + row["released"]
            if not row["again"]:
                return LedgerCompaction(row["runs"], settled, released, row["unknown"], row["waiting"])

    async def budget_audit(self, key: str | None = None, *, limit: int = 100) -> tuple[AuditRow, ...]:
        return tuple(AuditRow(**row) for row in await self._fetch("audit", {"key": key, "limit": limit}))
