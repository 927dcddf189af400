"""The sweep of one process over a real broker: what it lets into a queue, and what it leaves as rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from deuz_workers.app.bell import broker_queue
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.runtime import Runtime
from deuz_workers.app.settings import Settings
from deuz_workers.core.change import Bell
from deuz_workers.workers.sweeper import FULL_WINDOWS, LEAST, Sweeper

WINDOW = 4


class World:
    """An application whose producers and sweep are real, and that nobody works for."""

    def __init__(self, app: Deuz, redis_url: str) -> None:
        self.app = app
        self.redis_url = redis_url
        self.runtime = Runtime(app, app.doorbell)

    def sweeper(self, most: int | None = None) -> Sweeper:
        return Sweeper(self.runtime.gear, ["default"], self.app.doorbell.waiting, interval_ms=1, window=WINDOW, most=most)

    async def passes(self, sweeper: Sweeper) -> int:
        """One pass, once the right to pass is free; how many were rung."""
        peek = await self.app.leases.peek("sweep:default")
        await asyncio.sleep((peek.ms_left or 0) / 1_000)
        return await sweeper.sweep("default")

    async def enqueue(self, count: int, scope: str = "a") -> None:
        for _ in range(count):
            await self.app.aio.enqueue("anything", "go", scope=scope)

    def waiting(self) -> int:
        with redis.Redis.from_url(self.redis_url) as client:
            return sum(int(client.llen(key)) for key in client.scan_iter(f"{broker_queue('default')}*"))

    def take(self, count: int) -> None:
        """Take doorbells as workers would."""
        with redis.Redis.from_url(self.redis_url) as client:
            for _ in range(count):
                for key in client.scan_iter(f"{broker_queue('default')}*"):
                    if client.rpop(key) is not None:
                        break


@pytest.fixture
async def world(tmp_path: Path, redis_url: str) -> AsyncIterator[World]:
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'runs.db'}", redis_url=redis_url, window=WINDOW)
    app = Deuz(settings=settings)
    yield World(app, redis_url)
    await app.aclose()


async def test_producers_fill_a_window_and_leave_the_rest_as_rows(world: World) -> None:
    """Whoever comes when the queue is full writes a row and rings nobody."""
    await world.enqueue(WINDOW + 6)
    assert world.waiting() == WINDOW


async def test_a_sweep_fills_up_what_was_taken(world: World) -> None:
    """Each row is rung once: those that their producers rang for are not rung again."""
    await world.enqueue(WINDOW + 5)
    sweeper = world.sweeper()
    await world.passes(sweeper)
    assert world.waiting() == WINDOW
    world.take(3)
    assert await world.passes(sweeper) == 3
    world.take(WINDOW)
    assert await world.passes(sweeper) == 2
    world.take(2)
    assert await world.passes(sweeper) == 0


async def test_a_scope_of_which_nothing_runs_gets_in_beside_a_full_window(world: World) -> None:
    """One doorbell each, however full of others the queue is, up to a bound."""
    await world.enqueue(WINDOW + 1)
    await world.enqueue(2, "b")
    assert await world.passes(world.sweeper()) == 1
    for number in range(LEAST + 5):
        await world.enqueue(1, f"c{number}")
    assert await world.passes(world.sweeper()) <= LEAST
    for _ in range(9):
        await world.passes(world.sweeper())
    assert world.waiting() <= FULL_WINDOWS * WINDOW + LEAST


async def test_a_window_that_is_emptied_at_once_grows(world: World) -> None:
    """For short steps: up to `most`, as long as more waits."""
    await world.enqueue(60)
    sweeper = world.sweeper(most=16)
    rung: list[int] = []
    for _ in range(4):
        world.take(100)
        rung.append(await world.passes(sweeper))
    assert rung == [4, 8, 16, 16]


async def test_what_a_commit_made_due_waits_when_its_queue_is_full(world: World) -> None:
    """It is not rung, and the next look with room takes it, long before its doorbell would count as lost."""
    await world.enqueue(WINDOW)
    handle = await world.app.aio.enqueue("anything", "go")
    await world.app.store.postpone(handle.scope, handle.run_id, 3_600_000)
    sweeper = world.sweeper()
    await world.passes(sweeper)
    world.take(1)
    assert await world.passes(sweeper) == 0
    await world.enqueue(1)  # the producer takes the place
    await handle.ring()
    assert world.waiting() == WINDOW
    world.take(1)
    assert await world.passes(sweeper) == 1


async def test_a_queue_with_room_is_rung_directly(world: World) -> None:
    """Nobody waits for a sweep then."""
    bells = [Bell("a", f"r{number}", "default") for number in range(WINDOW + 2)]
    assert await world.app.doorbell.offer(bells) == tuple(bells[WINDOW:])
    assert world.waiting() == WINDOW
    assert not await world.app.doorbell.has_room("default")
    assert await world.app.doorbell.has_room("other")
