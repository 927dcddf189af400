"""Swarms: refused in words or written whole, driven in process over every store, and read by handles."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import pytest

from deuz_workers import (
    Agent,
    Budget,
    ConfigurationError,
    MockModel,
    ReducerContext,
    ResultTimeoutError,
    RunFailedError,
    RunNotFoundError,
    ScopeMismatchError,
    Swarm,
    SwarmConflictError,
    SwarmDefinitionError,
    Task,
    reducer,
    tool,
)
from deuz_workers.core.names import run_scope_key
from deuz_workers.errors import AnswerRefusedError, ModelRequestError
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.world import Effects, World


@reducer
def merge(results: Mapping[str, object]) -> object:
    """All results, as pairs."""
    return sorted(results.items())


def echo(name: str = "x") -> Agent:
    """Answers with the newest message."""
    return Agent(name, model=MockModel.function(lambda request: f"{name} saw {request.messages[-1].text}"))


DIAMOND = [
    Task("plan", agent="x", prompt="go"),
    Task("left", agent="x", prompt="left", depends_on=["plan"]),
    Task("right", agent="x", depends_on=["plan"]),
    Task("merge", reducer="merge", depends_on=["left", "right"]),
]


@pytest.mark.spec("SWM-001", "SWM-008", "SWM-014")
async def test_tasks_run_in_the_order_of_their_dependencies(world: World) -> None:
    """Two agents and a reducer: each starts when all that it waits for is completed, and the sink's output is the result."""
    started: list[str] = []
    seen: list[dict[str, str]] = []

    async def answer(request: ModelRequest) -> Entry:
        started.append(request.messages[0].text.split()[0])
        snapshot = await app.aio.swarm_handle("s1").snapshot()
        seen.append({task.task_id: task.status for task in snapshot.tasks})
        return f"did {started[-1]}"

    tasks = [
        Task("c", agent="x", prompt="c", depends_on=["a", "b"]),
        Task("a", agent="x", prompt="a"),
        Task("b", agent="y", prompt="b", depends_on=["a"]),
        Task("end", reducer="merge", depends_on=["b", "c"]),
    ]
    agents = [Agent(name, model=MockModel.function(answer)) for name in ("x", "y")]
    app = world.process(*agents, reducers=[merge])
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks), run_id="s1")
    assert result.status == "completed"
    assert started == ["a", "b", "c"]
    assert seen == [
        {"a": "running", "b": "pending", "c": "pending", "end": "pending"},
        {"a": "completed", "b": "running", "c": "pending", "end": "pending"},
        {"a": "completed", "b": "completed", "c": "running", "end": "pending"},
    ]
    assert result.outputs == {"end": [("b", "did b"), ("c", "did c")]}
    assert (result.counts, result.tokens) == ({"completed": 4}, 45)


async def test_a_swarm_starts_when_it_is_to(world: World) -> None:
    """Before, no task gets a slot, whoever rings or sweeps; then it runs as any other."""
    app = world.process(echo(), reducers=[merge])
    handle = await app.aio.run_swarm(Swarm("s", DIAMOND), run_id="s1", queue="in-process", start_at=timedelta(hours=1))
    await handle.ring()
    assert await world.store.swarms_needing_attention(10) == ()
    snapshot = await handle.snapshot()
    assert (snapshot.running, snapshot.ready) == (0, 1)
    assert {(await world.head(f"s1/{task.task_id}")).model_step for task in DIAMOND} == {0}
    await world.later(3_600_001)
    assert len(await world.store.swarms_needing_attention(10)) == 1
    assert (await app.aio.resume_swarm_embedded("s1")).status == "completed"


async def test_tasks_share_the_concurrency_key_of_their_agent(world: World) -> None:
    """Five slots of the swarm and one of the key: one task calls its model at a time, and no slot is left over."""
    at_once, most = 0, 0

    async def answer(request: ModelRequest) -> Entry:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return "done"

    keyed = Agent("x", model=MockModel.function(answer), concurrency_key="one")
    app = world.process(keyed)
    tasks = [Task(f"t{number}", agent="x", prompt="go") for number in range(4)]
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks), run_id="s1")
    assert (result.counts, most) == ({"completed": 4}, 1)
    counters = await world.store.slot_counters("default", "one")
    assert counters is not None
    assert (counters.slots, counters.used, counters.waiting) == (1, 0, 0)


@pytest.mark.spec("SWM-011")
async def test_an_agent_sees_results_as_labelled_data_and_no_conversation(world: World) -> None:
    """The prompt of a task has its predecessors' outputs under their names; what they were asked stays private."""
    agent = echo()
    await world.process(agent, reducers=[merge]).aio.run_swarm_embedded(Swarm("s", DIAMOND), run_id="s1")
    model = agent.model
    assert isinstance(model, MockModel)
    [right] = [request for request in model.requests if len(request.messages) == 1 and "Results" in request.messages[0].text]
    assert '<result task="plan">\nx saw go\n</result>' in right.messages[0].text
    left = next(request for request in model.requests if request.messages[0].text == "left")
    assert [message.role for message in left.messages] == ["user", "user"]


async def test_a_reducer_gets_the_results_of_what_it_names_and_a_context(world: World) -> None:
    """Exactly its dependencies, and where it runs."""
    seen: list[tuple[Mapping[str, object], ReducerContext]] = []

    @reducer(name="keep")
    async def keep(results: Mapping[str, object], context: ReducerContext) -> bytes:
        seen.append((results, context))
        return b"\x00"

    tasks = [Task("a", agent="x", prompt="a"), Task("b", agent="x", prompt="b", depends_on=["a"])]
    tasks.append(Task("end", reducer=keep, depends_on=["b"]))
    result = await world.process(echo(), reducers=[keep]).aio.run_swarm_embedded(Swarm("s", tasks), run_id="s1", scope="acme")
    [(results, context)] = seen
    assert set(results) == {"b"}
    assert (context.scope, context.run_id, context.task_id) == ("acme", "s1/end", "end")
    assert result.outputs == {"end": b"\x00"}


@pytest.mark.spec("SWM-010")
async def test_no_more_tasks_run_than_there_are_slots(world: World) -> None:
    """Fifty that are ready at once, agents and reducers, five slots."""
    live, peak, five = Effects(), [0], asyncio.Barrier(5)  # each waits until five are there, so fewer would stand still

    @reducer
    async def slow(results: Mapping[str, object]) -> None:
        await pause()

    async def pause() -> None:
        live.done["now"] += 1
        peak[0] = max(peak[0], live.done["now"])
        await five.wait()
        await asyncio.sleep(0.001)
        live.done["now"] -= 1

    async def answer(request: ModelRequest) -> Entry:
        await pause()
        return "done"

    tasks = [Task(f"a{place}", agent="x", prompt="go") for place in range(40)]
    tasks += [Task(f"r{place}", reducer="slow") for place in range(10)]
    app = world.process(Agent("x", model=MockModel.function(answer)), reducers=[slow])
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks))
    assert (result.status, peak[0]) == ("completed", 5)


@pytest.mark.spec("SWM-009", "SWM-017")
async def test_what_lies_behind_a_failure_is_blocked_and_the_rest_goes_on(world: World) -> None:
    """A diamond with one failing arm: its end is blocked, the other arm completes, the swarm is partial and says so."""

    def answer(request: ModelRequest) -> Entry:
        return ModelRequestError("no such model") if request.messages[0].text == "left" else "fine"

    tasks = [*DIAMOND, Task("beside", agent="x", depends_on=["right"])]
    app = world.process(Agent("x", model=MockModel.function(answer)), reducers=[merge])
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks), run_id="s1")
    assert result.status == "partial"
    assert result.tasks == {
        "plan": "completed",
        "left": "failed",
        "right": "completed",
        "merge": "blocked",
        "beside": "completed",
    }
    assert result.outputs == {"beside": "fine"}
    handle = app.aio.swarm_handle("s1")
    assert await handle.output("right") == "fine"
    with pytest.raises(RunFailedError, match=r"'left'.*failed"):
        await handle.output("left")
    with pytest.raises(RunNotFoundError):
        await handle.output("nosuch")


@pytest.mark.spec("SWM-018")
async def test_a_swarm_that_only_waits_reports_and_goes_on_after_the_answer(world: World) -> None:
    """One task waits for a person, the rest has ended, one is pending behind it: `suspended`; approved, it completes."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    payer = Agent("payer", model=MockModel([calls(call("pay")), "done"]), tools=[pay])
    tasks = [
        Task("pay", agent=payer, prompt="pay"),
        Task("free", agent="x", prompt="free"),
        Task("end", reducer="merge", depends_on=["pay", "free"]),
    ]
    app = world.process(payer, echo(), reducers=[merge])
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks, concurrency=1), run_id="s1")
    assert (result.status, result.tasks) == ("suspended", {"pay": "suspended", "free": "completed", "end": "pending"})
    handle = app.aio.swarm_handle("s1")
    assert (await handle.result(1)).status == "suspended"
    [pending] = await handle.task("pay").pending()
    await handle.task("pay").approve(pending.approval_id)
    result = await world.process(payer, echo(), reducers=[merge]).aio.resume_swarm_embedded("s1")
    assert (result.status, result.counts) == ("completed", {"completed": 3})


async def test_a_swarm_can_be_cancelled(world: World) -> None:
    """What has not begun never does, what runs is told; the swarm reads `cancelled`."""
    begun = asyncio.Event()

    async def answer(request: ModelRequest) -> Entry:
        begun.set()
        await asyncio.sleep(60)
        return "late"

    app = world.process(Agent("x", model=MockModel.function(answer)), reducers=[merge])
    running = asyncio.ensure_future(app.aio.run_swarm_embedded(Swarm("s", DIAMOND), run_id="s1"))
    await begun.wait()
    assert await app.aio.swarm_handle("s1").cancel()
    result = await running
    assert (result.status, result.counts) == ("cancelled", {"cancelled": 4})


async def test_one_budget_holds_for_all_tasks(world: World) -> None:
    """When it is used up the next call is refused before it is made, whichever task wants it."""
    agent = Agent("x", model=MockModel.function(lambda request: "ok"), max_output_tokens=10)
    tasks = [Task(f"t{place}", agent="x", prompt="go") for place in range(20)]
    app = world.process(agent)
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks, budget=Budget.of(tokens=100), concurrency=3), run_id="s1")
    assert result.status == "partial"
    assert 0 < result.counts["completed"] < 20
    balance = await world.store.balance(run_scope_key((await world.head("s1")).rid))
    assert balance is not None
    assert balance.spent.tokens == result.tokens <= 100
    assert balance.held.tokens == 0


async def test_a_deadline_ends_tasks_and_not_the_swarm_over_their_heads(world: World) -> None:
    """Every task fails by itself, what waits is blocked, and the swarm settles last."""
    app = world.process(echo(), reducers=[merge])
    result = await app.aio.run_swarm_embedded(Swarm("s", DIAMOND), deadline=timedelta(seconds=-1))
    assert result.status == "partial"
    assert set(result.tasks.values()) <= {"failed", "blocked"}


@pytest.mark.parametrize("applied", [False, True])
async def test_a_swarm_goes_on_whichever_save_its_process_died_at(world: World, applied: bool) -> None:
    """Every commit of it once: the next process ends the swarm with the same output, no task stands still."""
    for at in range(1, 40):
        run_id = f"s{at}"
        try:
            app = world.dying(echo(), at=at, applied=applied, reducers=[merge])
            result = await app.aio.run_swarm_embedded(Swarm("s", DIAMOND), run_id=run_id)
        except ProcessDied:
            await world.later(60_000)
            result = await world.process(echo(), reducers=[merge]).aio.resume_swarm_embedded(run_id)
        else:
            assert at > 8
            return
        assert result.status == "completed", (at, result)
        [(left, said), (right, heard)] = result.outputs["merge"]  # pyright: ignore[reportGeneralTypeIssues]
        assert (left, right) == ("left", "right")
        assert "x saw go" in str(said) + str(heard)
    pytest.fail("the swarm has more commits than it should")


@pytest.mark.spec("SWM-003", "SWM-029", "SWM-031")
async def test_the_handle_is_there_before_the_tasks_end_and_follows_from_another_process(world: World) -> None:
    """An id is made where none is given; another process drives, this one reads the result and the events."""
    here, there = world.process(echo(), reducers=[merge]), world.process(echo(), reducers=[merge])
    handle, other = await here.aio.run_swarm(Swarm("s", DIAMOND)), await here.aio.run_swarm(Swarm("s", DIAMOND))
    assert handle.run_id != other.run_id
    snapshot = await handle.snapshot()
    assert (snapshot.open, snapshot.running) == (4, 1)
    with pytest.raises(ResultTimeoutError):
        await handle.result(timeout=0.02)
    waiting = asyncio.ensure_future(handle.result())
    assert await there.aio.resume_swarm_embedded(handle.run_id) == await waiting
    assert [event.type async for event in handle.events()][-1] == "run.completed"


async def test_a_plan_has_one_run_per_task_under_its_own_id(world: World) -> None:
    """`<swarm>/<task>`, in the swarm's scope, with queue, tags and budget scopes deepest first."""
    app = world.process(echo(), reducers=[merge])
    budget = Budget.of(tokens=1_000_000)
    tasks = [Task("a", agent="x", prompt="go", budget=budget, queue="q"), Task("b", agent="x", prompt="go")]
    await app.aio.run_swarm(Swarm("s", tasks, budget=budget), run_id="s1", scope="acme", tags={"team": "a"})
    swarm, first = await world.head("s1", "acme"), await world.head("s1/a", "acme")
    envelope = await app.aio.handle("s1/a", "acme").envelope()
    assert envelope.scopes == (run_scope_key(first.rid), run_scope_key(swarm.rid))
    assert (await app.aio.handle("s1/b", "acme").envelope()).scopes == (run_scope_key(swarm.rid),)
    assert (first.queue, first.task_id, first.swarm_rid) == ("q", "a", swarm.rid)


@pytest.mark.spec("SWM-004")
async def test_an_invalid_swarm_is_refused_while_the_store_is_empty(world: World) -> None:
    """A cycle, a repeated id, a dependency that is none, an agent or reducer that nobody registered."""
    app = world.process(echo(), reducers=[merge])
    mistakes = {
        "a -> b -> a": lambda: Swarm("s", [Task("a", agent="x", depends_on=["b"]), Task("b", agent="x", depends_on=["a"])]),
        "2 tasks 'a'": lambda: Swarm("s", [Task("a", agent="x", prompt="p"), Task("a", agent="x", prompt="p")]),
        "depends on 'z'": lambda: Swarm("s", [Task("a", agent="x", depends_on=["z"])]),
        "no tasks": lambda: Swarm("s", []),
        "there is no agent 'y'; the application knows x": lambda: Swarm("s", [Task("a", agent="y", prompt="p")]),
        "there is no reducer 'y'; the application knows merge": lambda: Swarm("s", [Task("a", reducer="y")]),
        "concurrency is a whole number from 1 to 1000000, not 0": lambda: Swarm(
            "s", [Task("a", reducer="merge")], concurrency=0
        ),
        "not 4000000000": lambda: Swarm("s", [Task("a", reducer="merge")], concurrency=4 * 10**9),
    }
    for words, make in mistakes.items():
        with pytest.raises(SwarmDefinitionError, match=words):
            await app.aio.run_swarm(make(), run_id="s1")
    assert await world.store.head("default", "s1") is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "exactly one of them"),
        ({"agent": "x", "reducer": "r"}, "exactly one of them"),
        ({"agent": "x"}, "exactly one of the two"),
        ({"reducer": "r", "prompt": "p"}, "takes no prompt"),
        ({"agent": "x", "prompt": "p", "messages": [{"role": "user", "content": "c"}]}, "exactly one of the two"),
        ({"agent": "x", "depends_on": "plan"}, "list of task ids"),
        ({"agent": "x", "after": None}, "list of task ids"),
        ({"agent": "x", "depends_on": [["plan"]]}, "list of task ids"),
        ({"agent": "x", "prompt": "p", "timeout_ms": 10**16}, "whole number from 1 to"),  # no moment that Postgres can tell
        ({"agent": "x", "prompt": "p", "budget": Budget()}, "limits tokens"),
    ],
)
def test_a_task_that_cannot_be_meant_is_refused(given: dict[str, object], words: str) -> None:
    """A SwarmDefinitionError that names the task."""
    with pytest.raises(SwarmDefinitionError, match=f"task 't'.*{words}"):
        Task("t", **given)  # pyright: ignore[reportArgumentType]


def test_names_of_tasks_and_swarms_are_checked() -> None:
    """A slash would make another task's run id."""
    with pytest.raises(SwarmDefinitionError, match="'a/b'"):
        Task("a/b", agent="x", prompt="p")
    with pytest.raises(ConfigurationError, match="a swarm cannot be called"):
        Swarm("", [Task("a", reducer="r")])
    with pytest.raises(SwarmDefinitionError, match="a str is no task"):
        Swarm("s", ["a"])  # pyright: ignore[reportArgumentType]


@pytest.mark.spec("SWM-005")
async def test_a_run_id_that_exists_is_a_conflict(world: World) -> None:
    """The first swarm stays as it is; the same key for the same swarm gives its handle; another scope learns nothing."""
    app = world.process(echo(), reducers=[merge])
    swarm = Swarm("s", DIAMOND)
    first = await app.aio.run_swarm(swarm, run_id="s1", idempotency_key="k")
    with pytest.raises(SwarmConflictError, match="'s1'"):
        await app.aio.run_swarm(swarm, run_id="s1")
    with pytest.raises(SwarmConflictError, match="asked for something else"):
        await app.aio.run_swarm(Swarm("s", DIAMOND[:1]), idempotency_key="k")
    assert (await app.aio.run_swarm(swarm, idempotency_key="k")).run_id == "s1"
    with pytest.raises(ScopeMismatchError):
        await app.aio.run_swarm(swarm, run_id="s1", scope="other")
    assert (await first.snapshot()).open == 4


async def test_the_synchronous_swarm_client_does_the_same(memory: World) -> None:
    """Started, driven, read and cancelled from a thread."""
    app = memory.process(echo(), reducers=[merge])

    def work() -> None:
        assert app.run_swarm_embedded(Swarm("s", DIAMOND), run_id="s1").status == "completed"
        handle = app.swarm_handle("s1")
        assert handle.result(5).status == "completed"
        assert "x saw" in str(handle.output("plan"))
        assert handle.task("plan").result(5).status == "completed"
        started = app.run_swarm(Swarm("s", DIAMOND), run_id="s2")
        assert started.snapshot().open == 4
        started.ring()
        assert started.cancel()
        assert app.resume_swarm_embedded("s2").status == "cancelled"

    await asyncio.to_thread(work)


async def test_a_refused_save_of_a_task_is_left_to_the_next_driver(memory: World) -> None:
    """A defect of the store ends the task's step here; later another driver brings the swarm to its end."""
    store = CrashingStore(memory.store, at=3, error=RuntimeError("disk full"))
    app = memory.process(echo(), reducers=[merge], store=store.as_store)
    running = asyncio.ensure_future(app.aio.run_swarm_embedded(Swarm("s", DIAMOND), run_id="s1"))
    while store.commits < 3:  # noqa: ASYNC110 - a store has no event to wait for
        await asyncio.sleep(0)
    await memory.later(60_000)
    assert (await running).status == "completed"


async def test_a_task_is_answered_by_its_own_handle_alone(memory: World) -> None:
    """The run of its swarm is another one, whose handle refuses the request, as it refuses its id."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    payer = Agent("payer", model=MockModel([calls(call("pay")), "done"]), tools=[pay])
    app = memory.process(payer)
    await app.aio.run_swarm_embedded(Swarm("s", [Task("pay", agent=payer, prompt="pay")]), run_id="s1")
    [asked] = await app.aio.swarm_handle("s1").task("pay").pending()
    for given in (asked, asked.approval_id):
        with pytest.raises(AnswerRefusedError):
            await app.aio.handle("s1").approve(given)
    await app.aio.swarm_handle("s1").task("pay").approve(asked)
    assert (await app.aio.resume_swarm_embedded("s1")).status == "completed"
