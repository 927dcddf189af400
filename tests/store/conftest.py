"""A store on a Postgres database of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance_bench import Bench
from tests.store.sessions import Sessions


@pytest.fixture
async def postgres(migrated_postgres_dsn: str) -> AsyncIterator[SqlStore]:
    """A store on an empty Postgres database."""
    store = open_store(migrated_postgres_dsn)
    yield store
    await store.close()


@pytest.fixture
def bench(postgres: SqlStore) -> Bench:
    """A scope and a queue in `postgres`."""
    return Bench(postgres)


@pytest.fixture
def sessions(migrated_postgres_dsn: str, postgres: SqlStore) -> Sessions:
    """Races on the database of `postgres`."""
    return Sessions(migrated_postgres_dsn, postgres)
