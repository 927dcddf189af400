"""A policy that a run is given late holds for all that it delegated, and for what it delegates meanwhile."""

from __future__ import annotations

from typing import cast

import pytest

from deuz_workers import Agent, ExecutionPolicy, tool
from deuz_workers.core.codec import encode
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import RunStore
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.delegating import ask, boss, gated, scripted
from tests.app.test_narrowing import DyingStore
from tests.app.world import Effects, World

NO_PAY = ExecutionPolicy(allowed_tools={"boss", "mid", "payer", "narrow"})


class Tree:
    """A run that asks a run that asks a run, which asks before it pays; and what was paid."""

    def __init__(self) -> None:
        self.paid = Effects()

    @property
    def root(self) -> Agent:
        mid = scripted("mid", calls(call("payer", prompt="pay")), "up", tools=[gated(self.paid)])
        return boss(mid)

    async def waits(self, world: World, run_id: str = "r") -> str:
        """The id of the request, two below the root."""
        [asked] = (await world.process(self.root).aio.run_embedded("boss", "go", run_id=run_id)).pending_approvals
        return asked.approval_id


@pytest.mark.parametrize("door", ["narrow", "approve", "resume"])
async def test_what_narrows_the_root_narrows_all_below(world: World, door: str) -> None:
    """By whatever door it comes, and by whatever run's item it comes with: the approved call does not run."""
    tree = Tree()
    asked = await tree.waits(world)
    app = world.process(tree.root)
    handle = app.aio.handle("r")
    if door == "narrow":
        assert await handle.narrow(NO_PAY)
        await handle.approve(asked)
    elif door == "approve":
        await handle.approve(asked, policy=NO_PAY)
    else:
        await app.aio.resume_embedded("r", approvals={asked: True}, policy=NO_PAY)
    result = await app.aio.resume_embedded("r")
    assert (result.status, tree.paid.done) == ("completed", {})
    below = ask("mid")
    for run_id in ("r", below, ask("payer", parent=below)):
        assert (await app.aio.handle(run_id).envelope()).policy == NO_PAY, run_id


async def test_a_death_between_any_two_notes_lets_nothing_run_below(world: World) -> None:
    """The sender dies at each of its writes; whoever goes on with the root tells those below it what it was told."""
    tree = Tree()
    ends: list[tuple[bool, int]] = []
    for at in range(1, 6):
        run_id = f"r-{at}"
        asked = await tree.waits(world, run_id)
        dying = cast(RunStore, DyingStore(world.store, at, applied=True))
        died = False
        try:
            await world.process(tree.root, store=dying).aio.handle(run_id).approve(asked, policy=NO_PAY)
        except ProcessDied:
            died = True
        app = world.process(tree.root)
        result = await app.aio.resume_embedded(run_id)
        if result.status == "suspended":
            await app.aio.handle(run_id).approve(asked)
            result = await app.aio.resume_embedded(run_id)
        assert result.status == "completed"
        ends.append((died, len(tree.paid.done)))
    assert ends == [(True, 0), (True, 0), (True, 0), (True, 0), (False, 0)]


async def test_what_is_delegated_behind_an_unread_note_is_held_to_it(world: World) -> None:
    """A tool of the same turn narrows the run: the commit that creates the child waits until the run has read that."""
    paid = Effects()

    @tool
    async def narrow() -> None:
        await world.store.add_note("default", "r", "policy", encode(NO_PAY.to_record()))

    @tool
    async def pay() -> None:
        paid("pay")

    payer = scripted("payer", calls(call("pay")), "paid", tools=[pay])
    root = scripted("boss", calls(call("narrow"), call("payer", prompt="pay")), "done", tools=[narrow, payer])
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    assert (result.status, paid.done) == ("completed", {})
    [_, answer] = [part for message in result.messages for part in message.tool_results]
    assert (answer.outcome, answer.reason) == ("child-failed", "tool_not_allowed")


@pytest.mark.parametrize("delegates", [True, False])
async def test_a_note_of_a_later_build_stops_what_would_begin_or_end_without_it(memory: World, delegates: bool) -> None:
    """It comes while a step is under way: nothing is delegated, and the run does not complete; what its tool did is saved."""
    done = Effects()

    async def from_a_later_build() -> None:
        await memory.store.add_note("default", "r", "policy", encode({"allowed_tools": "read", "of": "a later build"}))

    @tool
    async def narrow() -> None:
        done("narrow")
        await from_a_later_build()

    async def answer(_: ModelRequest) -> Entry:
        await from_a_later_build()
        return "done"

    payer = scripted("payer", "paid")
    script = (calls(call("narrow"), call("payer", prompt="pay")), "done") if delegates else (answer,)
    app = memory.process(scripted("boss", *script, tools=[narrow, payer]))
    result = await app.aio.run_embedded("boss", "go", run_id="r")
    assert (result.status, dict(result.error or {})["name"]) == ("failed", "CodecError")
    head = await memory.head("r")
    assert (head.status, head.seen_seq, head.mid_step) == ("running", 0, False)
    assert [receipt.stage for receipt in (await memory.receipts("r")).values()] == ["completed"] * delegates
    assert await app.store.head("default", ask("payer", "call_1_2")) is None
    assert await app.aio.handle("r").cancel()
    assert (await app.aio.resume_embedded("r")).status == "stopped"
    assert done.done == ({"narrow": 1} if delegates else {})
