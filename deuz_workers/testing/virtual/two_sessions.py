"""Schedules on a real Postgres: two sessions whose statements are interleaved one by one.

A statement of the first session may keep its transaction, and with it its row locks, until the next statement has been sent
through the second and is done or waits for one of them. So what a statement reads before it waits and what it finds afterwards
differ as they do between two processes, and a seed decides where.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, LiteralString, TypeVar, cast

import psycopg

from deuz_workers.ports.runtime import Clock
from deuz_workers.store.dialect import Row
from deuz_workers.store.migrations import Migration
from deuz_workers.store.postgres import PostgresDialect
from deuz_workers.testing.virtual.witness import Witness

T = TypeVar("T")
LOCKING = frozenset(
    (
        *(
            "commit_plain",
            "commit_settle",
            "commit_reserve",
            "commit",
            "add_note",
            "answer_items",
            "park",
            "record_unclean_end",
            "sweep",
        ),
        *("fill_slots", "settle_swarm", "cancel_tasks", "block_downstream", "take_slot", "fill_key"),
    )
)
"""Operations whose locks somebody may have to wait for."""
TABLES = "select tablename from pg_tables where schemaname = current_schema() and tablename <> 'deuz_schema'"


class TwoSessions:
    """Of a database with the schema and nothing that anybody else needs; used by one schedule after the other."""

    def __init__(self, url: str) -> None:
        """Raises what psycopg does when the database cannot be reached."""
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sessions", daemon=True)
        self._thread.start()
        self._dialect = PostgresDialect(url)
        self._first, self._second, self._watcher = self._wait(self._connect())
        self.holds = False
        """A transaction of the first session is open."""
        self.overlaps = 0
        """Statements that were sent while a transaction of the other session was open."""
        self.waits = 0
        """Those of them that had to wait for a lock of it."""

    def empty(self) -> None:
        """No row is left of the schedule before."""
        self.settle()
        self._wait(self._empty())

    def run(self, operation: str, params: Mapping[str, object], *, holds: bool) -> Sequence[Row]:
        """`holds`: the transaction stays open until the next operation or `settle`; only where none is open."""
        return self._wait(self._run(operation, params, holds))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What is committed, and nothing that is held."""
        self.settle()
        return self._wait(self._rows(query))

    def settle(self) -> None:
        """Nothing is held."""
        if self.holds:
            self._wait(self._commit())

    def close(self) -> None:
        for session in (self._first, self._second, self._watcher):
            self._wait(session.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The schedule stands still meanwhile: for it this takes no time."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connect(self) -> list[psycopg.AsyncConnection[Any]]:
        kept = [await psycopg.AsyncConnection.connect(self._url, autocommit=place > 0) for place in range(3)]
        for session in kept:
            session.prepare_threshold = 2
        return kept

    async def _run(self, operation: str, params: Mapping[str, object], holds: bool) -> Sequence[Row]:
        if not self.holds:
            if not holds:
                return await self._dialect.fetch(operation, params, connection=self._second)
            try:
                rows = await self._dialect.fetch(operation, params, connection=self._first)
            except BaseException:
                await self._first.rollback()
                raise
            self.holds = True
            return rows
        self.overlaps += 1
        sent = asyncio.ensure_future(self._dialect.fetch(operation, params, connection=self._second))
        await asyncio.wait((sent,), timeout=0.002)
        while not sent.done():
            if await self._is_blocked():
                self.waits += 1
                break
            await asyncio.sleep(0)
        await self._commit()
        return await sent

    async def _is_blocked(self) -> bool:
        asked = "select cardinality(pg_blocking_pids(%s)) > 0"
        found = await (await self._watcher.execute(asked, [self._second.info.backend_pid])).fetchone()
        return bool(found and found[0])

    async def _commit(self) -> None:
        self.holds = False
        await self._first.commit()

    async def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return await (await self._second.execute(cast(LiteralString, query))).fetchall()

    async def _empty(self) -> None:
        names = [name for (name,) in await self._rows(TABLES)]
        await self._second.execute(cast(LiteralString, "; ".join(f'delete from "{name}"' for name in names)))  # noqa: S608


class HeldPostgres:
    """The `Database` of one schedule."""

    name = "postgres"

    def __init__(self, sessions: TwoSessions, clock: Clock, witness: Witness, chance: random.Random, share: float) -> None:
        """`share`: of statements with locks that are held, where none is."""
        sessions.empty()
        self._sessions = sessions
        self._clock = clock
        self._witness = witness
        self._chance = chance
        self._share = share

    async def fetch(self, operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Row]:
        now = {"now_ms": self._clock.unix_ms()} if params.get("now_ms") is None else {}
        holds = operation in LOCKING and self._chance.random() < self._share
        rows = self._sessions.run(operation, {**params, **now}, holds=holds)
        self._witness.saw(operation, params, rows)
        return rows

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._sessions.rows(query)

    def linger_s(self) -> float:
        """Where a transaction is open, others have the time to come upon it."""
        return self._chance.choice((0.0, 0.02, 0.1)) if self._sessions.holds else 0.0

    def settle(self) -> None:
        self._sessions.settle()

    async def schema_version(self) -> int:
        return len(await self.migrate(()))

    async def migrate(self, migrations: Sequence[Migration]) -> tuple[int, ...]:
        """Nothing: the schema is there."""
        return ()

    async def close(self) -> None:
        """The sessions belong to whoever made them."""


def postgres_of(sessions: TwoSessions, seed: int, share: float = 0.8) -> Callable[[Clock, Witness], HeldPostgres]:
    """Makes the database of the schedule of `seed`."""
    return lambda clock, witness: HeldPostgres(sessions, clock, witness, random.Random(f"held {seed}"), share)  # noqa: S311
