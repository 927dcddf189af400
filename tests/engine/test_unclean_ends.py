"""Steps that crash: how often that is counted, and what the run's next step finds."""

from __future__ import annotations

from typing import Any

from deuz_workers.core.change import Head
from deuz_workers.core.codec import encode
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool_from_schema


def agent() -> AgentDefinition:
    async def put(arguments: dict[str, Any], context: object) -> str:
        return "ok"

    made = tool_from_schema("put", "Puts.", {"type": "object", "properties": {}}, put)
    return AgentDefinition("a", MockModel([calls(call("put")), "done"]), tools={"put": made})


async def head_of(simulation: Simulation) -> Head:
    head = await simulation.store.head(SCOPE, "r")
    assert head is not None
    return head


async def test_a_crash_in_the_middle_of_a_turn_counts_once_for_each_step() -> None:
    """A note that nobody can read makes every step crash: attempts rise by one a step, and the run is otherwise as it was."""
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", "before tool")
    before = await head_of(simulation)
    assert before.mid_step
    await simulation.store.add_note(SCOPE, "r", "reconcile", encode({"results": {"call": "no mapping"}}))
    process = Process(simulation)
    for attempts in (1, 2, 3):
        report = await process.engine.step(SCOPE, "r")
        assert report.end == "crashed"
        assert report.error is not None
        assert "inbox note 1 of kind 'reconcile'" in str(report.error)
        now = await head_of(simulation)
        assert (now.attempts, now.revision, now.body, now.status) == (attempts, before.revision, before.body, before.status)
        assert now.due_in_ms is not None
        assert now.due_in_ms > 0


async def test_a_crash_between_turns_counts_once_too() -> None:
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    await simulation.store.add_note(SCOPE, "r", "retry", encode({"tool_call_ids": "abc"}))
    process = Process(simulation)
    for attempts in (1, 2):
        assert (await process.engine.step(SCOPE, "r")).end == "crashed"
        now = await head_of(simulation)
        assert (now.attempts, now.mid_step) == (attempts, False)
