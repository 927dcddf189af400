"""Memories in every store of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deuz_workers.core.memory import MemoryScope
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.memory import MemoryStore
from deuz_workers.store import open_store
from deuz_workers.testing.store_conformance_memory import MemoryConformance

pytest.mark.spec("MEM-022")(MemoryConformance.test_equal_words_are_stored_once)


class TestMemoriesInMemory(MemoryConformance):
    """A store that lives in this process alone."""

    @pytest.fixture
    async def memories(self) -> AsyncIterator[MemoryStore]:
        store = open_store("sqlite://:memory:")
        yield store
        await store.close()


class TestMemoriesInAFile(MemoryConformance):
    """The embedded default."""

    @pytest.fixture
    async def memories(self, tmp_path: Path) -> AsyncIterator[MemoryStore]:
        store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
        yield store
        await store.close()


class TestMemoriesInPostgres(MemoryConformance):
    """A database of each test's own."""

    @pytest.fixture
    async def memories(self, migrated_postgres_dsn: str) -> AsyncIterator[MemoryStore]:
        store = open_store(migrated_postgres_dsn)
        yield store
        await store.close()


@pytest.mark.spec("MEM-031")
@pytest.mark.parametrize("ids", [{}, {"user_id": ""}, {"chat_id": "x" * 513}, {"run_id": "a\0b"}, {"actor_id": "\ud800"}])
def test_a_scope_without_ids_that_can_be_kept_is_refused(ids: dict[str, str]) -> None:
    """Nobody's memories, and everybody's, are nobody's to ask for."""
    with pytest.raises(ConfigurationError, match="memory scope"):
        MemoryScope(**ids)
