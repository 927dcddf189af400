"""Servers that cut, refuse and restart under running workers."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults.storm import crash, fresh_pool, own_servers
from tests.proxies import CuttingProxy
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


def sent_once(pool: Pool, count: int) -> None:
    """Every write happened exactly once."""
    keys = [line.split()[0] for line in pool.lines("write")]
    assert len(keys) == len(set(keys)) == count


@pytest.mark.spec("FR-08")
@pytest.mark.parametrize("kind", ["threads", "prefork", "solo"])
def test_a_worker_whose_redis_connections_are_killed_goes_on(pool: Pool, redis_url: str, kind: str) -> None:
    """Three times in two seconds every connection is cut; what is enqueued then is worked on."""
    worker = pool.start(kind)
    before = pool.app.enqueue("worker", "60 turns")
    pool.wait_for_lines("write", 3)
    with redis.Redis.from_url(redis_url) as client:
        for _ in range(3):
            client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
            time.sleep(0.6)
    after = pool.app.enqueue("worker", "6 turns")
    assert {before.result(60).status, after.result(60).status} == {"completed"}
    assert worker.process.poll() is None
    sent_once(pool, 40 + 4)


def test_a_broker_that_is_away_costs_time_and_nothing_else(pool: Pool) -> None:
    """Workers live through an outage of Redis, doorbells and leases at once, in the middle of runs."""
    with CuttingProxy.before_redis(pool.settings.redis_url or "") as proxy:
        through: dict[str, Any] = {"redis_url": proxy.redis_url()}
        workers = [pool.start(kind, **through) for kind in ("threads", "prefork")]
        handles = [pool.app.enqueue("worker", "30 turns") for _ in range(4)]
        pool.wait_for_lines("write", 10)
        proxy.refuse()
        time.sleep(3)  # longer than the lease TTL
        proxy.accept()
        assert {handle.result(60).status for handle in handles} == {"completed"}
        assert [worker.process.poll() for worker in workers] == [None, None]
    sent_once(pool, 4 * 20)


@pytest.mark.spec("FR-10")
def test_a_database_that_crashes_in_a_takeover_strands_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres crashes and recovers when a worker has died and its successor of the same name is about to take over.

    Every run completes, or names the effect that was cut off with its worker; none is executed twice.
    """
    monkeypatch.setenv("DEUZ_CONFIG", os.devnull)
    with own_servers() as (postgres, valkey), fresh_pool(tmp_path, postgres, valkey, "crash") as pool:
        dead = pool.start(concurrency=4, TEST_NODE="same@test")
        handles = [pool.app.enqueue("worker", "20 turns") for _ in range(4)]
        pool.wait_for_lines("write", 5)
        successor = pool.start(concurrency=4, TEST_NODE="same@test")
        dead.kill()
        crash(postgres)
        results = [handle.result(60) for handle in handles]
        assert successor.process.poll() is None
        for handle, result in zip(handles, results, strict=True):
            assert result.status == "completed" or (
                result.reason == "tool-reconciliation-required" and result.unknown_effects
            ), f"{handle}: {result.status} {result.reason}"
        keys = [line.split()[0] for line in pool.lines("write")]
        assert len(keys) == len(set(keys))


@pytest.mark.spec("FR-10")
def test_a_database_that_is_away_costs_time_and_nothing_else(pool: Pool) -> None:
    """Connections to Postgres are cut and refused in the middle of runs and of a takeover by a worker of the same name.

    Every run completes, or names the effect that was cut off with its worker.
    """
    with CuttingProxy.before_postgres(pool.settings.database_url) as proxy:
        through: dict[str, Any] = {"database_url": proxy.postgres_url(pool.settings.database_url), "TEST_NODE": "same@test"}
        dead = pool.start(concurrency=4, **through)
        handles = [pool.app.enqueue("worker", "20 turns") for _ in range(4)]
        pool.wait_for_lines("write", 5)
        pool.start(concurrency=4, **through)
        proxy.cut()
        dead.kill()
        proxy.refuse()
        time.sleep(3)  # the takeover would fall into this
        proxy.accept()
        results = [handle.result(60) for handle in handles]
    assert all(
        result.status == "completed" or (result.reason == "tool-reconciliation-required" and result.unknown_effects)
        for result in results
    )
    keys = [line.split()[0] for line in pool.lines("write")]
    assert len(keys) == len(set(keys))


@pytest.mark.spec("FR-13")
def test_children_that_are_told_to_quit_in_the_middle(pool: Pool) -> None:
    """SIGQUIT hits children at any point of some 500 steps: no run is stuck, no write happened twice."""
    worker = pool.start("prefork", concurrency=2)
    chance = random.Random(3)
    handles = [pool.app.enqueue("worker", "60 turns") for _ in range(8)]
    hits = 0
    while len(pool.lines("write")) < 200 and hits < 40:
        time.sleep(0.25)
        for child in chance.sample(worker.children, min(1, len(worker.children))):
            os.kill(child, signal.SIGQUIT)
            hits += 1
    results = [handle.result(90) for handle in handles]
    assert all(
        result.status == "completed" or (result.reason == "tool-reconciliation-required" and result.unknown_effects)
        for result in results
    )
    assert hits > 3
    keys = [line.split()[0] for line in pool.lines("write")]
    assert len(keys) == len(set(keys))
