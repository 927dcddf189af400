"""Messages that come twice, late, for nothing, or not at all (architecture D1)."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
import redis

from deuz_workers.app.bell import broker_queue
from deuz_workers.app.deuz import Deuz
from deuz_workers.core.change import Bell
from deuz_workers.workers.sweeper import FULL_WINDOWS, LEAST
from tests.servers import flush
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes


def ring(app: Deuz, *bells: Bell) -> None:
    """Publish doorbells as any process could."""
    asyncio.run(app.doorbell.ring(bells))


def waiting(url: str) -> int:
    """Messages that wait in the default queue."""
    with redis.Redis.from_url(url) as client:
        return sum(int(client.llen(key)) for key in client.scan_iter(f"{broker_queue('default')}*"))


@pytest.mark.spec("DWK-001")
def test_doorbells_that_come_twice_late_or_for_nothing_do_nothing(pool: Pool, redis_url: str) -> None:
    """Each write happened once, the run ends as usual, and no task failed."""
    worker = pool.start(concurrency=8)
    handle = pool.app.enqueue("worker", "6 turns")
    for revision in (0, 1, 10_000):
        ring(pool.app, *[Bell("default", handle.run_id, "default", revision)] * 20)
    assert handle.result(30).status == "completed"
    ring(pool.app, *[Bell("default", handle.run_id, "default", 3)] * 20)
    ring(pool.app, Bell("default", "no such run", "default"), Bell("elsewhere", handle.run_id, "default"))
    after = pool.app.enqueue("worker", "1 turn")
    assert after.result(30).status == "completed"
    wait_until(lambda: waiting(redis_url) == 0, "all doorbells were taken")
    keys = [line.split()[0] for line in pool.lines("write")]
    assert len(keys) == len(set(keys)) == 5
    assert not worker.said("Traceback")
    assert not worker.said("ERROR")


@pytest.mark.spec("FR-01")
def test_a_tool_longer_than_the_lease_runs_once_on_four_workers(pool: Pool) -> None:
    """While its lease is renewed nobody else begins the step, however often it is rung and swept."""
    for _ in range(4):
        pool.start(wait=False, lease_ttl_ms=1_000)
    for worker in pool.workers:
        worker.wait_for("worker_open")
    handle = pool.app.enqueue("holder", "gate")
    pool.wait_for_lines("hold")
    for _ in range(25):
        ring(pool.app, Bell("default", handle.run_id, "default"))
        pool.workers[0].process.poll()
        asyncio.run(asyncio.sleep(0.1))  # two and a half times the TTL go by
    pool.go("gate")
    assert handle.result(30).status == "completed"
    assert len(pool.lines("hold")) == 1


@pytest.mark.spec("FR-02")
def test_a_time_far_ahead_is_a_row_and_fires_once(pool: Pool, redis_url: str) -> None:
    """Nothing waits in the broker for a start in three seconds; then every tool runs once, with three workers about."""
    for _ in range(3):
        pool.start(wait=False)
    for worker in pool.workers:
        worker.wait_for("worker_open")
    handle = pool.app.enqueue("worker", "1 turn", start_at=timedelta(seconds=3))
    assert waiting(redis_url) == 0
    with redis.Redis.from_url(redis_url) as client:
        assert not list(client.scan_iter("*unacked*"))
    assert handle.status() == "queued"
    assert not pool.lines("write")
    assert handle.result(30).status == "completed"
    assert len(pool.lines("write")) == 1


def test_runs_that_nobody_rang_for_are_found(pool: Pool) -> None:
    """A producer without a broker writes rows only; the sweep of the workers finds them all."""
    pool.start()
    silent = pool.silent()
    handles = [silent.enqueue("worker", "2 turns") for _ in range(10)]
    assert {handle.result(30).status for handle in handles} == {"completed"}
    silent.close()


def test_redis_may_be_emptied_at_any_moment(pool: Pool, redis_url: str) -> None:
    """Doorbells, leases and bindings are gone three times; every run completes, and no effect happens twice."""
    pool.start(concurrency=4)
    pool.start(concurrency=4)
    handles = [pool.app.enqueue("worker", "30 turns") for _ in range(6)]
    for lines in (10, 30, 50):
        pool.wait_for_lines("write", lines)
        flush(redis_url)
    assert {handle.result(60).status for handle in handles} == {"completed"}
    keys = [line.split()[0] for line in pool.lines("write")]
    assert len(keys) == len(set(keys)) == 6 * 20


def test_a_backlog_is_rows_and_not_messages(pool: Pool, redis_url: str) -> None:
    """While the only slot is taken, the sweep fills a window of doorbells and stops; afterwards every run completes."""
    window = 20
    worker = pool.start("threads", concurrency=1, sweep_batch=window, lease_ttl_ms=1_000)
    first = pool.app.enqueue("holder", "gate")
    pool.wait_for_lines("hold")
    silent = pool.silent()
    handles = [silent.enqueue("worker", "1 turn") for _ in range(200)]
    wait_until(lambda: waiting(redis_url) >= window, "the window is full")
    seen: list[int] = []
    until = time.monotonic() + 3  # fifteen passes, and three times the TTL after which a row is looked at again
    while time.monotonic() < until:
        seen.append(waiting(redis_url))
        time.sleep(0.05)
    assert max(seen) <= FULL_WINDOWS * window + LEAST
    pool.go("gate")
    assert {handle.result(60).status for handle in (first, *handles)} == {"completed"}
    assert not worker.said("ERROR")
    silent.close()
