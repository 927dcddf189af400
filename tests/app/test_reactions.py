"""Every state of a run against every input, through the doors that people and programs use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from deuz_workers import Agent, Deuz, Limits, MockModel, ModelRequestError, ModelUnavailableError, client_tool, tool
from deuz_workers.core.codec import encode
from deuz_workers.core.messages import message_to_record, user
from deuz_workers.core.reactions import REACTIONS, Input, Reaction, State, page
from deuz_workers.errors import DeuzError
from deuz_workers.ports.store import Loaded
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import World

STATES: tuple[State, ...] = get_args(State)
INPUTS: tuple[Input, ...] = get_args(Input)


def agent(state: State, *, dies: bool = False) -> Agent:
    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    @tool
    async def act() -> str:
        if dies:
            raise ProcessDied
        return "did it"

    ask = client_tool("ask", "Asks.", {"type": "object", "properties": {}})
    scripts: dict[State, list[Entry]] = {
        "suspended": [calls(call("pay").with_id("p"), call("ask").with_id("a")), "done"],
        "parked": [calls(call("act").with_id("c")), "done"],
        "stopped": [calls(call("act"))],
        "failed": [ModelRequestError("wrong")],
        "failed-transient": [ModelUnavailableError("away")],
    }
    limits = Limits(max_retries=0, max_steps=1 if state == "stopped" else 20)
    return Agent("x", model=MockModel(scripts.get(state, ["done"])), tools=[pay, act, ask], limits=limits)


async def reach(world: World, state: State, run_id: str) -> None:
    """A run in this state, whose last process is gone."""
    if state == "queued":
        await world.process(agent(state)).aio.enqueue("x", "go", run_id=run_id)
    elif state == "running":
        with pytest.raises(ProcessDied):
            await world.dying(agent(state), at=1, applied=True).aio.run_embedded("x", "go", run_id=run_id)
    elif state == "parked":
        with pytest.raises(ProcessDied):
            await world.process(agent(state, dies=True)).aio.run_embedded("x", "go", run_id=run_id)
        await world.process(agent(state)).aio.resume_embedded(run_id)
    else:
        await world.process(agent(state)).aio.run_embedded("x", "go", run_id=run_id)
    head = await world.head(run_id)
    assert (head.parked is not None, head.status) == (
        state == "parked",
        "running" if state == "parked" else state.removesuffix("-transient"),
    )
    await world.later(60_000)


async def put_in(app: Deuz, world: World, run_id: str, given: Input) -> None:
    """The input, by the door that it has."""
    handle = app.aio.handle(run_id)
    body = encode({"message": message_to_record(user("hello"))})
    doors: dict[Input, Callable[[], Awaitable[Any]]] = {
        "resume": lambda: app.aio.resume_embedded(run_id),
        "verdict": lambda: handle.approve("p"),
        "client-result": lambda: handle.answer("a", "yes"),
        "reconcile": lambda: handle.reconcile({"c": "it had"}),
        "retry": lambda: handle.retry(),
        "retry-failed": lambda: handle.retry_failed(),
        "cancel": lambda: handle.cancel(),
        "message": lambda: world.store.add_note("default", run_id, "message", body),
        "prune": lambda: app.aio.prune(timedelta(0), batch=1),
        "fork": lambda: app.aio.fork(run_id, 0, new_run_id=f"{run_id}-fork"),
    }
    await doors[given]()


async def stored(world: World, run_id: str) -> Loaded | None:
    """The rows, without what only the clock moves."""
    loaded = await world.store.load("default", run_id)
    if loaded is None:
        return None
    items = tuple(replace(item, expires_in_ms=None) for item in loaded.items)
    head = replace(loaded.head, due_in_ms=None, deadline_in_ms=None, start_before_in_ms=None)
    return replace(loaded, head=head, items=items)


async def reaction(world: World, state: State, given: Input, run_id: str) -> Reaction:
    """What the input did to the rows of the run."""
    app = world.process(agent(state))
    before = await stored(world, run_id)
    try:
        await put_in(app, world, run_id, given)
    except DeuzError:
        assert await stored(world, run_id) == before, "a refusal writes nothing"
        return "refused"
    after = await stored(world, run_id)
    if after is None:
        return "gone"
    assert before is not None
    if await world.store.head("default", f"{run_id}-fork") is not None:
        assert after == before
        return "copied"
    if after == before:
        return "stays"
    if after.head.cancel_seq > before.head.cancel_seq:
        assert (await app.aio.resume_embedded(run_id)).reason == "aborted"
        return "ends"
    if after.head.revision > before.head.revision or (before.head.parked and not after.head.parked):
        return "goes on"
    assert (after.head.wake_seq > before.head.wake_seq) != (after.items != before.items)
    return "stored"


@pytest.mark.parametrize("state", STATES)
async def test_every_input_does_what_the_table_says(world: World, state: State) -> None:
    """Through its door, for a run in this state; no pair that is not listed is accepted, since all are listed."""
    found: dict[Input, Reaction] = {}
    for given in INPUTS:
        run_id = f"{state}-{given}"
        await reach(world, state, run_id)
        found[given] = await reaction(world, state, given, run_id)
        await world.store.prune(older_ms=-1, status=("completed", "stopped", "failed"), scope=None, limit=100)
    assert found == REACTIONS[state]


def test_the_table_is_total_and_on_the_page() -> None:
    """A reaction for each state and input; `docs/states.md` shows it as it is."""
    assert set(REACTIONS) == set(STATES)
    assert all(set(row) == set(INPUTS) and set(row.values()) <= set(get_args(Reaction)) for row in REACTIONS.values())
    assert page() in (Path(__file__).parents[2] / "docs" / "states.md").read_text()
