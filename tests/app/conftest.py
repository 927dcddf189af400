"""The three places a store can be in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from deuz_workers.store import open_store
from deuz_workers.store.sql_store import SqlStore
from deuz_workers.testing.migrated_sqlite import MigratedSqlite
from tests.app.world import World


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a file in the working directory nor a variable has a say."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "DATABASE_URL", "REDIS_URL", "BROKER_URL", "LEASES_URL"):
        monkeypatch.delenv(f"DEUZ_{name}", raising=False)


@pytest.fixture(params=["memory", "file", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A test that asks for it runs over all three."""
    urls = {"memory": "sqlite://:memory:", "file": f"sqlite:///{tmp_path}/runs.db"}
    return urls.get(request.param) or request.getfixturevalue("migrated_postgres_dsn")


@pytest.fixture
async def world(store_url: str) -> AsyncGenerator[World]:
    """One database, and processes over it."""
    world = World(store_url, open_store(store_url))
    yield world
    await world.close()


@pytest.fixture
async def memory() -> AsyncGenerator[World]:
    """For what no store can change."""
    world = World("sqlite://:memory:", SqlStore(MigratedSqlite()))
    yield world
    await world.close()
