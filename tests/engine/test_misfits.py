"""Doorbells for runs that a process cannot execute (architecture D16)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from deuz_workers.app.registry import AppRegistry
from deuz_workers.core.build import member
from deuz_workers.core.change import Bell
from deuz_workers.engine.binding import binding_of
from deuz_workers.engine.engine import Engine
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool


@tool
async def look() -> str:
    """Something that takes a turn."""
    return "seen"


CLERK = AgentDefinition("clerk", MockModel.function(lambda _: calls(call("look"))), tools={"look": look})
CHANGED = replace(CLERK, binding_id="2")


class Announced:
    """A `Builds` with what it was asked for; all of it can be run at `at`, None: by nobody."""

    def __init__(self, at: str | None) -> None:
        self.at = at
        self.asked: list[tuple[str, str]] = []

    async def find(self, queue: str, member: str) -> str | None:
        self.asked.append((queue, member))
        return self.at


class Ringing:
    """A doorbell that remembers what was rung."""

    def __init__(self) -> None:
        self.rung: list[tuple[str, str]] = []

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        self.rung.extend((bell.run_id, bell.queue) for bell in bells)
        return ()

    def leave(self, queues: Collection[str]) -> None:
        raise AssertionError("nothing was left")

    async def has_room(self, queue: str) -> bool:
        return True


class Stranger:
    """A process that knows `agents` and nobody else, over a simulation in which a run of `clerk` is queued."""

    def __init__(self, at: str | None, *agents: AgentDefinition) -> None:
        self.simulation = Simulation({"clerk": CLERK})
        self.builds, self.doorbell = Announced(at), Ringing()
        gear = Process(self.simulation).engine.gear
        self.engine = Engine(replace(gear, registry=AppRegistry(agents), builds=self.builds, doorbell=self.doorbell))

    async def queued(self) -> Engine:
        await self.simulation.enqueue("clerk", "r")
        return self.engine

    async def begun(self) -> Engine:
        """By the build that knows the agent as it was."""
        await self.simulation.enqueue("clerk", "r")
        assert (await Process(self.simulation).engine.step(SCOPE, "r")).end == "turn"
        return self.engine

    async def row(self) -> tuple[object, ...]:
        head = await self.simulation.store.head(SCOPE, "r")
        assert head is not None
        return head.revision, head.body, head.status, head.attempts, head.wake_seq, head.parked

    async def is_swept(self) -> bool:
        return bool(await self.simulation.store.sweep(limit=5, ttl_ms=1))


async def test_a_run_of_an_unknown_agent_goes_to_a_build_that_knows_it() -> None:
    """Nothing is written, and nothing is decoded to find that out."""
    stranger = Stranger("default@new")
    engine = await stranger.queued()
    before = await stranger.row()
    assert (await engine.step(SCOPE, "r")).end == "nobody"
    assert stranger.doorbell.rung == [("r", "default@new")]
    assert stranger.builds.asked == [("default", member("clerk"))]
    assert await stranger.row() == before
    assert await stranger.is_swept(), "the sweep looks at it as before"


async def test_a_run_that_began_under_another_binding_goes_to_its_build() -> None:
    """It is asked for by the binding that it began with."""
    stranger = Stranger("default@old", CHANGED)
    engine = await stranger.begun()
    before = await stranger.row()
    assert (await engine.step(SCOPE, "r")).end == "other_build"
    assert stranger.doorbell.rung == [("r", "default@old")]
    assert stranger.builds.asked == [("default", member("clerk", binding_of(CLERK)))]
    assert await stranger.row() == before


async def test_a_suspicious_run_goes_to_a_process_of_its_build_that_executes_nothing_else() -> None:
    """Or waits, if there is none."""
    stranger = Stranger("default.quarantine@old")
    engine = await stranger.queued()
    head = await stranger.simulation.store.head(SCOPE, "r")
    assert head is not None
    for _ in range(2):
        await stranger.simulation.store.record_unclean_end(head.rid, 0, 0)
    assert (await engine.step(SCOPE, "r")).end == "nobody"
    assert stranger.builds.asked == [("default.quarantine", member("clerk"))]


async def test_a_run_stays_in_the_queue_of_the_build_it_was_sent_to() -> None:
    """Until that drains: then anybody may pass it on."""
    stranger = Stranger(None, CLERK)
    engine = await stranger.queued()
    assert (await engine.step(SCOPE, "r", at="default@old")).end == "turn"
    assert (await engine.step(SCOPE, "r", at="default")).end == "turn"
    assert stranger.doorbell.rung == [("r", "default@old"), ("r", "default")]


async def test_a_run_that_nobody_can_execute_is_looked_at_less_and_less() -> None:
    """After twice as long each time, and at least every five minutes; due it stays."""
    stranger = Stranger(None)
    engine = await stranger.queued()
    before = await stranger.row()
    for pause_ms in (*(250 * 2**misses for misses in range(11)), 300_000, 300_000):
        assert (await engine.step(SCOPE, "r")).end == "nobody"
        assert await stranger.row() == before
        stranger.simulation.clock.passed_ms += pause_ms - 1
        assert not await stranger.is_swept()
        stranger.simulation.clock.passed_ms += 1
        assert await stranger.is_swept()
    assert stranger.doorbell.rung == []
