"""Two database sessions of which the second really waits for a row lock of the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import psycopg

from deuz_workers.store import SqlStore
from deuz_workers.store.dialect import Row
from deuz_workers.store.postgres import PostgresDialect

T = TypeVar("T")
U = TypeVar("U")
DEADLINE_S = 20.0


class OneSession(PostgresDialect):
    """Every operation on one given connection, in its transaction."""

    def __init__(self, url: str, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(url)
        self.session = connection

    async def fetch(self, operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Row]:
        return await super().fetch(operation, params, connection=connection or self.session)


class Sessions:
    """Races on one database."""

    def __init__(self, url: str, store: SqlStore) -> None:
        self.url = url
        self.store = store

    async def race(self, first: Callable[[SqlStore], Awaitable[T]], second: Callable[[SqlStore], Awaitable[U]]) -> tuple[T, U]:
        """`first` is done and keeps its locks until `second` waits for one of them; what both returned."""
        async with (
            await psycopg.AsyncConnection.connect(self.url) as holder,
            await psycopg.AsyncConnection.connect(self.url, autocommit=True) as watcher,
        ):
            one = await first(SqlStore(OneSession(self.url, holder)))
            waiting = asyncio.ensure_future(second(self.store))
            try:
                await self.until_somebody_waits(watcher, waiting)
            finally:
                await holder.commit()
            return one, await asyncio.wait_for(waiting, DEADLINE_S)

    async def rows(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        """What a query answers; for what no operation shows."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            cursor = await connection.execute(cast(Any, query), params)
            return await cursor.fetchall()

    @staticmethod
    async def until_somebody_waits(watcher: psycopg.AsyncConnection[Any], waiting: asyncio.Future[Any]) -> None:
        give_up = time.monotonic() + DEADLINE_S
        query = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            " and backend_type = 'client backend'"
        )
        while True:
            found = await (await watcher.execute(query)).fetchone()
            if found and found[0]:
                return
            assert not waiting.done(), f"the second never waited: {waiting.result()}"
            assert time.monotonic() < give_up, "the second neither waits nor ends"
            await asyncio.sleep(0.002)
