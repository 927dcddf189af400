"""Brakes: nothing begins of what they name, what is under way ends, and who waited goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deuz_workers import Agent, Deuz, MockModel, Reducer, Swarm, Task, tool
from deuz_workers.app.embedded import driver
from deuz_workers.core.brake import BrakeKind
from deuz_workers.core.limits import Limits
from deuz_workers.engine.controls import FRESH_MS
from deuz_workers.engine.restraint import BRAKED_MOST_MS
from deuz_workers.errors import ConfigurationError
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World


class Shop:
    """An agent that pays and then says so."""

    def __init__(self, *script: Any, limits: Limits | None = None) -> None:
        self.done = Effects()
        self.model = MockModel([*(script or (calls(call("pay")),)), "done"])
        self.fails = False
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.began = asyncio.Event()

        @tool
        async def pay() -> str:
            self.began.set()
            await self.may_end.wait()
            self.done("pay")
            if self.fails:
                raise ValueError("no money")
            return "paid"

        self.agent = Agent("clerk", model=self.model, tools=[pay], limits=limits)


async def until_held(app: Deuz, task: asyncio.Future[Any], times: int = 2) -> None:
    """A run of this process was put off, and again, since `task` was begun or last waited for."""
    store, seen, reached = app.store, 0, asyncio.Event()
    put_off = store.put_off

    async def counted(*args: Any) -> None:
        nonlocal seen
        await put_off(*args)
        seen += 1
        if seen >= times:
            reached.set()

    store.put_off = counted  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(reached.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    store.put_off = put_off
    waiting.cancel()
    assert not task.done(), task.result()


@pytest.mark.parametrize(
    ("kind", "name"), [("scope", "acme"), ("agent", "clerk"), ("queue", "in-process"), ("model", "mock:script")]
)
async def test_no_model_call_begins_under_a_brake(world: World, kind: BrakeKind, name: str) -> None:
    """Nothing is written of the run and nothing reserved; lifted, it goes on to its end."""
    shop = Shop()
    app = world.process(shop.agent)
    name = shop.model.name if kind == "model" else name
    await app.aio.operator.set_brake(kind, name, reason="it is too loud", actor="ann")
    running = asyncio.ensure_future(app.aio.run_embedded("clerk", "go", run_id="r", scope="acme"))
    await until_held(app, running)
    head = await world.head("r", "acme")
    assert (head.status, head.revision, len(shop.model.requests)) == ("queued", 0, 0)
    [brake] = await app.aio.operator.brakes()
    assert (brake.kind, brake.name, brake.reason, brake.actor) == (kind, name, "it is too loud", "ann")
    assert await app.aio.operator.lift_brake(kind, name, actor="bob")
    result = await running
    assert (result.status, shop.done.done) == ("completed", {"pay": 1})
    assert [(act.act, act.actor) for act in await app.aio.operator.brake_acts()] == [("lifted", "bob"), ("set", "ann")]


async def test_a_reply_is_saved_before_its_tool_waits(world: World) -> None:
    """The call that was paid for is not made again; no receipt says that the tool began."""
    shop = Shop()
    app = world.process(shop.agent)
    await app.aio.operator.set_brake("tool", "pay")
    running = asyncio.ensure_future(app.aio.run_embedded("clerk", "go", run_id="r"))
    await until_held(app, running)
    head = await world.head("r")
    assert (head.status, head.mid_step, head.model_step, await world.receipts("r")) == ("running", False, 1, {})
    assert head.attempts == 0
    await app.aio.operator.lift_brake("tool", "pay")
    assert (await running).status == "completed"
    assert (len(shop.model.requests), shop.done.done) == (2, {"pay": 1})


async def test_brakes_of_others_hold_nobody(memory: World) -> None:
    """Another scope, agent, tool, model and queue."""
    shop = Shop()
    app = memory.process(shop.agent)
    for kind in ("scope", "agent", "tool", "model", "queue"):
        await app.aio.operator.set_brake(kind, "other")
    assert (await app.aio.run_embedded("clerk", "go")).status == "completed"


async def test_a_brake_is_heeded_by_a_process_that_knows_no_brake(memory: World) -> None:
    """Half a second after its last look it looks again; what it began before ends and is saved."""
    shop = Shop(calls(call("pay")), calls(call("pay")))
    app = memory.process(shop.agent)
    shop.may_end.clear()
    running = asyncio.ensure_future(app.aio.run_embedded("clerk", "go", run_id="r"))
    await shop.began.wait()
    await app.aio.operator.set_brake("agent", "clerk")
    await asyncio.sleep(FRESH_MS / 1000)
    shop.may_end.set()
    await until_held(app, running, 1)
    head = await memory.head("r")
    assert (head.mid_step, len(shop.model.requests), shop.done.done) == (False, 1, {"pay": 1})
    await app.aio.operator.lift_brake("agent", "clerk")
    assert (await running).status == "completed"
    assert shop.done.done == {"pay": 2}


async def test_calls_of_a_batch_that_have_not_begun_wait(memory: World) -> None:
    """Of three calls one at a time, the first ends and the others begin when the brake is lifted; none runs twice."""
    shop = Shop(calls(*(call("pay").with_id(f"c{n}") for n in range(3))), limits=Limits(tool_concurrency=1))
    app = memory.process(shop.agent)
    shop.may_end.clear()
    running = asyncio.ensure_future(app.aio.run_embedded("clerk", "go", run_id="r"))
    await shop.began.wait()
    await app.aio.operator.set_brake("tool", "pay")
    await asyncio.sleep(FRESH_MS / 1000)
    shop.may_end.set()
    await until_held(app, running)
    stages = [receipt.stage for receipt in (await memory.receipts("r")).values()]
    assert (stages, shop.done.done, (await memory.head("r")).attempts) == (["completed"], {"pay": 1}, 0)
    await app.aio.operator.lift_brake("tool", "pay")
    assert (await running).status == "completed"
    assert shop.done.done == {"pay": 3}


async def test_an_interrupted_call_waits_without_unclean_ends(memory: World) -> None:
    """A worker died in an idempotent tool: under a brake the call is not repeated, and each look is no further death."""
    dies, done = [True], Effects()

    @tool(replay="idempotent")
    async def pay() -> str:
        if dies:
            raise ProcessDied
        done("pay")
        return "paid"

    agent = Agent("clerk", model=MockModel([calls(call("pay")), "done"]), tools=[pay])
    with pytest.raises(ProcessDied):
        await memory.process(agent).aio.run_embedded("clerk", "go", run_id="r")
    dies.clear()
    app = memory.process(agent)
    await app.aio.operator.set_brake("tool", "pay")
    running = asyncio.ensure_future(app.aio.resume_embedded("r"))
    await until_held(app, running, 3)
    assert ((await memory.head("r")).attempts, done.done) == (1, {})
    await app.aio.operator.lift_brake("tool", "pay")
    assert ((await running).status, done.done) == ("completed", {"pay": 1})


async def test_a_cancel_ends_a_run_that_waits_for_a_brake(memory: World) -> None:
    """Which begins nothing, so no brake keeps it."""
    shop = Shop()
    app = memory.process(shop.agent)
    await app.aio.operator.set_brake("agent", "clerk")
    running = asyncio.ensure_future(app.aio.run_embedded("clerk", "go", run_id="r"))
    await until_held(app, running)
    await app.aio.handle("r").cancel()
    result = await running
    assert (result.status, result.reason, len(shop.model.requests)) == ("stopped", "aborted", 0)


async def test_a_reducer_waits_too(memory: World) -> None:
    """Its function is an effect; the tasks before it are not held."""
    reduced = Effects()

    async def merge(results: Any, context: Any) -> str:
        reduced("merge")
        return "merged"

    app = memory.process(Agent("a", model=MockModel(["done"])), reducers=[Reducer("merge", merge)])
    swarm = Swarm("s", [Task("one", agent="a", prompt="go"), Task("all", reducer="merge", depends_on=["one"])])
    await app.aio.operator.set_brake("agent", "merge")
    running = asyncio.ensure_future(app.aio.run_swarm_embedded(swarm, run_id="s"))
    await until_held(app, running)
    assert ((await memory.head("s/one")).status, reduced.done) == ("completed", {})
    await app.aio.operator.lift_brake("agent", "merge")
    assert ((await running).status, reduced.done) == ("completed", {"merge": 1})


async def test_a_run_under_a_brake_is_looked_at_ever_less_often(memory: World) -> None:
    """And brought near again by the one who lifts it."""
    shop = Shop()
    app = memory.process(shop.agent)
    await app.aio.enqueue("clerk", "go", run_id="r")
    await app.aio.operator.set_brake("agent", "clerk")
    async with driver(app, queues=("default",)) as driving:
        stop = asyncio.Event()
        serving = asyncio.ensure_future(driving.serve(stop))
        await until_held(app, serving, 1)
        for _ in range(30):
            await memory.store.put_off("default", "r", 1_000, BRAKED_MOST_MS)
        assert await memory.store.sweep(limit=9, ttl_ms=1_000) == ()
        assert await app.aio.operator.lift_brake("agent", "clerk")
        assert (await app.aio.handle("r").result(timeout=20)).status == "completed"
        stop.set()
        await serving


@pytest.mark.parametrize(("kind", "name"), [("planet", "x"), ("tool", ""), ("tool", "a\nb"), ("scope", "x" * 600)])
async def test_what_can_be_no_brake_is_refused(memory: World, kind: Any, name: str) -> None:
    """Before anything is written."""
    operator = memory.process(Shop().agent).aio.operator
    for say in (operator.set_brake, operator.lift_brake):
        with pytest.raises(ConfigurationError):
            await say(kind, name)
    with pytest.raises(ConfigurationError):
        await operator.set_brake("tool", "pay", reason="x" * 5_000)
    assert await operator.brakes() == ()
