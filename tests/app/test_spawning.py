"""Tasks that tasks create: with their end, as a set, within the limits and under the bounds of the swarm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    Budget,
    DynamicLimits,
    ExecutionPolicy,
    FailureContext,
    Inconclusive,
    MockModel,
    ReducerContext,
    Rejected,
    SpawnContext,
    Swarm,
    SwarmDefinitionError,
    SwarmResult,
    Task,
    TaskRequest,
    reducer,
    tool,
)
from deuz_workers.core.names import run_scope_key
from deuz_workers.errors import ModelRequestError
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World

LIMITS = DynamicLimits(max_tasks=20, max_spawn_depth=3)


@reducer
def total(results: Mapping[str, object]) -> object:
    """All results, as pairs."""
    return sorted(results.items())


def said(text: str = "fine", name: str = "x", **given: Any) -> Agent:
    """Answers every request with the same."""
    return Agent(name, model=MockModel.function(lambda request: text), **given)


SHARDS = (
    TaskRequest("north", agent="x", prompt="north"),
    TaskRequest("south", agent="x", prompt="south"),
    TaskRequest("total", reducer="total", depends_on=("plan/north", "plan/south")),
)


@reducer(name="plan")
def plan_shards(results: Mapping[str, object], context: ReducerContext) -> str:
    """One task for each shard, and one for their total."""
    context.spawn(SHARDS)
    return "planned"


async def run(world: World, *agents: Agent, reducers: Iterable[Any] = (), **given: Any) -> SwarmResult:
    given = {"dynamic": LIMITS, **given}
    tasks = given.pop("tasks", [Task("plan", reducer="plan")])
    app = world.process(*agents, reducers=[total, *reducers])
    return await app.aio.run_swarm_embedded(Swarm("s", tasks, **given), run_id="s1")


async def error_of(world: World, task: str) -> Mapping[str, Any]:
    return (await world.process().aio.handle(f"s1/{task}").envelope()).error or {}


@pytest.mark.spec("DYN-002", "DYN-005", "DYN-011", "SWM-032")
async def test_a_reducer_and_an_agent_create_tasks(world: World) -> None:
    """A reducer by its context, an agent by what its binding makes of the accepted output; the journal names the parent."""
    result = await run(world, said(), reducers=[plan_shards])
    assert (result.status, list(result.tasks)) == ("completed", ["plan", "plan/north", "plan/south", "plan/total"])
    assert result.outputs == {"plan": "planned", "plan/total": [("plan/north", "fine"), ("plan/south", "fine")]}
    handle = world.process().aio.swarm_handle("s1")
    spawned = [event async for event in handle.swarm_events() if event.type == "task.spawned"]
    assert [(event.task_id, event.detail) for event in spawned] == [
        (f"plan/{key}", {"parent": "plan"}) for key in ("north", "south", "total")
    ]

    seen: list[tuple[object, SpawnContext]] = []

    def shards(output: object, context: SpawnContext) -> list[TaskRequest]:
        seen.append((output, context))
        return [TaskRequest(name, agent="x", prompt=name) for name in str(output).split()]

    planner = said("east west", "planner", spawn=shards)
    app = world.process(planner, said())
    tasks = [Task("a", agent="planner", prompt="go")]
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks, dynamic=LIMITS), run_id="s2")
    assert list(result.tasks) == ["a", "a/east", "a/west"]
    assert (result.status, seen) == ("completed", [("east west", SpawnContext("default", "s2/a", "a"))])


@pytest.mark.spec("DYN-002")
async def test_what_a_reducer_that_raises_asked_for_is_forgotten(world: World) -> None:
    """It fails, and nothing was created."""

    @reducer(name="plan")
    def raising(results: Mapping[str, object], context: ReducerContext) -> None:
        context.spawn(SHARDS)
        raise ValueError("no plan")

    result = await run(world, said(), reducers=[raising])
    assert result.tasks == {"plan": "failed"}
    assert "no plan" in (await error_of(world, "plan"))["message"]


@pytest.mark.spec("DYN-001")
async def test_a_fixed_swarm_lets_nothing_be_created(world: World) -> None:
    """The task that asks fails, and says that the swarm is fixed."""
    result = await run(world, said(), reducers=[plan_shards], dynamic=None)
    assert result.tasks == {"plan": "failed"}
    error = await error_of(world, "plan")
    assert (error["code"], "fixed" in error["message"]) == ("spawn_refused", True)


def _wrong(**given: Any) -> TaskRequest:
    options: dict[str, Any] = {"key": "k", "reducer": "total", **given}
    return TaskRequest(**options)


@pytest.mark.spec("DYN-004", "DYN-005", "DYN-007")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_wrong(key="a/b"), "'a/b'"),
        (_wrong(key=""), "key ''"),
        (_wrong(key="north"), "'north', which is taken"),
        (_wrong(reducer="nosuch"), "there is no reducer 'nosuch'"),
        (_wrong(reducer=None, agent="nosuch", prompt="p"), "there is no agent 'nosuch'"),
        (_wrong(agent="x", prompt="p"), "exactly one of them"),
        (_wrong(depends_on=("north",)), "'north', which is no task of the swarm"),
        (_wrong(after=("plan/none",)), "'plan/none', which is no task"),
        (_wrong(depends_on=("plan/k",)), "wait for each other"),
        (_wrong(depends_on="plan"), "a list of task ids"),
        (_wrong(timeout_ms=0), "timeout_ms"),
        (_wrong(timeout_ms=10**16), "timeout_ms"),
        (_wrong(timeout_ms=10**30), "timeout_ms"),
        (_wrong(prompt="p"), "a text for an agent"),
        (_wrong(reducer=None, agent="x"), "needs a prompt or results"),
        ("north", "asked for a str"),
    ],
)
async def test_one_wrong_request_creates_none(memory: World, wrong: Any, words: str) -> None:
    """A valid one beside it is not created either: the task that asks fails, in the words of what is wrong."""

    @reducer(name="plan")
    def plan(results: Mapping[str, object], context: ReducerContext) -> None:
        context.spawn([TaskRequest("north", agent="x", prompt="north"), wrong])

    result = await run(memory, said(), reducers=[plan])
    assert result.tasks == {"plan": "failed"}
    assert words in (await error_of(memory, "plan"))["message"]


@pytest.mark.parametrize("odd", ["a\x00b", "\ud800", "plan\n", ""])
async def test_what_can_be_no_id_is_no_task(world: World, odd: str) -> None:
    """A model may have made it up: no store is asked for it, whichever texts it takes, and the task that asks fails."""

    @reducer(name="plan")
    def plan(results: Mapping[str, object], context: ReducerContext) -> None:
        context.spawn([_wrong(depends_on=(odd,))])

    result = await run(world, said(), reducers=[plan])
    assert result.tasks == {"plan": "failed"}
    assert "which is no task of the swarm" in (await error_of(world, "plan"))["message"]


async def test_a_generator_is_as_good_as_a_list(memory: World) -> None:
    """One that raises half-way, or never ends, makes the task fail; nothing of what came before is created."""

    def shards(output: object, context: SpawnContext) -> Iterator[TaskRequest]:
        yield TaskRequest("north", agent="x", prompt="north")
        if output == "raise":
            raise ValueError("no south")
        while output == "endless":
            yield TaskRequest("south", agent="x", prompt="south")

    words = {"fine": "", "raise": "spawn raised ValueError: no south", "endless": "max_tasks is 20"}
    for how, problem in words.items():
        app = memory.process(said(how, "planner", spawn=shards), said())
        swarm = Swarm("s", [Task("plan", agent="planner", prompt="go")], dynamic=LIMITS)
        result = await app.aio.run_swarm_embedded(swarm, run_id=how)
        error = (await app.aio.handle(f"{how}/plan").envelope()).error or {"message": ""}
        assert result.tasks == ({"plan": "failed"} if problem else {"plan": "completed", "plan/north": "completed"})
        assert problem in str(error["message"])


@pytest.mark.spec("DYN-003")
async def test_options_of_a_request_are_those_of_its_task(world: World) -> None:
    """Agent with a prompt, reducer, hard and soft dependencies, the time of an attempt."""

    @reducer(name="plan")
    def plan(results: Mapping[str, object], context: ReducerContext) -> None:
        first = TaskRequest("first", agent="x", prompt="the prompt", timeout_ms=123_456)
        context.spawn([first, TaskRequest("second", reducer="total", depends_on=("plan/first",), after=("beside", "plan"))])

    agent = said()
    result = await run(
        world, agent, reducers=[plan], tasks=[Task("plan", reducer="plan"), Task("beside", agent="x", prompt="b")]
    )
    assert result.status == "completed"
    snapshot = await world.process().aio.swarm_handle("s1").snapshot()
    by_name = {task.task_id: task for task in snapshot.tasks}
    assert (by_name["plan/first"].timeout_ms, by_name["plan/first"].kind) == (123_456, "agent")
    assert (by_name["plan/second"].depends_on, by_name["plan/second"].after) == (("plan/first",), ("beside", "plan"))
    assert isinstance(agent.model, MockModel)
    assert ["the prompt"] in [[message.text for message in request.messages] for request in agent.model.requests]


@pytest.mark.spec("DYN-008")
@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (DynamicLimits(max_tasks=4, max_spawn_depth=1), True),
        (DynamicLimits(max_tasks=3, max_spawn_depth=1), False),
        (DynamicLimits(max_tasks=10_000, max_spawn_depth=64, max_spawn_per_task=3), True),
        (DynamicLimits(max_tasks=10_000, max_spawn_depth=64, max_spawn_per_task=2), False),
    ],
)
async def test_limits_bind_at_their_numbers(memory: World, limits: DynamicLimits, fits: bool) -> None:
    """Three tasks beside the one that asks: as many as there may be, and one fewer."""
    result = await run(memory, said(), reducers=[plan_shards], dynamic=limits)
    assert len(result.tasks) == (4 if fits else 1)
    assert result.tasks["plan"] == ("completed" if fits else "failed")


@pytest.mark.spec("DYN-008")
async def test_generations_are_counted_from_a_task_of_the_definition(memory: World) -> None:
    """A chain of tasks, each of which creates the next, ends at the limit; numbers that mean nothing are refused."""

    @reducer(name="plan")
    def plan(results: Mapping[str, object], context: ReducerContext) -> None:
        context.spawn([TaskRequest("n", reducer="plan")])

    result = await run(memory, reducers=[plan], dynamic=DynamicLimits(max_tasks=100, max_spawn_depth=3))
    assert result.tasks == {"plan": "completed", "plan/n": "completed", "plan/n/n": "completed", "plan/n/n/n": "failed"}
    for wrong in ({"max_tasks": 10_001}, {"max_tasks": 0}, {"max_spawn_depth": 65}, {"max_spawn_per_task": 0}):
        with pytest.raises(SwarmDefinitionError, match=next(iter(wrong))):
            DynamicLimits(**{"max_tasks": 10, "max_spawn_depth": 2, **wrong})
    with pytest.raises(SwarmDefinitionError, match="max_tasks is 1"):
        Swarm("s", [Task("a", reducer="r"), Task("b", reducer="r")], dynamic=DynamicLimits(1, 1))


@pytest.mark.spec("DYN-006")
@pytest.mark.parametrize("applied", [False, True])
async def test_the_end_of_a_parent_and_its_children_are_one_commit(world: World, applied: bool) -> None:
    """Whichever save the process dies at: before, there are no children; after, the parent is not executed again."""
    for at in range(1, 40):
        run_id, executed = f"s{at}", Effects()

        @reducer(name="plan")
        def plan(results: Mapping[str, object], context: ReducerContext, executed: Effects = executed) -> str:
            executed("plan")
            context.spawn(SHARDS)
            return "planned"

        swarm = Swarm("s", [Task("plan", reducer="plan")], dynamic=LIMITS)
        try:
            dying = world.dying(said(), at=at, applied=applied, reducers=[plan, total])
            await dying.aio.run_swarm_embedded(swarm, run_id=run_id)
        except ProcessDied:
            snapshot = await world.process().aio.swarm_handle(run_id).snapshot()
            has_ended = {task.task_id: task.status for task in snapshot.tasks}["plan"] == "completed"
            before = executed.done["plan"]
            assert len(snapshot.tasks) == (4 if has_ended else 1)
            await world.later(60_000)
            result = await world.process(said(), reducers=[plan, total]).aio.resume_swarm_embedded(run_id)
            assert (result.status, len(result.tasks)) == ("completed", 4), at
            assert executed.done["plan"] == before + (not has_ended)
        else:
            assert at > 8
            return
    pytest.fail("the swarm has more commits than it should")


@pytest.mark.spec("DYN-012", "CHD-004")
async def test_created_tasks_are_bound_by_the_policy_and_the_budget_of_the_swarm(world: World) -> None:
    """A tool that the swarm forbids ends the created task, not its creator's policy; its calls count in the swarm's budget."""

    @tool
    async def pay() -> str:
        raise AssertionError("it never runs")

    def spends(output: object, context: SpawnContext) -> list[TaskRequest]:
        return [TaskRequest("pay", agent="payer", prompt="pay"), TaskRequest("ask", agent="x", prompt="ask")]

    payer = Agent("payer", model=MockModel([calls(call("pay")), "done"]), tools=[pay])
    planner = said("plan", "planner", spawn=spends)
    result = await run(
        world,
        planner,
        payer,
        said(),
        tasks=[Task("plan", agent="planner", prompt="go")],
        policy=ExecutionPolicy(allowed_tools=["other"]),
        budget=Budget.of(tokens=100_000),
    )
    assert result.tasks == {"plan": "completed", "plan/pay": "failed", "plan/ask": "completed"}
    assert (await error_of(world, "plan/pay"))["code"] == "tool_not_allowed"
    created = await world.process().aio.handle("s1/plan/ask").envelope()
    swarm = await world.head("s1")
    assert (created.policy.allowed_tools, created.scopes) == (frozenset({"other"}), (run_scope_key(swarm.rid),))
    balance = await world.store.balance(run_scope_key(swarm.rid))
    assert balance is not None
    assert balance.spent.tokens == result.tokens > 0


@pytest.mark.spec("SVR-001")
async def test_a_binding_can_only_be_stricter_than_its_swarm(memory: World) -> None:
    """An agent that allows a tool and more money than its swarm gets neither; one that allows less keeps that."""
    tasks = [Task("wide", agent="wide", prompt="go"), Task("narrow", agent="narrow", prompt="go")]
    wide = said(name="wide", policy=ExecutionPolicy(allowed_tools=["a", "b"]), budget=Budget.of(tokens=1_000_000))
    narrow = said(name="narrow", policy=ExecutionPolicy(allowed_tools=["b"]), budget=Budget.of(tokens=1))
    result = await run(
        memory, wide, narrow, tasks=tasks, policy=ExecutionPolicy(allowed_tools=["a"]), budget=Budget.of(tokens=50_000)
    )
    aio = memory.process().aio
    assert (await aio.handle("s1/wide").envelope()).policy.allowed_tools == frozenset({"a"})
    assert (await aio.handle("s1/narrow").envelope()).policy.allowed_tools == frozenset()
    assert result.tasks == {"wide": "completed", "narrow": "failed"}
    assert (await error_of(memory, "narrow"))["code"] == "budget_exceeded"
    small = await run_again(memory, wide, Budget.of(tokens=1))
    assert small.tasks == {"wide": "failed"}


@pytest.mark.spec("SVR-014")
async def test_the_budget_of_an_agent_narrows_that_of_its_task(memory: World) -> None:
    """A task that is given more than its agent may use is refused at the agent's limit."""
    narrow = said(name="narrow", budget=Budget.of(tokens=1))
    task = Task("a", agent="narrow", prompt="go", budget=Budget.of(tokens=1_000_000))
    assert (await run(memory, narrow, tasks=[task])).tasks == {"a": "failed"}
    assert (await error_of(memory, "a"))["code"] == "budget_exceeded"


@pytest.mark.spec("SWM-006")
async def test_a_task_runs_only_once_its_record_says_so(world: World) -> None:
    """What its function reads of its own task is `running`."""
    seen: list[str] = []

    @reducer(name="look")
    async def look(results: Mapping[str, object], context: ReducerContext) -> None:
        snapshot = await world.process().aio.swarm_handle("s1").snapshot()
        seen.extend(task.status for task in snapshot.tasks)

    await run(world, reducers=[look], tasks=[Task("look", reducer="look")])
    assert seen == ["running"]


@pytest.mark.spec("SWM-013")
async def test_a_reducer_that_returns_what_cannot_be_stored_fails(memory: World) -> None:
    """Its task says so; bytes and JSON values can be."""

    @reducer(name="odd")
    def odd(results: Mapping[str, object]) -> object:
        return object()

    @reducer(name="fine")
    def fine(results: Mapping[str, object]) -> object:
        return {"bytes": b"\x00", "list": [1, None]}

    result = await run(memory, reducers=[odd, fine], tasks=[Task("odd", reducer="odd"), Task("fine", reducer="fine")])
    assert result.tasks == {"odd": "failed", "fine": "completed"}
    assert "cannot be stored" in (await error_of(memory, "odd"))["message"]
    assert result.outputs == {"fine": {"bytes": b"\x00", "list": [1, None]}}


@pytest.mark.spec("SWM-022")
async def test_nothing_uses_an_output_that_was_not_verified(memory: World) -> None:
    """A verifier that stays inconclusive, and one whose attempts run out: not completed, and what depends on it is blocked."""
    for verdict in (Inconclusive(), Rejected("no")):

        def verify(output: object, context: object, verdict: Any = verdict) -> Any:
            return verdict

        tasks = [Task("a", agent="checked", prompt="go"), Task("b", agent="x", depends_on=["a"])]
        app = memory.process(said(name="checked", verify=verify), said())
        result = await app.aio.run_swarm_embedded(Swarm("s", tasks), run_id=f"s-{type(verdict).__name__}")
        assert result.tasks == {"a": "failed", "b": "blocked"}


async def run_again(world: World, agent: Agent, budget: Budget) -> SwarmResult:
    swarm = Swarm("s", [Task("wide", agent=agent, prompt="go")], budget=budget)
    return await world.process(agent).aio.run_swarm_embedded(swarm, run_id="s2")


# -- compensation ----------------------------------------------------------------------------------------------------------


def failing(**given: Any) -> Agent:
    def answer(request: ModelRequest) -> Entry:
        return ModelRequestError("no such model")

    return Agent("bad", model=MockModel.function(answer), **given)


@pytest.mark.spec("CPN-001")
async def test_a_failure_and_what_follows_from_it_are_one_commit(world: World) -> None:
    """An agent and a reducer that fail, each with a follow-up: both are told why; failure and tasks have one moment."""
    told: list[FailureContext] = []

    def undo(context: FailureContext) -> list[TaskRequest]:
        told.append(context)
        return [TaskRequest("undo", agent="x", prompt="undo"), TaskRequest("tell", reducer="total", after=(context.task_id,))]

    @reducer(name="broken", on_failure=undo)
    def broken(results: Mapping[str, object]) -> None:
        raise ValueError("half way")

    tasks = [Task("a", agent="bad", prompt="go"), Task("r", reducer="broken"), Task("behind", agent="x", depends_on=["a"])]
    result = await run(world, said(), failing(on_failure=undo), reducers=[broken], tasks=tasks)
    assert result.tasks == {
        "a": "failed",
        "r": "failed",
        "behind": "blocked",
        "a/undo": "completed",
        "a/tell": "completed",
        "r/undo": "completed",
        "r/tell": "completed",
    }
    assert {(context.task_id, (context.error or {}).get("code")) for context in told} == {
        ("a", ModelRequestError.code),
        ("r", "reducer"),
    }
    events = [event async for event in world.process().aio.swarm_handle("s1").swarm_events()]
    for name in ("a", "r"):
        at = next(place for place, event in enumerate(events) if (event.type, event.task_id) == ("task.failed", name))
        assert [(event.type, event.task_id) for event in events[at + 1 : at + 3]] == [
            ("task.spawned", f"{name}/undo"),
            ("task.spawned", f"{name}/tell"),
        ]
        assert len({event.at_ms for event in events[at : at + 3]}) == 1


@pytest.mark.spec("CPN-002", "CPN-003", "CPN-004")
@pytest.mark.parametrize(
    ("asked", "limits", "words"),
    [
        (ValueError("no idea"), LIMITS, "no idea"),
        ("undo", LIMITS, "returned a str"),
        ([TaskRequest("a/b", agent="x", prompt="p")], LIMITS, "'a/b'"),
        ([TaskRequest("undo", agent="x", depends_on=("a",))], LIMITS, "has failed; it would never begin"),
        ([TaskRequest("undo", agent="x", prompt="p")], DynamicLimits(1, 1), "max_tasks is 1"),
        ([TaskRequest("undo", agent="x", prompt="p")], None, "it is fixed"),
    ],
)
async def test_a_follow_up_that_cannot_be_is_told_with_the_failure(
    memory: World, asked: Any, limits: DynamicLimits | None, words: str
) -> None:
    """The task fails as it would have, its error says what was wrong with the follow-up, and no task is added."""

    def undo(context: FailureContext) -> Any:
        if isinstance(asked, Exception):
            raise asked
        return asked

    agent = failing(on_failure=undo)
    result = await run(memory, said(), agent, tasks=[Task("a", agent="bad", prompt="go")], dynamic=limits)
    assert result.tasks == {"a": "failed"}
    error = await error_of(memory, "a")
    assert error["code"] == ModelRequestError.code
    assert words in error["on_failure"]


async def test_a_cancelled_task_is_no_failure(memory: World) -> None:
    """Nobody asks for a follow-up."""
    begun = asyncio.Event()

    async def answer(request: ModelRequest) -> Entry:
        begun.set()
        await asyncio.sleep(60)
        return "late"

    def undo(context: FailureContext) -> list[TaskRequest]:
        raise AssertionError("nobody asks")

    agent = Agent("x", model=MockModel.function(answer), on_failure=undo)
    app = memory.process(agent)
    swarm = Swarm("s", [Task("a", agent="x", prompt="go")], dynamic=LIMITS)
    running = asyncio.ensure_future(app.aio.run_swarm_embedded(swarm, run_id="s1"))
    await begun.wait()
    await app.aio.swarm_handle("s1").cancel()
    assert (await running).tasks == {"a": "cancelled"}
