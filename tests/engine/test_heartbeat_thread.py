"""The heartbeat's thread: real time, real Redis, a blocked event loop, a fork."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import pytest
import redis.asyncio

from deuz_workers.embedded import EmbeddedRedis
from deuz_workers.engine.heartbeat import Heartbeat
from deuz_workers.engine.hold import Hold
from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.leases import RedisLeases
from deuz_workers.ports.leases import Held, Lease, LeaseProvider, Young
from tests.engine.spy_leases import SpyLeases
from tests.forked import holds_in_child

TTL_MS = 300
LIMIT_MS = 600_000
KEY = "run:tenant/1"
PATIENCE_S = 20.0
"""Until a test that waits for something gives up; nothing is asserted about how long it took."""


async def claim(leases: LeaseProvider, owner: str) -> Lease:
    answer = await leases.acquire(KEY, owner, TTL_MS, force=True)
    assert isinstance(answer, Lease)
    return answer


@dataclass(slots=True)
class Holder:
    """Notes what the heartbeat's thread tells."""

    told: list[str] = field(default_factory=list[str])
    heard: threading.Condition = field(default_factory=threading.Condition)

    def hold(self, heartbeat: Heartbeat, lease: Lease) -> Hold:
        return heartbeat.hold(
            lease,
            limit_ms=LIMIT_MS,
            on_lost=lambda: self.note("lost"),
            on_cancel=lambda: self.note("cancel"),
            label="tool:charge",
        )

    def note(self, what: str) -> None:
        with self.heard:
            self.told.append(what)
            self.heard.notify_all()

    def hears(self, what: str) -> bool:
        """True once it was told; blocks this thread."""
        with self.heard:
            return self.heard.wait_for(lambda: what in self.told, PATIENCE_S)


async def becomes(claim: Callable[[], bool]) -> bool:
    """True once `claim` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not claim():  # noqa: ASYNC110 - what time alone changes signals nobody
            await asyncio.sleep(0.005)
    return True


@pytest.fixture
def spy() -> Generator[SpyLeases]:
    spy = SpyLeases(SystemClock())
    yield spy
    asyncio.run(spy.close())


@pytest.fixture
def heartbeat(spy: SpyLeases) -> Generator[Heartbeat]:
    heartbeat = Heartbeat(spy, TTL_MS, SystemClock())
    yield heartbeat
    heartbeat.stop()


async def test_a_blocked_event_loop_keeps_its_lease(spy: SpyLeases, heartbeat: Heartbeat) -> None:
    """A tool that blocks the loop for longer than the TTL loses nothing, because another thread renews the lease."""
    hold = Holder().hold(heartbeat, await claim(spy, "me"))
    assert spy.wait_for_calls(2 * 3, PATIENCE_S)  # two TTLs in which this loop did nothing
    assert hold.state == "held"
    assert threading.get_ident() not in spy.threads
    assert isinstance(await spy.acquire(KEY, "other", TTL_MS), Held)


async def test_one_thread_serves_every_lease(spy: SpyLeases, heartbeat: Heartbeat) -> None:
    """However often it is started and however much is held, there is one thread and one connection in a process."""
    for n in range(5):
        answer = await spy.acquire(f"{KEY}-{n}", "me", TTL_MS)
        assert isinstance(answer, Lease)
        Holder().hold(heartbeat, answer)
        heartbeat.start()
    assert spy.wait_for_calls(3, PATIENCE_S)
    assert len(spy.threads) == 1
    assert len(spy.timeouts_ms) == 1
    assert len(spy.renewed[-1]) == 5


async def test_a_stopped_heartbeat_starts_again(spy: SpyLeases, heartbeat: Heartbeat) -> None:
    """Stopping ends the thread and closes its connection; what is held is renewed again after a start."""
    Holder().hold(heartbeat, await claim(spy, "me"))
    assert spy.wait_for_calls(1, PATIENCE_S)
    heartbeat.stop()
    heartbeat.stop()
    assert spy.closed == 1
    assert "deuz-heartbeat" not in {thread.name for thread in threading.enumerate()}
    heartbeat.start()
    assert spy.wait_for_calls(2, PATIENCE_S)


async def test_a_defect_does_not_end_the_thread(spy: SpyLeases, heartbeat: Heartbeat, caplog: pytest.LogCaptureFixture) -> None:
    """A round that raises what nobody expected is logged by its name, and the next one is made."""
    hold = Holder().hold(heartbeat, await claim(spy, "me"))
    spy.broken = True
    assert spy.wait_for_calls(2, PATIENCE_S)
    spy.broken = False
    assert spy.wait_for_calls(2, PATIENCE_S)
    assert await becomes(lambda: hold.state == "held")
    assert {record.getMessage() for record in caplog.records} == {"heartbeat_failed error=KeyError"}


def test_a_forked_child_has_its_own(spy: SpyLeases, heartbeat: Heartbeat) -> None:
    """The child inherits no holds and no thread, and what it holds itself is renewed there."""
    lease = asyncio.run(claim(spy, "parent"))
    Holder().hold(heartbeat, lease)
    assert spy.wait_for_calls(1, PATIENCE_S)

    def child() -> bool:
        inherited = len(heartbeat.holds)
        calls = len(spy.renewed)
        hold = Holder().hold(heartbeat, asyncio.run(claim(spy, "child")))
        renewed = spy.wait_for_calls(2, PATIENCE_S)
        return inherited == 0 and renewed and hold.state == "held" and all(len(keys) == 1 for keys in spy.renewed[calls:])

    with spy.changed:  # so that no other thread holds it at the fork
        assert holds_in_child(child)
    assert len(heartbeat.holds) == 1
    assert spy.wait_for_calls(2, PATIENCE_S)


async def test_signals_come_through_redis(redis_url: str) -> None:
    """A cancel that anybody leaves at the key reaches the holder from the heartbeat's thread."""
    leases, other = RedisLeases(redis_url), RedisLeases(redis_url)
    heartbeat = Heartbeat(leases, TTL_MS, SystemClock())
    holder = Holder()
    holder.hold(heartbeat, await claim(leases, "me"))
    assert await other.signal(KEY, "cancel")
    assert holder.hears("cancel")
    heartbeat.stop()
    await leases.close()
    await other.close()


async def test_a_killed_redis_is_an_outage_and_no_loss(private_redis: EmbeddedRedis) -> None:
    """While Redis is dead a lease becomes suspected; once it is back, empty, the heartbeat puts the lease there again."""
    leases = RedisLeases(private_redis.url)
    heartbeat = Heartbeat(leases, TTL_MS, SystemClock())
    holder = Holder()
    hold = holder.hold(heartbeat, await claim(leases, "me"))
    epoch = hold.lease.epoch
    private_redis.kill()
    assert await becomes(lambda: hold.state == "suspected")
    assert not hold.may_start
    private_redis.start()
    assert await becomes(lambda: hold.state == "held")
    assert hold.lease.epoch != epoch
    assert holder.told == []
    answer = await leases.acquire(KEY, "other", 60_000)
    assert isinstance(answer, Held)
    assert answer.owner == "me"
    heartbeat.stop()
    await leases.close()


async def test_a_flush_lets_the_living_holder_come_back_first(redis_url: str) -> None:
    """After a flush a claim is answered `young` until the heartbeat has put the lease back, and `held` from then on."""
    leases = RedisLeases(redis_url)
    heartbeat = Heartbeat(leases, TTL_MS, SystemClock())
    holder = Holder()
    hold = holder.hold(heartbeat, await claim(leases, "me"))
    epoch = hold.lease.epoch
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.flushall()
    seen: list[str] = []
    while "Held" not in seen:
        answer = await leases.acquire(KEY, "other", 60_000)
        assert isinstance(answer, Young | Held)
        seen.append(type(answer).__name__)
    assert await becomes(lambda: hold.lease.epoch != epoch)
    assert (hold.state, holder.told) == ("held", [])
    heartbeat.stop()
    await leases.close()


async def test_a_lease_claimed_by_another_is_lost(redis_url: str) -> None:
    """The holder hears it from Redis when somebody else was granted the key."""
    leases = RedisLeases(redis_url)
    lease = await claim(leases, "me")
    await leases.release(lease)
    await claim(leases, "other")
    heartbeat = Heartbeat(leases, TTL_MS, SystemClock())
    holder = Holder()
    hold = holder.hold(heartbeat, lease)
    assert holder.hears("lost")
    assert hold.state == "lost"
    heartbeat.stop()
    await leases.close()
