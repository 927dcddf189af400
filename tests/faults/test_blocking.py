"""A tool that blocks the event loop of its process for much longer than a lease lives."""

from __future__ import annotations

import time

import pytest
import redis

from deuz_workers.app.deuz import Deuz
from tests.workers.pool import Pool, wait_until

TTL_MS = 1_000
SWEEP_MS = 10_000
"""Longer than a machine that also runs other tests needs for anything."""


@pytest.mark.processes
@pytest.mark.spec("FR-03")
def test_a_blocked_loop_keeps_its_lease_and_a_lost_doorbell_its_run(pool: Pool, redis_url: str) -> None:
    """The heartbeat has a thread of its own, so the tool runs once; meanwhile the other worker, whose waiting connection to the
    broker is cut again and again, starts what is enqueued, also what the blocked one took: the sweep rings for it again."""
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


@pytest.mark.processes
@pytest.mark.spec("FR-03")
def test_a_consumer_whose_socket_is_cut_while_it_waits_delays_nothing(pool: Pool, redis_url: str) -> None:
    """What is enqueued right then is begun before a sweep would look: by the other consumer, or by this one when it is back."""
    pool.settings = pool.settings.model_copy(update={"sweep_interval_ms": SWEEP_MS, "lease_ttl_ms": 6 * SWEEP_MS})
    client = Deuz(settings=pool.settings)
    for _ in range(2):
        pool.start()
    with redis.Redis.from_url(redis_url) as server:
        for number in range(6):
            wait_until(lambda: len(popping(server)) == 2, "both consumers wait for a message")
            cut = popping(server)[number % 2]
            enqueued = time.monotonic()
            assert server.client_kill_filter(_id=cut) == 1
            name = client.enqueue("thinker", f"gate{number}").run_id
            pool.wait_for_lines("asked", number + 1)
            took_s = time.monotonic() - enqueued
            print(f"begun {took_s:.2f} s after the cut")
            assert took_s < SWEEP_MS / 1000
            pool.go(f"gate{number}")
            assert client.handle(name).result(30).status == "completed"
    client.close()


def popping(server: redis.Redis) -> list[str]:
    """Ids of connections that wait for a message of the broker, in order."""
    return sorted(str(client["id"]) for client in server.client_list() if client["cmd"] == "brpop")
