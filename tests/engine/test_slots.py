"""Runs that share a concurrency key, as executors meet them."""

from __future__ import annotations

from dataclasses import replace

from deuz_workers.core.change import Head
from deuz_workers.engine.sweep import sweep_pass
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.providers.mock import MockModel
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from tests.engine.test_unclean_ends import agent


async def head_of(simulation: Simulation, run_id: str) -> Head:
    head = await simulation.store.head(SCOPE, run_id)
    assert head is not None
    return head


async def used(simulation: Simulation) -> tuple[int, int]:
    counters = await simulation.store.slot_counters(SCOPE, "key")
    assert counters is not None
    return counters.used, counters.waiting


async def test_the_second_run_waits_until_the_first_has_ended() -> None:
    """It is untouched meanwhile, whatever rings for it; the step that ends the first one rings for it."""
    simulation = Simulation({"a": agent("idempotent")})
    for run_id in ("one", "two"):
        await simulation.enqueue("a", run_id, concurrency_key="key")
    process = Process(simulation)
    assert (await process.engine.step(SCOPE, "one")).end == "turn"
    assert (await process.engine.step(SCOPE, "two")).end == "waiting"
    assert (await process.engine.step(SCOPE, "two")).end == "idle"
    assert (await head_of(simulation, "two")).revision == 0
    assert await used(simulation) == (1, 1)
    report = await process.engine.step(SCOPE, "one")
    assert (report.end, [bell.run_id for bell in report.bells]) == ("ended", ["two"])
    assert (await process.engine.step(SCOPE, "two")).end == "turn"
    assert (await process.engine.step(SCOPE, "two")).end == "ended"
    assert await used(simulation) == (0, 0)


async def test_a_death_between_an_end_and_its_second_statement_is_mended_by_the_sweep() -> None:
    """The slot came free in the commit; a pass gives it to whoever waits."""
    simulation = Simulation({"a": AgentDefinition("a", MockModel(["done"] * 9))})
    for run_id in ("one", "two"):
        await simulation.enqueue("a", run_id, concurrency_key="key")
    one = await head_of(simulation, "one")
    assert await simulation.store.take_slot(one.rid, 0, 1) == "held"
    process = Process(simulation)
    assert (await process.engine.step(SCOPE, "two")).end == "waiting"
    await simulation.store.park(one.rid, 0, "as an end whose executor died right after its commit")
    assert await used(simulation) == (0, 1)
    rung = await sweep_pass(process.engine.gear)
    assert [bell.run_id for bell in rung] == ["two"]
    assert (await process.engine.step(SCOPE, "two")).end == "ended"


async def test_a_dead_holder_keeps_its_slot_until_its_run_goes_on() -> None:
    """Nobody else runs beside it; the process that takes it over needs no slot of its own."""
    simulation = Simulation({"a": agent("idempotent")})
    for run_id in ("one", "two"):
        await simulation.enqueue("a", run_id, concurrency_key="key")
    await simulation.step_until_death("one", "before tool")
    process = Process(simulation)
    assert (await process.engine.step(SCOPE, "two")).end == "waiting"
    assert await used(simulation) == (1, 1)
    assert (await process.engine.step(SCOPE, "one")).end == "turn"
    assert (await process.engine.step(SCOPE, "one")).end == "ended"
    assert (await head_of(simulation, "two")).slot == "held"


async def test_a_limit_of_the_settings_counts_where_none_is_stored() -> None:
    """Two at a time, by name of the key; of other keys one."""
    simulation = Simulation({"a": agent("idempotent")})
    simulation.settings = replace(simulation.settings, concurrency_limits={"key": 2})
    for run_id, key in (("one", "key"), ("two", "key"), ("three", "key"), ("four", "other"), ("five", "other")):
        await simulation.enqueue("a", run_id, concurrency_key=key)
    process = Process(simulation)
    ends = [(await process.engine.step(SCOPE, run_id)).end for run_id in ("one", "two", "three", "four", "five")]
    assert ends == ["turn", "turn", "waiting", "turn", "waiting"]


async def test_a_cancel_ends_a_run_that_waits() -> None:
    """Without a slot, and the row of those that wait is one shorter."""
    simulation = Simulation({"a": agent("idempotent")})
    for run_id in ("one", "two"):
        await simulation.enqueue("a", run_id, concurrency_key="key")
    process = Process(simulation)
    await process.engine.step(SCOPE, "one")
    assert (await process.engine.step(SCOPE, "two")).end == "waiting"
    await simulation.store.add_note(SCOPE, "two", "cancel", "{}")
    assert (await process.engine.step(SCOPE, "two")).end == "ended"
    assert await used(simulation) == (1, 0)
