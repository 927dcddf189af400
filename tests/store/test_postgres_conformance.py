"""The Postgres dialect passes the suite that every store passes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from deuz_workers.store import SqlStore, open_store
from deuz_workers.store.migrations import Migration
from deuz_workers.store.postgres import PostgresDialect
from deuz_workers.testing.store_conformance import StoreConformance


class TestPostgres(StoreConformance):
    """On a database of each test's own."""

    @pytest.fixture
    async def store(self, migrated_postgres_dsn: str) -> AsyncIterator[SqlStore]:
        store = open_store(migrated_postgres_dsn)
        yield store
        await store.close()


class TwoSessions:
    """A dialect whose consecutive operations use different connections, as behind a pool or a transaction pooler."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self._sessions = [PostgresDialect(url, max_connections=1) for _ in range(2)]
        self._turns = itertools.cycle(self._sessions)
        self.used: list[PostgresDialect] = []

    async def fetch(
        self, operation: str, params: Mapping[str, object], *, connection: Any = None
    ) -> Sequence[Mapping[str, Any]]:
        session = next(self._turns)
        self.used.append(session)
        return await session.fetch(operation, params, connection=connection)

    async def schema_version(self) -> int:
        return await self._sessions[0].schema_version()

    async def migrate(self, migrations: Sequence[Migration]) -> tuple[int, ...]:
        return await self._sessions[0].migrate(migrations)

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()


@pytest.mark.spec("CKP-010")
class TestPostgresOverTwoSessions(StoreConformance):
    """No statement relies on the connection of the one before it."""

    @pytest.fixture
    async def store(self, migrated_postgres_dsn: str) -> AsyncIterator[SqlStore]:
        dialect = TwoSessions(migrated_postgres_dsn)
        store = SqlStore(dialect)
        yield store
        assert all(one is not another for one, another in itertools.pairwise(dialect.used))
        await store.close()
