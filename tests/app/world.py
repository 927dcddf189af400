"""Stores that outlive a process, and processes that come and go over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from deuz_workers import Agent, Deuz, Reducer, Settings
from deuz_workers.core.change import Head, ReceiptRow
from deuz_workers.core.receipts import Receipt, fold_receipts
from deuz_workers.leases import memory_leases
from deuz_workers.ports.store import Loaded, RunStore
from deuz_workers.store import SqlStore
from deuz_workers.testing.crashing_store import CrashingStore

NEVER = 1_000_000
"""More commits than any test makes."""


@dataclass
class World:
    """One database, seen by one process after the other."""

    url: str
    store: SqlStore
    opened: list[Deuz] = field(default_factory=list[Deuz])

    def process(
        self,
        *agents: Agent,
        reducers: Iterable[Reducer] = (),
        store: RunStore | None = None,
        ttl_ms: int = 30_000,
        **given: Any,
    ) -> Deuz:
        """An application as a new process sees it: the same database, and leases in which those of the dead have lapsed."""
        settings = Settings(
            database_url=self.url, redis_url=None, broker_url=None, leases_url="memory://", lease_ttl_ms=ttl_ms, **given
        )
        app = Deuz(agents, reducers=reducers, settings=settings, store=store or self.store, leases=memory_leases())
        self.opened.append(app)
        return app

    def elsewhere(self, *agents: Agent) -> Deuz:
        """Another process while the first goes on: over a store object of its own, by which a process knows what it drives."""
        return self.dying(*agents, at=NEVER)

    def dying(self, *agents: Agent, at: int, applied: bool = False, reducers: Iterable[Reducer] = ()) -> Deuz:
        """One that ends at its commit number `at`."""
        store = CrashingStore(self.store, at, applied=applied)
        return self.process(*agents, reducers=reducers, store=store.as_store)

    async def later(self, ms: int) -> None:
        """The database's clock stands at `ms` from now: what was put off until then is due."""
        self.store.now = await self.store.now_ms() + ms

    async def loaded(self, run_id: str, scope: str = "default") -> Loaded:
        loaded = await self.store.load(scope, run_id)
        assert loaded is not None
        return loaded

    async def head(self, run_id: str, scope: str = "default") -> Head:
        return (await self.loaded(run_id, scope)).head

    async def receipts(self, run_id: str) -> dict[tuple[int, str], Receipt]:
        """By turn and call id, as stored."""
        return fold_receipts((await self.loaded(run_id)).receipts)

    async def receipt_rows(self, run_id: str) -> tuple[ReceiptRow, ...]:
        return (await self.loaded(run_id)).receipts

    async def close(self) -> None:
        for app in self.opened:
            await app.leases.close()
        await self.store.close()


@dataclass
class Effects:
    """What tools did to the world, by key."""

    done: Counter[str] = field(default_factory=Counter[str])

    def __call__(self, key: str) -> None:
        self.done[key] += 1
