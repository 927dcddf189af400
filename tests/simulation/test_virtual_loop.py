"""The loop that simulations run on: order, time, and what becomes of a lane that is closed or ended."""

from __future__ import annotations

import asyncio
import random

import pytest

from deuz_workers.testing.virtual.loop import Lane, StandsStill, VirtualLoop


def test_callbacks_of_a_lane_keep_their_order_and_lanes_do_not() -> None:
    """asyncio promises an order within one thread; between threads there is none, and seeds draw different ones."""

    def order(seed: int) -> list[str]:
        loop, seen = VirtualLoop(random.Random(seed)), list[str]()

        async def count(name: str) -> None:
            for number in range(4):
                seen.append(f"{name}{number}")
                await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(*(loop.start(Lane(name), count(name)) for name in "ab"))

        loop.run(main())
        return seen

    orders = [order(seed) for seed in range(20)]
    assert all([it for it in seen if it[0] == "a"] == ["a0", "a1", "a2", "a3"] for seen in orders)
    assert len({tuple(seen) for seen in orders}) > 5
    assert order(7) == order(7)


def test_time_jumps_to_the_next_timer() -> None:
    """An hour of sleep takes no time, timeouts fire in order, and nothing else moves the clock."""
    loop = VirtualLoop(random.Random(1))
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3_600):
                await asyncio.sleep(7_200)
        seen.append(("timeout", loop.time()))
        await asyncio.wait_for(asyncio.sleep(1), 2)
        seen.append(("slept", loop.time()))

    loop.run(main())
    assert seen == [("timeout", 3_600.0), ("slept", 3_601.0)]


def test_an_ended_lane_runs_nothing_more_not_even_what_cleans_up() -> None:
    """As after SIGKILL: its tasks neither go on nor reach their `finally` while the simulation lasts."""
    loop, lane, seen = VirtualLoop(random.Random(1)), Lane("dead"), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        task = loop.start(lane, work())
        await asyncio.sleep(0.5)
        loop.end_lane(lane)
        task.cancel()
        await asyncio.sleep(5)
        assert not task.done()

    loop.run(main())
    assert seen == []
    loop.close()


def test_a_closed_lane_wakes_late_and_goes_on() -> None:
    """As after SIGSTOP and SIGCONT: its timers passed meanwhile, and it goes on as if nothing had been."""
    loop, lane, seen = VirtualLoop(random.Random(1)), Lane("frozen"), list[float]()

    async def work() -> None:
        for _ in range(2):
            await asyncio.sleep(1)
            seen.append(loop.time())

    async def main() -> None:
        task = loop.start(lane, work())
        await asyncio.sleep(0.5)
        loop.close_lane(lane)
        await asyncio.sleep(9.5)
        assert seen == []
        loop.open_lane(lane)
        await task

    loop.run(main())
    assert seen == [10.0, 11.0]


def test_a_deadlock_is_an_error() -> None:
    """Waiting for what nobody will do ends the simulation, at once."""
    loop = VirtualLoop(random.Random(1))

    async def wait() -> None:
        await loop.create_future()

    with pytest.raises(StandsStill, match="nothing can run"):
        loop.run(wait())
    loop.close()
