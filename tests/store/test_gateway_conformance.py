"""Frames and access tokens in every store of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deuz_workers.store import open_store
from deuz_workers.testing.store_conformance_gateway import GatewayConformance, GatewayStore

pytest.mark.spec("UIW-015")(GatewayConformance.test_frames_are_read_back_in_order_from_any_place)
pytest.mark.spec("UIW-015")(GatewayConformance.test_frames_go_behind_the_newest_or_not_at_all)
pytest.mark.spec("UIW-015", "UIW-021")(GatewayConformance.test_of_many_writers_of_one_number_one_wins_whole)


class TestGatewayInMemory(GatewayConformance):
    """A store that lives in this process alone."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[GatewayStore]:
        store = open_store("sqlite://:memory:")
        yield store
        await store.close()


class TestGatewayInAFile(GatewayConformance):
    """The embedded default."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[GatewayStore]:
        store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
        yield store
        await store.close()


class TestGatewayInPostgres(GatewayConformance):
    """A database of each test's own."""

    @pytest.fixture
    async def store(self, migrated_postgres_dsn: str) -> AsyncIterator[GatewayStore]:
        store = open_store(migrated_postgres_dsn)
        yield store
        await store.close()
