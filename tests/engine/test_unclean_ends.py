"""Steps that crash: how often that is counted, and what the run's next step finds."""

from __future__ import annotations

import json
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


async def test_a_crash_in_the_middle_of_a_turn_counts_once() -> None:
    """A note that nobody can read makes every step crash: attempts rise by one a step, and the run is otherwise as it was.

    The first step counts the death that it found as well. After the fifth end nobody tries any more, and a retry frees the run.
    """
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", "before tool")
    before = await head_of(simulation)
    assert before.mid_step
    await simulation.store.add_note(SCOPE, "r", "reconcile", encode({"results": {"call": "no mapping"}}))
    process = Process(simulation)
    for attempts in (2, 3, 4, 5):
        report = await process.engine.step(SCOPE, "r")
        assert report.end == "crashed"
        assert report.error is not None
        assert "inbox note 1 of kind 'reconcile'" in str(report.error)
        now = await head_of(simulation)
        assert (now.attempts, now.revision, now.body, now.status) == (attempts, before.revision, before.body, before.status)
        assert now.due_in_ms is not None
        assert now.due_in_ms > 0
    assert (await process.engine.step(SCOPE, "r")).end == "quarantined"
    parked = await head_of(simulation)
    assert (parked.parked, parked.has_work, parked.has_report) == ("quarantine", False, True)
    assert (await process.engine.step(SCOPE, "r")).end == "idle"
    ends = await simulation.store.unclean_ends(SCOPE, "r")
    assert [end.number for end in ends] == [1, 2, 3, 4, 5]
    assert [json.loads(end.evidence)["found"].partition(" ")[0] for end in ends] == ["taken", *["CodecError"] * 4]
    await simulation.store.add_note(SCOPE, "r", "retry", "{}")
    freed = await head_of(simulation)
    assert (freed.parked, freed.attempts, freed.has_work) == (None, 0, True)
    assert await simulation.store.unclean_ends(SCOPE, "r") == ()


async def test_a_crash_between_turns_counts_once_too() -> None:
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    await simulation.store.add_note(SCOPE, "r", "retry", encode({"tool_call_ids": "abc"}))
    process = Process(simulation)
    for attempts in (1, 2):
        assert (await process.engine.step(SCOPE, "r")).end == "crashed"
        now = await head_of(simulation)
        assert (now.attempts, now.mid_step) == (attempts, False)


async def test_a_suspicious_run_is_handed_to_a_process_that_executes_it_alone() -> None:
    """Two deaths among others, and a step that shares its process rings it for one that does not; nothing is counted twice."""
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", "before tool")
    shared = Process(simulation)
    await simulation.store.record_unclean_end((await head_of(simulation)).rid, (await head_of(simulation)).revision, 0)
    report = await shared.engine.step(SCOPE, "r", alone=False)
    assert (report.end, [bell.queue for bell in report.bells]) == ("suspicious", ["default.quarantine"])
    handed = await head_of(simulation)
    assert (handed.attempts, handed.has_work) == (2, True)
    again = await shared.engine.step(SCOPE, "r", alone=False)
    assert (again.end, (await head_of(simulation)).attempts) == ("suspicious", 2)
    alone = await shared.engine.step(SCOPE, "r", alone=True)
    assert (alone.end, (await head_of(simulation)).attempts) == ("parked", 2)


async def test_progress_clears_the_suspicion() -> None:
    """A run that gets on is one like any other again."""
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    head = await head_of(simulation)
    for _ in range(2):
        await simulation.store.record_unclean_end(head.rid, head.revision, 0)
    process = Process(simulation)
    assert (await process.engine.step(SCOPE, "r", alone=False)).end == "suspicious"
    assert (await process.engine.step(SCOPE, "r", alone=True)).end == "turn"
    assert (await head_of(simulation)).attempts == 0
    assert (await process.engine.step(SCOPE, "r", alone=False)).end == "ended"


async def test_a_cancel_ends_a_run_in_quarantine() -> None:
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    head = await head_of(simulation)
    for _ in range(5):
        await simulation.store.record_unclean_end(head.rid, head.revision, 0)
    process = Process(simulation)
    assert (await process.engine.step(SCOPE, "r")).end == "quarantined"
    await simulation.store.add_note(SCOPE, "r", "cancel", encode({"reason": "enough"}))
    assert (await process.engine.step(SCOPE, "r")).end == "ended"
    assert (await head_of(simulation)).status == "stopped"
