"""Runs that nobody can run: looked at ever less often, and never changed."""

from __future__ import annotations

from dataclasses import replace

from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.providers.mock import MockModel
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from tests.engine.test_unclean_ends import agent


def stranger(simulation: Simulation) -> Process:
    """A process of another application on the same rows."""
    simulation.settings = replace(simulation.settings, nobody_postpone_ms=5_000)
    known, simulation.agents = simulation.agents, {}
    process = Process(simulation)
    simulation.agents = known
    return process


async def looks(simulation: Simulation, process: Process, count: int) -> list[int]:
    """Seconds between `count` looks that a sweep made for; the step finds every time that nobody knows the agent."""
    gaps: list[int] = []
    since_ms = simulation.clock.passed_ms
    while len(gaps) < count:
        for _ in await simulation.store.sweep(limit=1, ttl_ms=simulation.settings.lease_ttl_ms):
            assert (await process.engine.step(SCOPE, "r")).end == "nobody"
            gaps.append((simulation.clock.passed_ms - since_ms) // 1_000)
            since_ms = simulation.clock.passed_ms
        simulation.clock.passed_ms += 1_000
    return gaps


async def test_a_run_whose_agent_nobody_knows_is_looked_at_ever_less_often() -> None:
    """Soon at first (here 5 s), then twice as long each time, up to every 5 minutes; revision and attempts stay as they are.

    A process that knows the agent finishes it, and what nobody can run afterwards begins anew.
    """
    simulation = Simulation({"a": AgentDefinition("a", MockModel(["done"]))})
    await simulation.enqueue("a", "r")
    assert await looks(simulation, stranger(simulation), 10) == [0, 5, 10, 20, 40, 80, 160, 300, 300, 300]
    head = await simulation.store.head(SCOPE, "r")
    assert head is not None
    assert (head.revision, head.attempts, head.status) == (0, 0, "queued")
    assert (await Process(simulation).engine.step(SCOPE, "r")).end == "ended"


async def test_a_commit_ends_the_row_of_misses() -> None:
    """A run that got on and then meets strangers again is soon looked at again."""
    simulation = Simulation({"a": agent("idempotent")})
    await simulation.enqueue("a", "r")
    process = stranger(simulation)
    assert await looks(simulation, process, 6) == [0, 5, 10, 20, 40, 80]
    assert (await Process(simulation).engine.step(SCOPE, "r")).end == "turn"
    assert (await looks(simulation, process, 3))[1:] == [5, 10]
