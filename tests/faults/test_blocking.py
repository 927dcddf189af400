"""A tool that blocks the event loop of its process for much longer than a lease lives."""

from __future__ import annotations

import time

import pytest
import redis

from deuz_workers.app.deuz import Deuz
from tests.workers.pool import Pool

TTL_MS = 1_000


@pytest.mark.processes
@pytest.mark.spec("FR-03")
def test_a_blocked_loop_keeps_its_lease_and_a_lost_doorbell_its_run(pool: Pool, redis_url: str) -> None:
    """The heartbeat has a thread of its own, so the tool runs once; meanwhile the other worker, whose waiting connection to the
    broker is cut again and again, starts what is enqueued: by the sweep, whose interval is a fifth of a second."""
    pool.module, client = "tests.faults.blocking_agents:app", Deuz(settings=pool.settings)
    workers = [pool.start(lease_ttl_ms=TTL_MS) for _ in range(2)]
    blocked = client.enqueue("blocker", "gate")
    pool.wait_for_lines("block")
    until = time.monotonic() + 7 * TTL_MS / 1000  # as 200 s are to a lease of 30 s
    latest_s = 0.0
    with redis.Redis.from_url(redis_url) as server:
        while time.monotonic() < until:
            server.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
            enqueued = time.monotonic()
            assert client.enqueue("quick", "go").result(30).status == "completed"
            latest_s = max(latest_s, time.monotonic() - enqueued)
    print(f"the slowest of the others was completed {latest_s:.2f} s after it was enqueued")
    assert blocked.status() == "running"
    pool.go("gate")
    assert blocked.result(30).status == "completed"
    assert len(pool.lines("block")) == 1
    assert [worker.process.poll() for worker in workers] == [None, None]
    client.close()
