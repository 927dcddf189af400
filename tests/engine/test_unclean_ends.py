"""Steps that crash: how often that is counted, and what the run's next step finds."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from deuz_workers.core.change import Change, Head, NoteKind, Outcome
from deuz_workers.core.codec import decode, encode
from deuz_workers.errors import StoreError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls, reply
from deuz_workers.store import SqlStore
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool_from_schema


def agent(replay: Literal["idempotent"] | None = None) -> AgentDefinition:
    async def put(arguments: dict[str, Any], context: object) -> str:
        return "ok"

    made = tool_from_schema("put", "Puts.", {"type": "object", "properties": {}}, put, replay=replay)
    return AgentDefinition("a", MockModel([calls(call("put")), "done"]), tools={"put": made})


async def head_of(simulation: Simulation) -> Head:
    head = await simulation.store.head(SCOPE, "r")
    assert head is not None
    return head


class Broken(SqlStore):
    """Refuses every commit, as a database does that was given what it cannot take."""

    async def commit(self, change: Change) -> Outcome:
        raise StoreError("the database refused 'commit'")


def broken(simulation: Simulation) -> Process:
    """A process whose every commit is refused, on the same rows."""
    healthy = simulation.store
    simulation.store = Broken(healthy.dialect, ttl_ms=healthy.ttl_ms)
    process = Process(simulation)
    simulation.store = healthy
    return process


async def test_a_crash_in_the_middle_of_a_turn_counts_once() -> None:
    """Attempts rise by one with every step that crashes, and the run is otherwise as it was.

    The first step counts the death that it found as well. After the fifth end nobody tries any more, and a retry frees the run.
    """
    simulation = Simulation({"a": agent("idempotent")})
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", "before tool")
    before = await head_of(simulation)
    assert before.mid_step
    process = broken(simulation)
    for attempts in (2, 3, 4, 5):
        report = await process.engine.step(SCOPE, "r")
        assert report.end == "crashed"
        now = await head_of(simulation)
        assert (now.attempts, now.revision, now.body, now.status) == (attempts, before.revision, before.body, before.status)
        assert now.due_in_ms is not None
        assert now.due_in_ms > 0
        simulation.clock.passed_ms += now.due_in_ms
    assert (await process.engine.step(SCOPE, "r")).end == "quarantined"
    parked = await head_of(simulation)
    assert (parked.parked, parked.has_work, parked.has_report) == ("quarantine", False, True)
    assert (await process.engine.step(SCOPE, "r")).end == "idle"
    ends = await simulation.store.unclean_ends(SCOPE, "r")
    assert [end.number for end in ends] == [1, 2, 3, 4, 5]
    assert [json.loads(end.evidence)["found"].partition(" ")[0] for end in ends] == ["taken", *["StoreError"] * 4]
    await simulation.store.add_note(SCOPE, "r", "retry", "{}")
    freed = await head_of(simulation)
    assert (freed.parked, freed.attempts, freed.has_work) == (None, 0, True)
    assert await simulation.store.unclean_ends(SCOPE, "r") == ()
    assert (await simulation.run("r")).envelope.output == "done"


async def test_a_crash_between_turns_counts_once_too() -> None:
    """A run that is not in the middle of anything has its crashes counted as well."""
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    process = broken(simulation)
    for attempts in (1, 2):
        assert (await process.engine.step(SCOPE, "r")).end == "crashed"
        now = await head_of(simulation)
        assert (now.attempts, now.mid_step) == (attempts, False)
        simulation.clock.passed_ms += now.due_in_ms or 0


async def test_what_could_not_be_saved_is_not_remembered() -> None:
    """A process whose commit was refused goes on from the stored history, not from the reply that nobody stored."""
    asked: list[tuple[str, ...]] = []

    def answer(request: ModelRequest) -> Entry:
        asked.append(tuple(message.text for message in request.messages))
        return reply("phantom") if len(asked) == 1 else reply("real")

    simulation = Simulation({"a": AgentDefinition("a", MockModel.function(answer))})
    await simulation.enqueue("a", "r", "hello")
    process = Process(simulation)
    commit = simulation.store.commit
    commits = 0

    async def second_is_refused(change: Change) -> Outcome:
        nonlocal commits
        commits += 1
        if commits == 2:
            raise StoreError("the database refused 'commit'")
        return await commit(change)

    simulation.store.commit = second_is_refused
    assert (await process.engine.step(SCOPE, "r")).end == "crashed"
    simulation.clock.passed_ms += 60_000
    assert (await process.engine.step(SCOPE, "r")).end == "ended"
    assert asked == [("hello",), ("hello",)]
    assert (await simulation.load("r")).envelope.output == "real"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("reconcile", encode({"results": {"call": "no mapping"}})),
        ("reconcile", encode({"results": [1]})),
        ("retry", encode({"tool_call_ids": "abc"})),
        ("message", encode({"message": {"role": "nobody"}})),
        ("message", "{"),
        ("child", "{"),
        ("retry", "\x00 no JSON"),
    ],
)
async def test_a_note_that_nobody_can_read_stops_neither_the_run_nor_a_cancel(kind: NoteKind, body: str) -> None:
    """It is left out and named in the journal, which is dense; what comes after it is heard."""
    for cancelled in (False, True):
        simulation = Simulation({"a": agent()})
        await simulation.enqueue("a", "r")
        await simulation.store.add_note(SCOPE, "r", kind, body)
        if cancelled:
            await simulation.store.add_note(SCOPE, "r", "cancel", "{")
        run = await simulation.run("r")
        assert (run.envelope.status, run.envelope.output) == (("stopped", None) if cancelled else ("completed", "done"))
        journal = [decode(row.body) for row in await simulation.store.journal(SCOPE, "r", 0, 100)]
        told = [record for record in journal if isinstance(record, dict) and record["type"] == "run.note_unreadable"]
        first = [] if kind == "child" else [{"type": "run.note_unreadable", "place": 1, "note": kind}]
        # a cancel without a readable reason is a cancel all the same
        second = [{"type": "run.note_unreadable", "place": 2, "note": "cancel"}] if cancelled else []
        assert told == first + second


@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_a_run_ends_where_nobody_knows_its_agent(end: str) -> None:
    """A cancel or a deadline needs no agent; anything else waits for somebody who knows it, untouched."""
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r", deadline_in_ms=5_000 if end == "deadline" else None)
    simulation.agents = {}
    process = Process(simulation)
    before = await head_of(simulation)
    assert (await process.engine.step(SCOPE, "r")).end == "nobody"
    assert (await head_of(simulation)).revision == before.revision
    if end == "cancel":
        await simulation.store.add_note(SCOPE, "r", "cancel", encode({"reason": "enough"}))
    simulation.clock.passed_ms += 6_000
    assert (await process.engine.step(SCOPE, "r")).end == "ended"
    assert (await head_of(simulation)).status == ("stopped" if end == "cancel" else "failed")


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
    """It needs no retry first."""
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


async def test_a_word_about_some_of_the_unknown_effects_wakes_the_run_once() -> None:
    """The run is looked at, waits for the rest, and is not due until somebody says more."""
    simulation = Simulation({"a": agent()})
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", "before tool")
    process = Process(simulation)
    assert (await process.engine.step(SCOPE, "r")).end == "parked"
    await simulation.store.add_note(SCOPE, "r", "retry", encode({"tool_call_ids": ["another"]}))
    assert (await head_of(simulation)).has_work
    assert (await process.engine.step(SCOPE, "r")).end == "parked"
    waiting = await head_of(simulation)
    assert (waiting.parked, waiting.has_work, waiting.wake_seq) == ("tool-reconciliation-required", False, waiting.seen_seq)
