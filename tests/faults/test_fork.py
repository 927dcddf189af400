"""Connections do not cross a fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proxies import TlsPostgresProxy
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("FR-34")
def test_an_application_that_used_the_database_before_the_fork(pool: Pool, tmp_path: Path) -> None:
    """Eight children make encrypted connections of their own; the parent's stay open and are touched by none."""
    pool.module = "tests.faults.forked_agents:app"
    proxy = TlsPostgresProxy.before_postgres(pool.settings.database_url).present_certificate(tmp_path)
    with proxy:
        url = f"{proxy.postgres_url(pool.settings.database_url)}?sslmode=require"
        worker = pool.start("prefork", concurrency=8, database_url=url)
        handles = [pool.app.enqueue("worker", "6 turns") for _ in range(16)]
        assert {handle.result(60).status for handle in handles} == {"completed"}
        lines = [line.split() for line in pool.lines("write")]
        assert len(lines) == 16 * 6
        assert {encrypted for _, encrypted, _ in lines} == {"True"}
        assert len({pid for pid, _, _ in lines}) > 1
        assert worker.process.poll() is None
    log = worker.log.read_text()
    assert "decryption failed" not in log
    assert "bad record mac" not in log
    assert "WorkerLost" not in log
    assert "ERROR" not in log
