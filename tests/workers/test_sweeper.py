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
from deuz_workers.core.unclean_ends import SUSPICIOUS_ENDS, quarantine_queue
from deuz_workers.core.window import open_places, spare_places
from deuz_workers.engine.ring import ring_or_ripen
from deuz_workers.ports.store import RunQuery
from deuz_workers.workers.sweeper import Sweeper

WINDOW = 8
OPEN, SPARE = open_places(WINDOW), spare_places(WINDOW)


def _lists(queue: str) -> list[str]:
    """Keys of a queue, one for each priority."""
    return [broker_queue(queue) + suffix for suffix in ("", "\x06\x163", "\x06\x166", "\x06\x169")]


class World:
    """An application whose producers and sweep are real, and that nobody works for."""

    def __init__(self, app: Deuz, redis_url: str) -> None:
        self.app = app
        self.redis_url = redis_url
        self.runtime = Runtime(app, app.doorbell)

    def sweeper(self, most: int | None = None) -> Sweeper:
        return Sweeper(self.runtime.gear, ["default"], self.app.doorbell.look, interval_ms=1, window=WINDOW, most=most)

    async def passes(self, sweeper: Sweeper) -> int:
        """One pass, once the right to pass is free; how many were rung."""
        peek = await self.app.leases.peek("sweep:default")
        await asyncio.sleep((peek.ms_left or 0) / 1_000)
        return await sweeper.sweep("default")

    async def enqueue(self, count: int, scope: str = "a") -> None:
        for _ in range(count):
            await self.app.aio.enqueue("anything", "go", scope=scope)

    def waiting(self, queue: str = "default") -> int:
        with redis.Redis.from_url(self.redis_url) as client:
            return sum(int(client.llen(key)) for key in _lists(queue))

    async def until(self, waiting: int) -> None:
        """Return once so many doorbells wait."""
        async with asyncio.timeout(10):
            while self.waiting() != waiting:  # noqa: ASYNC110 - a task beside this one feeds the queue
                await asyncio.sleep(0.002)

    def take(self, count: int, queue: str = "default") -> None:
        """Take doorbells as workers would."""
        with redis.Redis.from_url(self.redis_url) as client:
            for _ in range(count):
                client.lmpop(len(_lists(queue)), *_lists(queue), direction="RIGHT")


@pytest.fixture
async def world(tmp_path: Path, redis_url: str) -> AsyncIterator[World]:
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'runs.db'}", redis_url=redis_url, window=WINDOW)
    app = Deuz(settings=settings)
    yield World(app, redis_url)
    await app.aclose()


async def test_producers_fill_the_open_places_and_leave_the_rest_as_rows(world: World) -> None:
    """Whoever comes when the queue is full writes a row and rings nobody."""
    await world.enqueue(WINDOW + 6)
    assert world.waiting() == OPEN


async def test_a_sweep_fills_up_what_was_taken(world: World) -> None:
    """Each row is rung once: those that their producers rang for are not rung again."""
    await world.enqueue(OPEN + 5)
    sweeper = world.sweeper()
    assert await world.passes(sweeper) == 0
    assert world.waiting() == OPEN
    world.take(3)
    assert await world.passes(sweeper) == 3
    world.take(OPEN)
    assert await world.passes(sweeper) == 2
    world.take(2)
    assert await world.passes(sweeper) == 0


async def test_a_scope_of_which_nothing_runs_gets_in_although_the_queue_is_full(world: World) -> None:
    """One doorbell each, on the places that are kept, and no more of them than the window has."""
    await world.enqueue(OPEN + 1)
    await world.enqueue(2, "b")
    sweeper = world.sweeper()
    assert await world.passes(sweeper) == 1
    for number in range(SPARE + 5):
        await world.enqueue(1, f"c{number}")
    assert await world.passes(sweeper) == SPARE - 1
    for _ in range(9):
        assert await world.passes(sweeper) == 0
    assert world.waiting() == WINDOW


async def test_a_window_that_is_emptied_at_once_grows(world: World) -> None:
    """For short steps: up to `most`, as long as more waits. Its size is the same for everybody, since it lies at the broker."""
    await world.enqueue(100)
    sweeper = world.sweeper(most=32)
    rung: list[int] = []
    for _ in range(4):
        world.take(100)
        rung.append(await world.passes(sweeper))
    assert rung == [6, 12, 24, 24]
    world.take(1)
    await world.enqueue(2)
    look = await world.app.doorbell.look("default")
    assert look is not None
    assert (look.size, look.waiting, world.waiting()) == (32, 24, 24)


async def test_a_window_goes_back_as_its_queue_gets_shorter(world: World) -> None:
    """Never below what waits: at no moment is a queue longer than the window that is current."""
    await world.enqueue(160)
    sweeper = world.sweeper(most=64)
    for _ in range(4):
        world.take(100)
        await world.passes(sweeper)
    sizes: list[int] = []
    for _ in range(14):
        world.take(4)
        await world.passes(sweeper)
        look = await world.app.doorbell.look("default")
        assert look is not None
        assert world.waiting() == look.waiting <= look.size
        sizes.append(look.size)
    assert sizes == sorted(sizes, reverse=True)
    assert WINDOW <= sizes[-1] < 2 * WINDOW < sizes[0] < 64


async def test_what_a_commit_made_due_waits_when_its_queue_is_full(world: World) -> None:
    """It is not rung, and the next look with room takes it, long before its doorbell would count as lost."""
    await world.enqueue(OPEN)
    handle = await world.app.aio.enqueue("anything", "go")
    await world.app.store.postpone(handle.scope, handle.run_id, 3_600_000)
    sweeper = world.sweeper()
    await world.passes(sweeper)
    world.take(1)
    assert await world.passes(sweeper) == 0
    await world.enqueue(1)  # the producer takes the place
    await handle.ring()
    assert world.waiting() == OPEN
    world.take(1)
    assert await world.passes(sweeper) == 1


async def test_what_a_process_left_is_fed_without_a_pass(world: World) -> None:
    """The right to pass is somebody else's for a day, and its next look at room feeds the row all the same."""
    await world.app.leases.acquire("sweep:default", "0" * 32, 86_400_000, force=True)
    sweeper = world.sweeper()
    world.app.doorbell.feeders.append(sweeper.leave)
    attending = asyncio.create_task(sweeper.attend())
    await world.enqueue(OPEN + 3)
    assert world.waiting() == OPEN
    await ring_or_ripen(world.app.store, world.app.doorbell, [Bell("a", "nobody", "default")])
    assert world.waiting() == OPEN
    world.take(2)
    await world.until(OPEN)
    world.take(OPEN)
    await world.until(1)
    attending.cancel()


async def test_a_full_quarantine_queue_keeps_nothing_from_the_others(world: World) -> None:
    """Suspicious runs that find no place there take none of the places of the main queue, and are fed there later."""
    await world.enqueue(WINDOW + 4)
    world.take(100)
    for head in (await world.app.store.list_runs(RunQuery(limit=100))).heads:
        for _ in range(SUSPICIOUS_ENDS):
            await world.app.store.record_unclean_end(head.rid, 0, 0)
    await world.enqueue(OPEN + 1)
    world.take(100)
    sweeper = world.sweeper()
    assert await world.passes(sweeper) == 1
    alone = quarantine_queue("default")
    assert world.waiting(alone) == WINDOW
    assert await world.passes(sweeper) == 0
    world.take(100, alone)
    await world.passes(sweeper)
    assert world.waiting(alone) == 4


async def test_a_queue_with_room_is_rung_directly(world: World) -> None:
    """Nobody waits for a sweep then."""
    bells = [Bell("a", f"r{number}", "default") for number in range(OPEN + 2)]
    assert await world.app.doorbell.offer(bells) == tuple(bells[OPEN:])
    assert world.waiting() == OPEN
    assert not await world.app.doorbell.has_room("default")
    assert await world.app.doorbell.has_room("other")
