"""What people of a schedule do again where no sweep looks after them, and what they leave to the processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

import pytest

from deuz_workers.core.change import Head
from deuz_workers.core.codec import encode
from deuz_workers.testing.virtual.faults import Faults
from deuz_workers.testing.virtual.process import Role, VirtualProcess
from deuz_workers.testing.virtual.world import World
from tests.simulation.people import SCOPE, People
from tests.simulation.scenarios import scenario

BELLS = 20
"""That are listened to: people look at every run in turn, and ring for those whose bells were refused."""


class Waiting:
    """A swarm whose own run waits for its tasks, in a world whose queue is full and which nobody sweeps."""

    def __init__(self) -> None:
        made = scenario("swarm_cancelled", 0)
        self.world = World(0, made.agents, made.reducers, Faults(slow=0, until_ms=0), sweeps=False, window=1)
        self.people = People(self.world, made)
        self.process = VirtualProcess(self.world, Role(slots=0), 1)

    def play(self, what: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.people.order()
            await self.process.start_thread("step", lambda: self.process.engine.step(SCOPE, "s"))
            assert (await self.head()).status == "running"
            await what()

        self.world.loop.run(whole(), most_turns=50_000)

    async def head(self) -> Head:
        head = await self.world.store.head(SCOPE, "s")
        assert head is not None
        return head

    async def heard(self) -> set[str]:
        """For whom people ring while they look after everything, and somebody takes their bells."""
        attending = self.world.loop.start(self.world.loop.outside, self.people.attend(), "people")
        heard = {(await self.world.broker.take(self.process)).run_id for _ in range(BELLS)}
        attending.cancel()
        return heard


@pytest.fixture
def waiting() -> Generator[Waiting]:
    made = Waiting()
    yield made
    made.world.close()


def test_a_refused_bell_for_the_cancel_of_a_swarm_is_rung_again(waiting: Waiting) -> None:
    """The swarm's own run reads `running` and has no step under way: people ring again, as no sweep finds the ripe row."""

    async def cancelled() -> None:
        await waiting.people.cancel("s")
        assert waiting.world.broker.count("default") == 1  # of a task; there was no room
        assert (await waiting.head()).has_work
        assert "s" in await waiting.heard()

    waiting.play(cancelled)


def test_a_sweep_finds_the_cancel_of_a_swarm_whose_bell_was_refused(waiting: Waiting) -> None:
    """Where there is a sweep nobody has to ring again: the very next pass takes the run."""

    async def cancelled() -> None:
        await waiting.people.cancel("s")
        taken = await waiting.world.store.sweep(limit=8, ttl_ms=waiting.world.settings.lease_ttl_ms)
        assert "s" in {bell.run_id for bell in taken}

    waiting.play(cancelled)


def test_people_do_not_ring_for_what_processes_have_to_ring_for(waiting: Waiting) -> None:
    """A note on a swarm that people were not refused a bell for is left alone, so that a lost doorbell is noticed."""

    async def noted() -> None:
        assert await waiting.world.store.add_note(SCOPE, "s", "cancel", encode({})) is not None
        assert (await waiting.head()).has_work
        assert "s" not in await waiting.heard()

    waiting.play(noted)
