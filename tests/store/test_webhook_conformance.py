"""Webhooks in every store of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deuz_workers.store import open_store
from deuz_workers.testing.store_conformance_webhooks import HookedStore, WebhookConformance


class TestWebhooksInMemory(WebhookConformance):
    """A store that lives in this process alone."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[HookedStore]:
        store = open_store("sqlite://:memory:")
        yield store
        await store.close()


class TestWebhooksInAFile(WebhookConformance):
    """The embedded default."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[HookedStore]:
        store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
        yield store
        await store.close()


class TestWebhooksInPostgres(WebhookConformance):
    """A database of each test's own."""

    @pytest.fixture
    async def store(self, migrated_postgres_dsn: str) -> AsyncIterator[HookedStore]:
        store = open_store(migrated_postgres_dsn)
        yield store
        await store.close()
