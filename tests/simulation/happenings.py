"""What happens beside the work of processes: cancels, letters, outages, flushes, drains, and in the end quiet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from deuz_workers.testing.virtual.world import World
from tests.simulation.people import People
from tests.simulation.plan import Plan
from tests.simulation.scenarios import Scenario

SOON_MS = (100, 400, 1_000, 4_000)
"""Most runs take half a second, where nothing goes wrong."""


def happenings(world: World, people: People, made: Scenario, plan: Plan) -> Iterator[Coroutine[Any, Any, None]]:
    """What happens in a schedule at drawn times, each as a coroutine that waits for its time."""
    chance, faults, clock = world.chance, plan.faults, world.clock

    async def at(ms: int, does: Callable[[], Awaitable[None]]) -> None:
        await clock.sleep_ms(ms)
        await does()

    def moment() -> int:
        return chance.randint(0, chance.choice((min(400, faults.until_ms), faults.until_ms)))

    async def outage(what: str, ms: int) -> None:
        setattr(world, what, True)
        world.fate.tell(f"{clock.monotonic_ms()} {what} for {ms} ms")
        await clock.sleep_ms(ms)
        setattr(world, what, False)

    async def drain() -> None:
        alive = [process for process in world.processes if not process.is_draining]
        if alive:
            await chance.choice(alive).drain()

    async def quiet() -> None:
        world.fate.quiet = True
        world.only_sweeps = plan.sweeps
        world.fate.tell(f"{clock.monotonic_ms()} quiet")

    for run_id in made.cancels:
        yield at(chance.randint(0, chance.choice(SOON_MS)), partial(people.cancel, run_id))
    for run_id in made.mails:
        yield at(chance.randint(0, chance.choice(SOON_MS)), partial(people.write, run_id))
    for _ in range(faults.flushes):
        yield at(moment(), world.flush)
    for what, many in (("leases_are_away", faults.lease_outages), ("store_is_away", faults.store_outages)):
        for _ in range(many):
            yield at(moment(), partial(outage, what, chance.randint(200, 6_000)))
    for _ in range(faults.drains):
        yield at(moment(), drain)
    yield at(faults.until_ms, quiet)
