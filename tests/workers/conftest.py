"""Fixtures with real workers."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from kombu import pools

from deuz_workers.app.settings import Settings
from tests.workers.pool import Pool


@pytest.fixture
def pool(tmp_path: Path, migrated_postgres_dsn: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Pool]:
    """No worker yet; a lease TTL of two seconds and a sweep five times a second."""
    monkeypatch.setenv("DEUZ_CONFIG", "/dev/null")  # settings of the machine are none of these tests'
    settings = Settings(database_url=migrated_postgres_dsn, redis_url=redis_url, lease_ttl_ms=2_000, sweep_interval_ms=200)
    pools.reset()  # kombu's, shared by all Celery applications of a process: earlier tests kill connections
    pool = Pool(tmp_path, settings)
    yield pool
    pool.close()
