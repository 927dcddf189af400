"""Runs that are driven at once in one process over one store: each by its own driver, and by no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from deuz_workers import Agent, Deuz, MockModel, Settings, ToolContext, run_agent, tool
from deuz_workers.app.connections import leases_beside
from deuz_workers.app.driven import answered
from deuz_workers.app.embedded import driver
from deuz_workers.app.order import IN_PROCESS_QUEUE
from deuz_workers.app.run_agent import application_of
from deuz_workers.core.change import Bell
from deuz_workers.core.names import run_lease_key
from deuz_workers.ports.leases import Held
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import NewRun, RunStore
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.store.opening import MEMORY, open_store
from tests.app.delegating import boss, scripted
from tests.app.world import World


class SweptStore:
    """Knows when another driver's sweep came by a run, and had the time to take a step of it."""

    def __init__(self, inner: RunStore, run_id: str) -> None:
        self._inner, self._run_id = inner, run_id
        self.found = self.waits = False
        self.passed = asyncio.Event()
        self.blind: asyncio.Task[Any] | None = None
        """Its own driver, whose sweep finds nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def sweep(self, **given: Any) -> tuple[Bell, ...]:
        if asyncio.current_task() is self.blind:
            return ()
        if self.found:
            self.passed.set()
        bells = await self._inner.sweep(**given)
        self.found = self.found or any(bell.run_id == self._run_id for bell in bells)
        return bells

    async def create(self, asked: NewRun) -> Any:
        """The run that is watched is found by others before the one who asked for it goes on."""
        created = await self._inner.create(asked)
        if self.waits and asked.run_id == self._run_id:
            await self.passed.wait()
        return created


async def test_calls_over_one_store_object_see_what_the_others_execute(memory: World) -> None:
    """A run whose time to be swept comes while its model is asked is found by the driver beside it, and not taken over."""
    store = SweptStore(memory.store, "slow")
    asked: list[str] = []
    begun = asyncio.Event()

    async def think(request: ModelRequest) -> Entry:
        asked.append(request.messages[0].text)
        begun.set()
        await store.passed.wait()
        return "done"

    agent = Agent("x", model=MockModel.function(think))
    slow = asyncio.create_task(run_agent(agent, "slow", store=cast(RunStore, store), run_id="slow"))
    store.blind = slow
    await begun.wait()
    await memory.store.postpone("default", "slow", 0)
    beside = await run_agent(agent, "beside", store=cast(RunStore, store), run_id="beside")
    ends = [(await slow).status, beside.status]
    assert (ends, asked) == (["completed", "completed"], ["slow", "beside"])
    assert (await memory.head("slow")).attempts == 0


async def test_calls_over_one_store_object_share_their_leases(memory: World) -> None:
    """Those over another one have their own; a store that cannot be a key is taken all the same."""
    agent = Agent("x", model=MockModel(["hello"]))
    one, two = (application_of(agent, memory.store)[0] for _ in range(2))
    other, _ = application_of(agent, cast(RunStore, SweptStore(memory.store, "r")))
    assert one.leases is two.leases
    assert one.leases is not other.leases

    class Unhashable(SweptStore):
        __hash__ = None  # pyright: ignore[reportAssignmentType]

    assert (await run_agent(agent, "hi", store=cast(RunStore, Unhashable(memory.store, "r")))).status == "completed"


async def test_processes_with_a_store_object_each_exclude_one_another(world: World) -> None:
    """Two store objects over one database, as two processes have them: who would take a run that the other executes is told so,
    by way of `run_agent` or of an application whose settings name no leases. A database in memory is no other's."""
    if world.url == MEMORY:
        assert leases_beside(world.store) is None
        return
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: ModelRequest) -> Entry:
        begun.set()
        await go_on.wait()
        return "hello"

    theirs = open_store(world.url)
    running = asyncio.create_task(run_agent(Agent("x", model=MockModel.function(wait)), "hi", store=world.store, run_id="r"))
    await begun.wait()
    beside = leases_beside(theirs)
    assert beside is not None
    app = Deuz(settings=Settings(database_url="sqlite:///nowhere.db"), store=theirs)
    for leases in (beside, app.leases):
        assert isinstance(await leases.acquire(run_lease_key("default", "r"), "other", 30_000), Held)
    go_on.set()
    assert (await running).output == "hello"
    assert not isinstance(await beside.acquire(run_lease_key("default", "r"), "other", 30_000), Held)
    await beside.close()
    await app.aclose()


async def test_a_store_object_leaves_no_file_where_nobody_asked_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of a store in a file are held beside that file, and those of one in memory in memory: never in a file that is
    named after a setting that says nothing about this store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for url in (MEMORY, f"sqlite:///{tmp_path}/data/runs.db"):
        app = Deuz([Agent("x", model=MockModel(["hello"]))], store=open_store(url))
        assert (await app.aio.run_embedded("x", "hi")).output == "hello"
        await app.aclose()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert {"runs.db", "runs.db.leases"} <= {path.name for path in (tmp_path / "data").iterdir()}


async def test_what_was_given_to_a_run_is_there_whoever_finds_it(memory: World) -> None:
    """The sweep of the driver beside it finds a run before its own driver looks: its tools have their context all the same."""
    store = SweptStore(memory.store, "mine")
    store.waits = True
    seen: list[object] = []

    @tool
    async def look(context: ToolContext) -> str:
        seen.append(context.runtime_context)
        return "seen"

    async def wait(_: ModelRequest) -> Entry:
        await store.passed.wait()
        return "waited"

    looker = scripted("looker", calls(call("look")), "done", tools=[look])
    app = memory.process(looker, Agent("waiter", model=MockModel.function(wait)), store=cast(RunStore, store))
    beside = asyncio.ensure_future(app.aio.run_embedded("waiter", "go"))
    result = await app.aio.run_embedded("looker", "go", run_id="mine", runtime_context="given")
    assert (result.status, seen, (await beside).status) == ("completed", ["given"], "completed")


async def test_bells_of_delegated_runs_go_to_whoever_drives_the_root(memory: World) -> None:
    """Also those whose id is a digest; bells of other runs, and of runs that are driven no more, stay."""
    app = memory.process(boss(scripted("sub", "done")))
    async with driver(app) as mine, driver(app) as beside:

        def bell(run_id: str) -> Bell:
            return Bell("default", run_id, IN_PROCESS_QUEUE)

        with answered(app.store, "default", "r", mine.doorbell):
            await beside.doorbell.ring([bell("r"), bell("r/sub:1:c"), bell("r/~0f"), bell("rest"), bell("rest/r")])
            assert (mine.doorbell.waiting, beside.doorbell.waiting) == (3, 2)
        await beside.doorbell.ring([bell("r/sub:1:d")])
        assert (mine.doorbell.waiting, beside.doorbell.waiting) == (3, 3)
