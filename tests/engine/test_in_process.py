"""The driver in process: what it takes, whom it hears, when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from deuz_workers import Agent, Deuz, MockModel, RunNotFoundError, Settings, UnknownAgentError, tool
from deuz_workers.app.embedded import driver
from deuz_workers.core.change import Bell
from deuz_workers.engine.in_process import LocalDoorbell
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, call, calls


@pytest.fixture
async def app() -> AsyncGenerator[Deuz]:
    """Two agents over a database in memory: one that answers at once, one that waits for `gate`."""
    settings = Settings(database_url="sqlite://:memory:", redis_url=None, broker_url=None, leases_url="memory://")

    async def wait(request: ModelRequest) -> Entry:
        await gate.wait()
        return "late"

    app = Deuz([Agent("quick", model=MockModel(["hi"])), Agent("slow", model=MockModel.function(wait))], settings=settings)
    gate = app.__dict__["gate"] = asyncio.Event()
    yield app
    await app.aclose()


async def test_what_cannot_be_driven_is_reported_and_the_rest_goes_on(app: Deuz) -> None:
    """An unknown run, a run of an agent that is not known here, and one that ends: each for itself."""
    client = Deuz(settings=app.settings, store=app.store)
    foreign = await client.aio.enqueue("nobody", "go")
    mine = await app.aio.enqueue("quick", "go")
    async with driver(app) as driving:
        names = [("default", run_id) for run_id in (foreign.run_id, mine.run_id, "nosuch")]
        refused = await driving.drive(names)
    assert {name: type(error) for name, error in refused.items()} == {
        names[0]: UnknownAgentError,
        names[2]: RunNotFoundError,
    }
    assert (await mine.result()).output == "hi"
    assert await foreign.status() == "queued"


async def test_it_takes_nothing_from_queues_that_are_others(app: Deuz) -> None:
    """Neither by a bell nor by the sweep, unless it is asked to drive the run."""
    others = await app.aio.enqueue("quick", "go", queue="others")
    mine = await app.aio.enqueue("quick", "go", queue="mine")
    async with driver(app, queues=("mine",)) as driving:
        await app.doorbell.offer([Bell("default", others.run_id, "others")])
        await driving.drive([("default", mine.run_id)])
        assert await others.status() == "queued"
        assert await driving.drive([("default", others.run_id)]) == {}
    assert (await others.result()).output == "hi"


async def test_at_most_so_many_steps_at_a_time(app: Deuz) -> None:
    """The others wait in the doorbell, and follow when one has ended."""
    slow = [await app.aio.enqueue("slow", "go") for _ in range(5)]
    async with driver(app, concurrency=2) as driving:
        running = asyncio.ensure_future(driving.drive([("default", handle.run_id) for handle in slow]))
        while [await handle.status() for handle in slow].count("running") < 2:  # noqa: ASYNC110 - a store has no event
            await asyncio.sleep(0.001)
        assert driving.running_steps == 2
        app.__dict__["gate"].set()
        assert await running == {}
    assert [(await handle.result()).output for handle in slow] == ["late"] * 5


async def test_serving_ends_when_it_is_told_and_every_step_ends_first(app: Deuz) -> None:
    """A tool in flight is waited for, its outcome is stored, and no further turn is taken."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        begun.set()
        await may_end.wait()
        return "worked"

    model = MockModel([calls(call("work")), calls(call("work")), "done"])
    working = Deuz([Agent("x", model=model, tools=[work])], settings=app.settings, store=app.store)
    handle = await working.aio.enqueue("x", "go")
    stop = asyncio.Event()
    async with driver(working, queues=None) as driving:
        await working.doorbell.offer([Bell("default", handle.run_id, "default")])
        serving = asyncio.ensure_future(driving.serve(stop))
        await begun.wait()
        stop.set()
        await asyncio.sleep(0)
        may_end.set()
        await serving
        assert driving.running_steps == 0
    envelope = await handle.envelope()
    assert (envelope.status, envelope.checkpoint.step, len(model.requests)) == ("running", 1, 1)
    assert (await working.aio.resume_embedded(handle.run_id)).output == "done"


async def test_a_doorbell_is_heard_from_other_threads_and_forgotten_with_its_loop() -> None:
    """Bells are taken in the order of their first ring, each run once."""
    bell = LocalDoorbell()
    bells = [Bell("s", run_id, "q") for run_id in ("a", "b", "a")]
    await asyncio.to_thread(lambda: asyncio.run(bell.ring(bells)))
    await asyncio.wait_for(bell.rang.wait(), 5)
    assert [taken.run_id for taken in iter(bell.take, None)] == ["a", "b"]


def test_a_bell_for_a_loop_that_is_gone_is_dropped() -> None:
    """Whoever rings does not learn of it: the sweep finds the run."""

    async def make() -> LocalDoorbell:
        return LocalDoorbell()

    bell = asyncio.run(make())
    asyncio.run(bell.ring([Bell("s", "a", "q")]))
    assert bell.waiting == 0
