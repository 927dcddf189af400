"""The journal of a swarm as readers see it, its drain, its cancel, and the time of an attempt."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    MockModel,
    ReducerContext,
    RunNotFoundError,
    Swarm,
    SwarmEvent,
    Task,
    ToolContext,
    reducer,
    tool,
)
from deuz_workers.errors import ModelRequestError
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.tool import CancelSignal
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.store_conformance_bench import Bench
from tests.app.world import World


def worker(name: str = "x") -> Agent:
    """Fails where it is asked to."""

    def answer(request: ModelRequest) -> Entry:
        return ModelRequestError("no such model") if request.messages[-1].text == "fail" else "fine"

    return Agent(name, model=MockModel.function(answer))


@tool(needs_approval=True)
async def pay() -> str:
    """Somebody has to say yes."""
    return "paid"


def payer() -> Agent:
    return Agent("payer", model=MockModel([calls(call("pay")), "done"]), tools=[pay])


def lines(events: list[SwarmEvent]) -> list[str]:
    return [event.type if event.task_id is None else f"{event.type} {event.task_id}" for event in events]


async def read(handle: Any, after: int = 0) -> list[SwarmEvent]:
    return [event async for event in handle.swarm_events(after)]


TASKS = [
    Task("pay", agent="payer", prompt="pay"),
    Task("bad", agent="x", prompt="fail"),
    Task("behind", agent="x", depends_on=["bad"]),
    Task("end", agent="x", depends_on=["pay"]),
]


@pytest.mark.spec("JRN-001", "JRN-002", "JRN-005", "JRN-009", "SRC-003", "SRC-004")
async def test_a_journal_tells_what_happened_and_its_readers_go_on_where_they_were(world: World) -> None:
    """In order and without gaps, no text of any model; a reader ends where the swarm waits, the next one goes on behind it."""
    app = world.process(payer(), worker())
    result = await app.aio.run_swarm_embedded(Swarm("s", TASKS, concurrency=1), run_id="s1")
    assert (result.status, result.tasks["pay"]) == ("suspended", "suspended")
    handle = app.aio.swarm_handle("s1")
    first = await read(handle)
    assert [event.sequence for event in first] == list(range(1, len(first) + 1))
    assert set(lines(first)) == {
        "task.started pay",
        "task.suspended pay",
        "task.started bad",
        "task.failed bad",
        "task.blocked behind",
        "run.settled",
    }
    assert (lines(first)[-1], first[-1].detail) == ("run.settled", {"status": "suspended"})
    assert lines(await read(handle, 2)) == lines(first)[2:]
    assert (await app.aio.resume_swarm_embedded("s1")).status == "suspended", "nobody has answered"
    assert await read(handle) == first
    [pending] = await handle.task("pay").pending()
    await handle.task("pay").approve(pending)
    agents = payer(), worker()
    result = await world.process(*agents).aio.resume_swarm_embedded("s1")
    assert result.status == "partial"
    assert isinstance(agents[1].model, MockModel)
    assert len(agents[1].model.requests) == 1, "what had ended is not executed again"
    rest = await read(world.process().aio.swarm_handle("s1"), first[-1].sequence)
    assert [event.sequence for event in rest] == list(range(len(first) + 1, len(first) + len(rest) + 1))
    assert lines(rest) == ["task.started pay", "task.completed pay", "task.started end", "task.completed end", "run.settled"]
    assert rest[-1].detail == {"status": "partial"}
    assert "fine" not in str(first + rest)
    with pytest.raises(RunNotFoundError):
        await read(app.aio.swarm_handle("nosuch"))


@pytest.mark.spec("JRN-006")
async def test_a_reader_that_goes_away_and_none_at_all_change_nothing(world: World) -> None:
    """A swarm runs to its end while its only reader leaves after one event, and another is cancelled."""
    app = world.process(worker())
    handle = await app.aio.run_swarm(Swarm("s", [Task(f"t{n}", agent="x", prompt="go") for n in range(5)]), run_id="s1")

    async def follow() -> None:
        async for _ in handle.swarm_events():
            pass

    cancelled = asyncio.ensure_future(follow())
    async with aclosing(handle.swarm_events()) as events:
        first = await anext(events)
    assert first.type == "task.started"
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert (await app.aio.resume_swarm_embedded("s1")).status == "completed"


@pytest.mark.spec("JRN-004")
async def test_a_slow_reader_holds_one_page(memory: World) -> None:
    """Of ten thousand events a reader that has taken one has no more in hand than a page of them."""
    bench = Bench(memory.store)
    swarm = await bench.swarm({f"task-{number}": () for number in range(10_000)})
    cascade = await memory.store.cancel_tasks(swarm.rid, 10_000)
    assert cascade.changed == 10_000
    handle = memory.process().aio.swarm_handle(swarm.run_id, bench.scope)
    tracemalloc.start()
    try:
        async with aclosing(handle.swarm_events(follow=False)) as reading:
            assert (await anext(reading)).type == "task.cancelled"
            held_bytes, most_bytes = tracemalloc.get_traced_memory()
            assert sum([1 async for _ in reading]) == 9_999
    finally:
        tracemalloc.stop()
    assert most_bytes < 2_000_000, held_bytes


@pytest.mark.spec("JRN-007")
async def test_events_tell_what_happened_and_the_snapshot_what_came_of_it(memory: World) -> None:
    """No event holds an output; the handle does, by task id."""
    app = memory.process(worker())
    await app.aio.run_swarm_embedded(Swarm("s", [Task("a", agent="x", prompt="go")]), run_id="s1")
    handle = app.aio.swarm_handle("s1")
    assert all(set(event.detail) <= {"status"} for event in await read(handle))
    assert await handle.output("a") == "fine"
    assert [task.status for task in (await handle.snapshot()).tasks] == ["completed"]


class Gate:
    """A model that begins and answers when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def answer(self, request: ModelRequest) -> Entry:
        self.begun.set()
        await self.may_end.wait()
        return "fine"

    @property
    def agent(self) -> Agent:
        return Agent("slow", model=MockModel.function(self.answer))


@pytest.mark.spec("DRN-001", "DRN-002", "DRN-006")
async def test_a_drain_lets_what_runs_end_and_begins_nothing(world: World) -> None:
    """Asked for by a process that executes nothing: `suspended` with pending tasks, in the journal drained before settled.

    It is found by its mark and resumed by one call; a sweep, and a driver that nobody asked to resume it, leave it alone.
    """
    gate = Gate()
    app = world.process(gate.agent, worker())
    tasks = [Task("slow", agent="slow", prompt="go"), Task("other", agent="x", prompt="go"), Task("end", agent="x", prompt="e")]
    running = asyncio.ensure_future(app.aio.run_swarm_embedded(Swarm("s", tasks, concurrency=1), run_id="s1"))
    await gate.begun.wait()
    elsewhere = world.process().aio.swarm_handle("s1")
    assert await elsewhere.drain()
    gate.may_end.set()
    result = await running
    assert (result.status, result.tasks) == ("suspended", {"slow": "completed", "other": "ready", "end": "ready"})
    assert lines(await read(elsewhere)) == ["task.started slow", "task.completed slow", "run.drained", "run.settled"]
    assert (await elsewhere.snapshot()).is_draining
    assert await world.store.swarms_needing_attention(10) == ()
    assert (await world.process(worker()).aio.resume_swarm_embedded("s1")).status == "suspended", "nobody resumed it"
    assert await elsewhere.resume()
    assert (await world.process(worker()).aio.resume_swarm_embedded("s1")).status == "completed"
    assert not await elsewhere.drain()
    assert not await elsewhere.resume()
    with pytest.raises(RunNotFoundError):
        await world.process().aio.swarm_handle("nosuch").drain()


@pytest.mark.spec("DRN-001")
async def test_a_drained_swarm_whose_tasks_were_all_done_just_ends(memory: World) -> None:
    """Its last task ends while it drains: the status is the final one."""
    gate = Gate()
    app = memory.process(gate.agent)
    running = asyncio.ensure_future(
        app.aio.run_swarm_embedded(Swarm("s", [Task("slow", agent="slow", prompt="go")]), run_id="s1")
    )
    await gate.begun.wait()
    assert await app.aio.swarm_handle("s1").drain()
    gate.may_end.set()
    assert (await running).status == "completed"


@pytest.mark.spec("CAN-003", "CAN-005")
async def test_a_cancel_that_comes_too_late_changes_nothing(memory: World) -> None:
    """Of a swarm that has completed, and of one that ended as partial: the status stands, and nothing is told."""
    app = memory.process(worker())
    for run_id, prompt, status in (("s1", "go", "completed"), ("s2", "fail", "partial")):
        tasks = [Task("a", agent="x", prompt=prompt), Task("b", agent="x", prompt="go")]
        assert (await app.aio.run_swarm_embedded(Swarm("s", tasks), run_id=run_id)).status == status
        handle = app.aio.swarm_handle(run_id)
        before = await read(handle)
        assert not await handle.cancel()
        assert ((await handle.result(1)).status, await read(handle)) == (status, before)


@pytest.mark.spec("CAN-007")
async def test_no_model_is_called_after_a_cancel_of_the_swarm(world: World) -> None:
    """A running task finds the note when its tool returns, and ends without another call."""
    begun = asyncio.Event()

    @tool(name="hang")
    async def hang(ctx: ToolContext) -> str:
        begun.set()
        await is_told(ctx.signal)
        return "told"

    agent = Agent("hanging", model=MockModel([calls(call("hang")), "never said"]), tools=[hang])
    app = world.process(agent)
    running = asyncio.ensure_future(
        app.aio.run_swarm_embedded(Swarm("s", [Task("a", agent="hanging", prompt="go")]), run_id="s1")
    )
    await begun.wait()
    assert await app.aio.swarm_handle("s1").cancel()
    assert (await running).tasks == {"a": "cancelled"}
    assert isinstance(agent.model, MockModel)
    assert len(agent.model.requests) == 1


@pytest.mark.spec("SWM-024")
async def test_a_task_with_a_time_is_taken_up_by_another_process(world: World) -> None:
    """Its time is no part of what a resume must match; a reducer's is a deadline of what it may do."""
    deadlines: list[int | None] = []

    @reducer(name="bounded")
    def bounded(results: Mapping[str, object], context: ReducerContext) -> None:
        deadlines.append(context.execution.policy.deadline_ms)

    tasks = [
        Task("pay", agent="payer", prompt="go", timeout_ms=60_000),
        Task("end", reducer="bounded", depends_on=["pay"], timeout_ms=60_000),
    ]
    await world.process(payer(), reducers=[bounded]).aio.run_swarm_embedded(Swarm("s", tasks), run_id="s1")
    handle = world.process().aio.swarm_handle("s1")
    [pending] = await handle.task("pay").pending()
    await handle.task("pay").approve(pending)
    result = await world.process(payer(), reducers=[bounded]).aio.resume_swarm_embedded("s1")
    assert result.status == "completed"
    [deadline_ms] = deadlines
    assert deadline_ms is not None
    assert (await handle.task("pay").envelope()).policy.deadline_ms is None


@pytest.mark.spec("SWM-035")
async def test_a_task_that_waits_holds_no_slot_and_its_answer_goes_first(world: World) -> None:
    """One slot and three tasks that wait for a person: the rest runs; of those that are ready the answered one is next."""
    tasks = [Task(f"p{number}", agent="payer", prompt="pay") for number in range(3)]
    tasks += [Task("free", agent="x", prompt="go"), Task("more", agent="x", prompt="go", depends_on=["free"])]
    result = await world.process(payer(), worker()).aio.run_swarm_embedded(Swarm("s", tasks, concurrency=1), run_id="s1")
    assert result.tasks == {**dict.fromkeys(("p0", "p1", "p2"), "suspended"), "free": "completed", "more": "completed"}
    gate = Gate()
    slow = Agent("x", model=MockModel.function(gate.answer))
    waiting = [*tasks[:3], Task("slow", agent="x", prompt="go"), Task("last", agent="x", prompt="go")]
    app = world.process(payer(), slow)
    running = asyncio.ensure_future(app.aio.run_swarm_embedded(Swarm("s", waiting, concurrency=1), run_id="s2"))
    await gate.begun.wait()
    handle = app.aio.swarm_handle("s2")
    [pending] = await handle.task("p1").pending()
    await handle.task("p1").approve(pending)
    gate.may_end.set()
    assert (await running).tasks["p1"] == "completed"
    started = [event.task_id for event in await read(handle) if event.type == "task.started"]
    assert started == ["p0", "p1", "p2", "slow", "p1", "last"]


@pytest.mark.spec("CAN-002")
async def test_a_cancel_is_recorded_before_anybody_acts_on_it(world: World) -> None:
    """With nobody at work: the mark and one event, and the next driver begins nothing; what had ended keeps its result.

    Of a swarm that has ended the status stands.
    """
    app = world.process(payer(), worker())
    await app.aio.run_swarm_embedded(Swarm("s", [*TASKS[:1], TASKS[3], Task("good", agent="x", prompt="go")]), run_id="s1")
    handle = world.process().aio.swarm_handle("s1")
    before = len(await read(handle))
    assert await handle.cancel()
    assert await handle.cancel()
    assert lines(await read(handle, before)) == ["run.cancelled"]
    assert (await handle.snapshot()).is_cancelling
    result = await world.process(payer(), worker()).aio.resume_swarm_embedded("s1")
    assert (result.status, result.tasks) == ("cancelled", {"pay": "cancelled", "end": "cancelled", "good": "completed"})
    assert await handle.output("good") == "fine"
    assert lines(await read(handle, before)) == [
        "run.cancelled",
        *sorted(lines(await read(handle, before))[1:-1]),
        "run.settled",
    ]
    assert not await handle.cancel()
    assert (await handle.result(1)).status == "cancelled"


async def is_told(signal: CancelSignal) -> None:
    while not signal.is_set:  # noqa: ASYNC110 - what tools are given has no event for a loop
        await asyncio.sleep(0.005)


@pytest.mark.spec("SWM-023")
async def test_a_task_that_takes_too_long_fails(world: World) -> None:
    """A tool and a reducer are told by their signals, a model call ends; each task fails as a timeout, no other does."""
    told: list[str] = []

    @tool(name="hang")
    async def hang(ctx: ToolContext) -> str:
        await is_told(ctx.signal)
        told.append("tool")
        return "told"

    @reducer(name="late")
    async def late(results: Mapping[str, object], context: ReducerContext) -> None:
        assert context.execution.policy.deadline_ms is not None
        await is_told(context.signal)

    async def slow(request: ModelRequest) -> Entry:
        await asyncio.sleep(60)
        return "late"

    hanging = Agent("hanging", model=MockModel([calls(call("hang")), "done"]), tools=[hang])
    sleeping = Agent("sleeping", model=MockModel.function(slow))
    tasks = [
        Task("tool", agent="hanging", prompt="go", timeout_ms=200),
        Task("model", agent="sleeping", prompt="go", timeout_ms=200),
        Task("reducer", reducer="late", timeout_ms=200),
        Task("fine", agent="x", prompt="go", timeout_ms=60_000),
    ]
    app = world.process(hanging, sleeping, worker(), reducers=[late])
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks), run_id="s1")
    assert result.tasks == {"tool": "failed", "model": "failed", "reducer": "failed", "fine": "completed"}
    for name in ("tool", "model", "reducer"):
        error = (await app.aio.handle(f"s1/{name}").envelope()).error or {}
        assert (name, error["name"]) == (name, "SwarmTaskTimeout")
    assert told == ["tool"]


async def test_steps_share_the_time_of_an_attempt_and_waiting_does_not_count(world: World) -> None:
    """A week of waiting for an approval expires nothing, and what follows the answer has the full time.

    A worker that dies within an attempt leaves the rest of its time to the next, which finds it over.
    """
    tasks = [Task("pay", agent="payer", prompt="go", timeout_ms=60_000)]
    result = await world.process(payer()).aio.run_swarm_embedded(Swarm("s", tasks), run_id="s1")
    assert result.status == "suspended"
    await world.later(7 * 24 * 3_600_000)
    handle = world.process().aio.swarm_handle("s1")
    [pending] = await handle.task("pay").pending()
    await handle.task("pay").approve(pending)
    await handle.ring()
    left_ms = (await world.head("s1/pay")).until_in_ms
    assert left_ms is not None
    assert 50_000 < left_ms <= 60_000
    await world.later(61_000)
    result = await world.process(payer()).aio.resume_swarm_embedded("s1")
    assert result.tasks == {"pay": "failed"}
    assert ((await handle.task("pay").envelope()).error or {})["name"] == "SwarmTaskTimeout"
