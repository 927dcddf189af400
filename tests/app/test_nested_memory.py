"""Whose memories a run has that another one's tool starts: those of that one, or of fewer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from deuz_workers import (
    Agent,
    AgentResult,
    Memory,
    MemoryScope,
    MemorySeams,
    MockModel,
    RunFacts,
    create_execution_context,
    run_agent,
    tool,
)
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.memory import MemoryStore
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.script import Entry, call, calls
from tests.app.world import World

ANN, BOB = MemoryScope(user_id="ann"), MemoryScope(user_id="bob")
ANN_HERE = MemoryScope(user_id="ann", chat_id="c")


class Searches:
    """The memories of the world's store, and whose were looked for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked: list[MemoryScope] = []

    async def find_memories(self, scope: str, of: MemoryScope, query: Any) -> Any:
        self.asked.append(of)
        return await self._world.store.find_memories(scope, of, query)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.store, name)


class Family:
    """A run whose tool does what it is told, and agents for it to start, which all search in one store."""

    def __init__(self, world: World, of: MemoryScope | None) -> None:
        self.searches = Searches(world)
        self.world = world
        self.of = of
        self.models: list[MockModel] = []

    def remembers(self, scope: Any) -> Memory:
        return Memory(scope, MemorySeams(store=cast(MemoryStore, self.searches)), extract=False)

    def inner(self, scope: Any, gate: asyncio.Event | None = None, begun: asyncio.Event | None = None) -> Agent:
        async def think(_: ModelRequest) -> Entry:
            if begun is not None:
                begun.set()
            if gate is not None:
                await gate.wait()
            return "found"

        model = MockModel.function(think, model="inner")
        self.models.append(model)
        return Agent("inner", model=model, memory=self.remembers(scope))

    async def run(self, work: Any) -> AgentResult[Any]:
        @tool
        async def ask(context: ToolContext) -> str:
            await work(context.execution)
            return "asked"

        memory = None if self.of is None else self.remembers(self.of)
        boss = Agent("boss", model=MockModel([calls(call("ask")), "done"]), tools=[ask], memory=memory)
        result = await self.world.process(boss).aio.run_embedded("boss", "go", run_id="job")
        assert result.status == "completed"
        return result


async def start(agent: Agent, execution: Execution) -> str:
    """Its code if it failed, else `completed`."""
    result = await run_agent(agent, "look", execution=execution)
    return str((result.error or {}).get("code", result.status))


@pytest.mark.spec("MEM-028", "CHD-007")
@pytest.mark.parametrize("shares", [True, False], ids=["own context", "child"])
@pytest.mark.parametrize(
    ("scope", "end"),
    [(ANN, "completed"), (ANN_HERE, "completed"), (BOB, "memory_scope"), (MemoryScope(chat_id="c"), "memory_scope")],
    ids=["same", "narrower", "other", "wider"],
)
@pytest.mark.parametrize("told", ["value", "function"])
async def test_a_nested_run_narrows_the_memory_scope(
    world: World, scope: MemoryScope, end: str, shares: bool, told: str
) -> None:
    """Whether it was given a child context or that of the run itself, and whether its scope is a value or a function says it;
    a wider one fails before any call of a model or of the memory."""
    family = Family(world, ANN)

    def scope_of(facts: RunFacts) -> MemoryScope:
        return scope

    inner = family.inner(scope if told == "value" else scope_of)
    ends: list[str] = []

    async def work(execution: Execution) -> None:
        ends.append(await start(inner, execution if shares else execution.child("a").child("b")))

    await family.run(work)
    assert ends == [end]
    works = end == "completed"
    assert (family.searches.asked, len(family.models[0].requests)) == ([ANN, scope] if works else [ANN], works)


@pytest.mark.spec("MEM-028")
def test_a_scope_without_any_id_is_none() -> None:
    """It would reach everybody's memories."""
    with pytest.raises(ConfigurationError):
        MemoryScope()


@pytest.mark.spec("MEM-029")
async def test_runs_on_one_context_are_nested_in_each_other(world: World) -> None:
    """Beside one that is active, another user's fails before any call and one with an added chat works; when the first has
    ended, what is compared is the latest that still runs, and behind all of them nothing."""
    family = Family(world, None)
    ends: list[str] = []

    async def work(execution: Execution) -> None:
        gates, begun = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]
        first = asyncio.ensure_future(start(family.inner(ANN, gates[0], begun[0]), execution))
        await begun[0].wait()
        ends.append(await start(family.inner(BOB), execution))
        second = asyncio.ensure_future(start(family.inner(ANN_HERE, gates[1], begun[1]), execution))
        await begun[1].wait()
        ends.append(await start(family.inner(ANN), execution))
        gates[0].set()
        ends.append(await first)
        ends.append(await start(family.inner(ANN), execution))
        ends.append(await start(family.inner(ANN_HERE), execution))
        gates[1].set()
        ends.append(await second)
        ends.append(await start(family.inner(BOB), execution))

    await family.run(work)
    assert ends == [
        "memory_scope",
        "memory_scope",
        "completed",
        "memory_scope",
        "completed",
        "completed",
        "completed",
    ]
    assert family.searches.asked == [ANN, ANN_HERE, ANN_HERE, BOB]
    assert [len(model.requests) for model in family.models] == [1, 0, 1, 0, 0, 1, 1]


@pytest.mark.spec("MEM-030")
async def test_children_of_a_context_of_the_application_s_may_have_different_users(world: World) -> None:
    """Both work, and both are charged there; a child of a run's own context may not."""
    family = Family(world, ANN)
    context = create_execution_context(budget_key="team:blue", tokens=100_000)
    for place, scope in enumerate((ANN, BOB)):
        options: Any = context.narrowed(None).options
        app = world.process(family.inner(scope))
        assert (await app.aio.run_embedded("inner", "go", run_id=str(place), **options)).status == "completed"
    found = await world.store.balance("team:blue")
    assert found is not None
    assert found.spent.tokens == 30
    ends: list[str] = []

    async def work(execution: Execution) -> None:
        ends.append(await start(family.inner(BOB), execution.child("a")))

    await family.run(work)
    assert ends == ["memory_scope"]
