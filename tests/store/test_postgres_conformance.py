"""The Postgres dialect passes the suite that every store passes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance import StoreConformance


class TestPostgres(StoreConformance):
    """On a database of each test's own."""

    @pytest.fixture
    async def store(self, migrated_postgres_dsn: str) -> AsyncIterator[SqlStore]:
        store = open_store(migrated_postgres_dsn)
        yield store
        await store.close()
