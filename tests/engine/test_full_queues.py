"""A step that finds no room for its next one leaves it as a row, which the next look at room takes at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from deuz_workers.core.change import Bell
from deuz_workers.core.names import run_lease_key
from deuz_workers.core.window import Look
from deuz_workers.engine.engine import FULL_BUILD_MS, Engine
from deuz_workers.ports.leases import Lease
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.workers.sweeper import Sweeper
from tests.engine.test_misfits import CLERK, Announced, AppRegistry

HOUR_MS = 3_600_000


class Full:
    """A doorbell whose queues take nothing."""

    def __init__(self) -> None:
        self.offered: list[tuple[str, str]] = []
        self.left: list[str] = []

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        self.offered += [(bell.run_id, bell.queue) for bell in bells]
        return tuple(bells)

    def leave(self, queues: Collection[str]) -> None:
        self.left += queues

    async def has_room(self, queue: str) -> bool:
        return False


async def taken(simulation: Simulation) -> list[str]:
    """What a pass of the sweep takes now."""
    return [bell.run_id for bell in await simulation.store.sweep(limit=5, ttl_ms=HOUR_MS)]


async def test_a_next_step_without_a_place_is_fed_at_once() -> None:
    """Not a lease TTL later, as after a doorbell that got lost; and whoever feeds the queue here hears of it."""
    simulation, full = Simulation({"clerk": CLERK}), Full()
    engine = Engine(replace(Process(simulation).engine.gear, doorbell=full))
    await simulation.enqueue("clerk", "r")
    assert (await engine.step(SCOPE, "r")).end == "turn"
    assert (full.offered, full.left) == ([("r", "default")], ["default"])
    assert await taken(simulation) == ["r"]


async def test_a_next_step_without_a_place_in_the_queue_of_its_build_may_be_taken_by_all() -> None:
    """It is fed to the shared queue, from which its build takes too."""
    simulation, full = Simulation({"clerk": CLERK}), Full()
    engine = Engine(replace(Process(simulation).engine.gear, doorbell=full))
    await simulation.enqueue("clerk", "r")
    assert (await engine.step(SCOPE, "r", at="default@mine")).end == "turn"
    assert (full.offered, full.left) == ([("r", "default@mine")], ["default"])
    assert await taken(simulation) == ["r"]


async def test_a_run_whose_build_has_a_full_queue_is_not_passed_around() -> None:
    """Fed to the shared queue at once, it would only be taken by a wrong build again: it waits, and not long."""
    simulation, full = Simulation({"clerk": CLERK}), Full()
    gear = Process(simulation).engine.gear
    engine = Engine(replace(gear, doorbell=full, registry=AppRegistry(()), builds=Announced("default@other")))
    await simulation.enqueue("clerk", "r")
    for _ in range(8):
        assert (await engine.step(SCOPE, "r")).end == "nobody"
        assert await taken(simulation) == []
        simulation.clock.passed_ms += FULL_BUILD_MS
        assert await taken(simulation) == ["r"]
    assert full.offered == [("r", "default@other")] * 8
    assert full.left == []


class Heard:
    """A doorbell with room for everything."""

    def __init__(self) -> None:
        self.rung: list[str] = []

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        self.rung += [bell.run_id for bell in bells]
        return ()

    def leave(self, queues: Collection[str]) -> None:
        """Nothing is left."""

    async def has_room(self, queue: str) -> bool:
        return True


async def test_a_run_that_is_worked_on_does_not_end_the_feeding() -> None:
    """One place is free, and of two that are due the first one's lease is alive: whoever feeds the queue looks again, or what
    waits behind it would be left where nobody sweeps."""
    simulation, heard = Simulation({"clerk": CLERK}), Heard()
    gear = replace(Process(simulation).engine.gear, doorbell=heard)
    for run_id in ("first", "second"):
        await simulation.enqueue("clerk", run_id)
        assert (await Engine(replace(gear, doorbell=Full())).step(SCOPE, run_id)).end == "turn"
    claim = await gear.leases.acquire(run_lease_key(SCOPE, "first"), "somebody", HOUR_MS, force=True)
    assert isinstance(claim, Lease)

    async def look(queue: str, *, size: int | None = None, apart_ms: int = 0) -> Look:
        return one_place

    one_place = Look(0, 1)
    sweeper = Sweeper(gear, ["default"], look, interval_ms=1_000, window=1)
    assert [await sweeper.feed("default"), heard.rung] == ["fed", []]
    assert [await sweeper.feed("default"), heard.rung] == ["fed", ["second"]]
    assert await sweeper.feed("default") == "empty"
