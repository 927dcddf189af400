"""Chains of steps that only doorbells drive."""

from __future__ import annotations

import time

import pytest
import redis

from deuz_workers.app.bell import broker_queue
from deuz_workers.app.broker_connection import window_key
from tests.workers.agents import application
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes
CHAINS, STEPS = 8, 1_000
SHORT_STEPS = 150


@pytest.mark.timeout(400)
def test_eight_chains_of_a_thousand_steps_never_stand_still(pool: Pool) -> None:
    """With the sweep switched off, no doorbell of 8,000 is lost on a pool of 16 threads.

    Each step is rung before anybody can know that the one before it gave its lease back, unless the release comes first: rung
    the other way round, all chains stand still within a few steps.
    """
    pool.switch_sweep_off()
    pool.start("threads", concurrency=16, events=False)
    began = time.monotonic()
    handles = [pool.app.enqueue("empty", f"{STEPS} steps") for _ in range(CHAINS)]
    assert {handle.result(300).status for handle in handles} == {"completed"}
    print(f"{CHAINS * STEPS / (time.monotonic() - began):.0f} steps a second")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("window", [1, 2])
def test_chains_go_on_through_a_window_that_is_shorter_than_they_are_many(pool: Pool, redis_url: str, window: int) -> None:
    """With the sweep switched off, two slots and far fewer places than chains: what the queue refuses waits as a row.

    Whoever refused it looks for room until everything has found a place, so that nothing stands still; and the queue is never
    longer than its window.
    """
    pool.switch_sweep_off()
    wide = application(pool.settings.model_copy(update={"window": 64}))
    handles = [wide.enqueue("empty", f"{SHORT_STEPS} steps") for _ in range(CHAINS)]
    with redis.Redis.from_url(redis_url) as client:
        client.delete(window_key(broker_queue("default")))
        for worker in range(2):
            pool.start("threads", concurrency=1, window=window, events=False, TEST_NODE=f"w{worker}@test")
        began = time.monotonic()
        assert {handle.result(120).status for handle in handles} == {"completed"}
        print(f"{CHAINS * SHORT_STEPS / (time.monotonic() - began):.0f} steps a second")
        assert int(client.hget(window_key(broker_queue("default")), "most") or 0) == window
    wide.close()
