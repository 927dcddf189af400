"""The conformance suite on every store of ours: SQLite in memory, in a file, and Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deuz_workers.ports.store import RunStore
from deuz_workers.store import open_store
from deuz_workers.testing.store_conformance import StoreConformance


class TestSqliteMemory(StoreConformance):
    """A store that lives in this process alone."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[RunStore]:
        store = open_store("sqlite://:memory:")
        yield store
        await store.close()


class TestSqliteFile(StoreConformance):
    """The embedded default."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[RunStore]:
        store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
        yield store
        await store.close()
