"""What must hold when a schedule is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from deuz_workers.core.history import says_nothing
from deuz_workers.core.messages import Message, ToolResultPart
from deuz_workers.core.run import Run, read_run
from deuz_workers.core.unclean_ends import QUARANTINE
from deuz_workers.engine.projecting import read_transcript
from deuz_workers.testing.conversations import conversation_problems
from deuz_workers.testing.virtual.world import World
from tests.outcome import outcome_of
from tests.simulation.agents import forget
from tests.simulation.people import SCOPE, People, read
from tests.simulation.plan import Plan
from tests.simulation.scenarios import Scenario
from tests.simulation.swarm_journal import journal_problems

Form = Mapping[str, object]
Forms = Mapping[str, Form]
"""By run id."""


def form_of(run: Run) -> Mapping[str, object]:
    """What a run came to, and that nothing of it is left open."""
    envelope = run.envelope
    raw = {"history": list(run.transcript)}  # when something of it was left out, faults may change
    return outcome_of(run) | raw | {"left open": (envelope.checkpoint.open_call, dict(envelope.verdicts), envelope.held)}


async def chat_form(world: World, run_id: str) -> Form:
    """What is in the chat of a run, and that it is what was said in it; nothing for one without a chat.

    Raises AssertionError."""
    loaded = await world.store.load(SCOPE, run_id)
    assert loaded is not None
    run = read_run(loaded.head, loaded.messages, loaded.receipts)
    if run.envelope.chat is None:
        return {}
    record = await world.store.load_chat(run.envelope.chat.chat_id)
    assert record is not None, f"{run_id} has ended, and its chat was never written"
    said = await read_transcript(world.store, loaded, run)
    state = await world.store.chat_state(loaded.head.rid)
    assert record.messages == said, f"the chat of {run_id} is {record.messages}, and what was said is {said}"
    assert record.message_ids == tuple(f"{run_id}:{place}" for place in range(len(said)))
    assert (state.status, state.cursor) == ("saved", len(said)), state
    return {"chat": list(said)}


async def judge(world: World, people: People, made: Scenario, plan: Plan, calm: Forms, wrong: list[str]) -> None:
    """Add to `wrong` whatever a schedule that is over must not have come to. `calm`: how its runs end without faults."""
    for key in sorted(world.effects.unsafe):
        run_id, _, call_id = key.rsplit("/", 2)
        if world.effects.starts[key] > 1 + world.witness.allowed(run_id, call_id):
            wrong.append(f"effect {key} started {world.effects.starts[key]} times")
    world.audit()
    if people.crowd is not None:
        people.crowd.judge(wrong)
    for run_id in made.run_ids:
        await _judge_run(world, people, made, run_id, calm.get(run_id), wrong)
    if made.swarm is not None:
        await _judge_swarm(world, wrong)
    # A run that is not in the middle of a step may be claimed from a young memory although a flush forgot its living holder.
    # Then two work on it until one hears of the other, and either may find in the middle what the other began.
    if plan.is_strict and not world.forced:
        if people.parks or people.quarantines:
            wrong.append(f"nobody died, and people were asked: {people.parks} {people.quarantines}")
        if world.operations["record_unclean_end"]:
            wrong.append("nobody died, and an unclean end was counted")


def _unnamed(message: Message) -> list[ToolResultPart]:
    """Its results without the ids of their calls: the scripted model numbers turns by what it is shown, and a message more may
    leave earlier ones out of that."""
    return [replace(part, call_id="") for part in message.parts if isinstance(part, ToolResultPart)]


async def _judge_run(world: World, people: People, made: Scenario, run_id: str, calm: Form | None, wrong: list[str]) -> None:
    head = await world.store.head(SCOPE, run_id)
    if head is None and run_id in made.below and (people.cancelled or calm is None):
        return
    assert head is not None, run_id
    assert calm is not None, run_id
    if run_id in made.poisoned:
        ends = await world.store.unclean_ends(SCOPE, run_id)
        if head.parked != QUARANTINE or len(ends) != 5:
            wrong.append(f"{run_id} is parked {head.parked} after {len(ends)} unclean ends")
        return
    run = await read(world, run_id)
    form = {**form_of(run), **await chat_form(world, run_id)}
    ended = world.witness.final.get(head.rid)
    if ended is not None and ended != (head.status, head.revision):
        wrong.append(f"{run_id} had ended as {ended}, and is {head.status} at revision {head.revision}")
    if head.kind == "agent" and run.envelope.reason != "aborted" and run.envelope.status != "failed":
        said = [message for message in run.history if not says_nothing(message)]  # the others are sent with a word of ours
        wrong += [f"{run_id}: {problem}" for problem in conversation_problems(said, is_request=False)]
    rows = await world.store.journal(SCOPE, run_id, 0, 10_000)
    if [row.seq for row in rows] != list(range(1, len(rows) + 1)) or len(rows) != head.journal_seq:
        wrong.append(f"{run_id} has a journal with gaps")
    if run_id in people.cancelled and not head.cancel_seq:
        wrong.append(f"{run_id} was cancelled, and nothing tells of it")
    if head.cancel_seq:  # only what has not ended takes a note
        if (run.envelope.status, run.envelope.reason) != ("stopped", "aborted"):
            wrong.append(f"{run_id} was cancelled and is {run.envelope.status} {run.envelope.reason}")
        return
    if people.cancelled and run_id.startswith("s"):
        return  # a task of a cancelled swarm has ended before, or never began
    if not made.answers:
        if (form["status"], (run.envelope.error or {}).get("code")) != ("failed", "deadline_exceeded"):
            wrong.append(f"{run_id} had to fail by its deadline and is {form['status']} {form['error']}")
        return
    if made.quarrels:
        return
    if run_id in people.mailed:
        heard = sum(message.text == "by the way" for message in run.transcript)
        if heard > 1 or (not heard and made.name == "mail"):  # others forget, or ask for their final answer when it comes
            wrong.append(f"{run_id} heard what was written to it {heard} times")
        stops_early = bool(made.agents[head.agent].stop_when)  # the message is one turn more
        if form["status"] != calm["status"] and not stops_early:
            wrong.append(f"{run_id} is {form['status']}, without faults {calm['status']}")
        written_to = made.agents[head.agent]
        if written_to.prepare_step is forget or (run.envelope.epoch and written_to.compaction is not None):
            return  # the script goes by what is shown, and the message may have moved what is left out of that
        results = [message for message in run.transcript if message.role == "tool"]
        wanted = [message for message in cast("list[Message]", calm["history"]) if message.role == "tool"]
        if [_unnamed(message) for message in results] != [_unnamed(message) for message in wanted]:
            wrong.append(f"{run_id} was written to, and its results are {results}, without faults {wanted}")
        return
    agent = made.agents.get(head.agent)
    repeats_summaries = agent is not None and agent.compaction is not None
    for name, value in form.items():
        if value != calm[name] and not (name == "usage" and repeats_summaries):
            wrong.append(f"{run_id}: {name} is {value!r}, without faults {calm[name]!r}")
    for scope in run.envelope.scopes:
        balance = await world.store.balance(scope)
        if balance is not None and balance.held.tokens:
            wrong.append(f"{run_id}: {balance.held.tokens} tokens are held for ever")


async def _judge_swarm(world: World, wrong: list[str]) -> None:
    head = await world.store.head(SCOPE, "s")
    assert head is not None
    snapshot = await world.store.swarm_snapshot(head.rid)
    assert snapshot is not None
    if snapshot.open or snapshot.ready or snapshot.running:
        wrong.append(f"the swarm has ended with open={snapshot.open} ready={snapshot.ready} running={snapshot.running}")
    events = await world.store.swarm_events(SCOPE, "s", 0, 10_000)
    wrong += [f"the swarm: {problem}" for problem in journal_problems(snapshot, events)]
