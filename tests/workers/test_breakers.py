"""Circuit breakers that workers share: what failed for one is not called by another."""

from __future__ import annotations

import asyncio

import pytest
import redis

from deuz_workers.breakers import RedisBreakers
from deuz_workers.core.breaker import OPENS_AFTER
from deuz_workers.embedded import EmbeddedRedis
from tests.fake_clock import FakeClock
from tests.workers.away_agents import application
from tests.workers.pool import Pool


@pytest.mark.processes
@pytest.mark.spec("FOV-017")
def test_failures_in_one_worker_open_the_breaker_for_another(pool: Pool) -> None:
    """Worker A, alone in its queue, fails five times; worker B, which never called the model, goes to the fallback at once."""
    pool.module = "tests.workers.away_agents:app"
    app = application(pool.settings)
    first = pool.start(queues="default")
    for _ in range(OPENS_AFTER):
        assert app.enqueue("here", "go").result(30).status == "failed"
    other = pool.start(queues="other")
    result = app.enqueue("there", "go").result(30)
    assert (result.status, result.output) == ("completed", "done")
    assert pool.lines("away") == [str(first.pid)] * OPENS_AFTER
    assert str(other.pid) not in pool.lines("away")
    app.close()


@pytest.mark.spec("FOV-017")
async def test_what_one_process_saw_the_others_see(redis_url: str) -> None:
    """Two that share a server: five failures of the first keep calls of the second back, and only of that model; what the
    second hears opens the way for the first."""
    one, two = RedisBreakers(redis_url, FakeClock()), RedisBreakers(redis_url, FakeClock())
    assert await two.wait_ms("p:other") == 0
    for _ in range(OPENS_AFTER):
        assert await one.wait_ms("p:m") == 0
        await one.failed("p:m")
    assert 0 < await one.wait_ms("p:m") <= 30_000
    assert 0 < await two.wait_ms("p:m") <= 30_000
    assert (await one.wait_ms("p:other"), await two.wait_ms("p:other")) == (0, 0)
    two.heard("p:m")
    while await one.wait_ms("p:m"):  # noqa: ASYNC110 - a thread tells the server
        await asyncio.sleep(0)
    await one.close()
    await two.close()


async def test_a_process_that_calls_a_healthy_model_hears_of_failures_within_a_second(redis_url: str) -> None:
    """It asks the server in the background, and waits for no answer before a call."""
    clock = FakeClock()
    busy, failing = RedisBreakers(redis_url, clock), RedisBreakers(redis_url, FakeClock())
    assert await busy.wait_ms("p:m") == 0
    for _ in range(OPENS_AFTER):
        await failing.failed("p:m")
    clock.advance(999)
    assert await busy.wait_ms("p:m") == 0
    clock.advance(1)
    assert await busy.wait_ms("p:m") == 0, "it looks, and does not wait"
    while not await busy.wait_ms("p:m"):  # noqa: ASYNC110 - a thread looks
        await asyncio.sleep(0)
    await busy.close()
    await failing.close()


async def test_a_call_that_tries_and_is_not_sent_leaves_its_turn_to_any_process(redis_url: str) -> None:
    """One is let pass and does not call: another process tries at once. What opened the breaker anew stays."""
    one, two = RedisBreakers(redis_url, FakeClock()), RedisBreakers(redis_url, FakeClock())
    for _ in range(OPENS_AFTER):
        await one.failed("p:m")
    with redis.Redis.from_url(redis_url) as server:
        server.hset("deuz:breaker:p:m", "open_until_ms", 1)
    assert await one.wait_ms("p:m") == 0
    assert await two.wait_ms("p:m") > 0
    await two.untried("p:m")
    assert await two.wait_ms("p:m") > 0, "it was not the one that was let pass"
    assert await one.wait_ms("p:m") > 0
    await one.untried("p:m")
    assert await two.wait_ms("p:m") == 0
    await one.failed("p:m")
    await two.untried("p:m")
    assert await two.wait_ms("p:m") > 0
    await one.close()
    await two.close()


@pytest.mark.spec("FOV-017")
async def test_a_server_that_is_away_keeps_nobody_back(private_redis: EmbeddedRedis) -> None:
    """Failures that it cannot tell are counted in this process alone."""
    clock = FakeClock()
    breakers = RedisBreakers(private_redis.url, clock)
    assert await breakers.wait_ms("p:m") == 0
    private_redis.stop()
    clock.advance(10_000)
    assert await breakers.wait_ms("p:m") == 0
    for _ in range(OPENS_AFTER):
        await breakers.failed("p:m")
    assert await breakers.wait_ms("p:m") == 30_000
    breakers.heard("p:m")
    assert await breakers.wait_ms("p:m") == 0
    await breakers.close()


@pytest.mark.spec("FOV-017")
async def test_a_key_of_another_type_says_nothing_of_other_models(redis_url: str) -> None:
    """Failures of its own model are counted in this process; those of the others still come from the server."""
    broken = RedisBreakers(redis_url, FakeClock())
    failing = RedisBreakers(redis_url, FakeClock())
    with redis.Redis.from_url(redis_url) as server:
        server.set("deuz:breaker:p:m", "x")
    for _ in range(OPENS_AFTER):
        await failing.failed("p:other")
        await broken.failed("p:m")
    assert await broken.wait_ms("p:m") == 30_000
    assert 0 < await broken.wait_ms("p:other") <= 30_000
    await broken.close()
    await failing.close()
