"""Handles: waiting for a run, watching, answering and cancelling it, from its own loop, another one, or a thread."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from deuz_workers import (
    Agent,
    AnswerConflictError,
    ConfigurationError,
    MockModel,
    ResultTimeoutError,
    RunFailedError,
    RunNotFoundError,
    StoreError,
    ToolContext,
    tool,
)
from deuz_workers.app.async_handle import AsyncHandle, RunEvent
from deuz_workers.app.embedded import driver
from deuz_workers.providers.script import call, calls, hangs
from tests.app.world import Effects, World


def gated(done: Effects, *, count: int = 1) -> Agent:
    """Asks for `count` gated calls, then reports what it was told."""

    @tool(needs_approval=True)
    async def pay(to: str) -> str:
        done(to)
        return f"paid {to}"

    names = ("ann", "bob", "cid")[:count]
    return Agent("x", model=MockModel([calls(*(call("pay", to=name) for name in names)), "done"]), tools=[pay])


@pytest.mark.spec("RES-019")
async def test_a_handle_resolves_to_what_another_process_committed(world: World) -> None:
    """Made here, driven there: the handle gives the end, and a suspension as soon as there is one."""
    done = Effects()
    here, there = world.process(gated(done)), world.process(gated(done))
    handle = await here.aio.enqueue("x", "go")
    waiting = asyncio.ensure_future(handle.result())
    driven = await there.aio.resume_embedded(handle.run_id)
    assert (await waiting) == driven
    assert driven.status == "suspended"
    [pending] = await handle.pending()
    assert (pending.tool_name, pending.arguments) == ("pay", {"to": "ann"})
    assert (await handle.approve(pending.approval_id)).open_items == 0
    waiting = asyncio.ensure_future(handle.result())
    driven = await there.aio.resume_embedded(handle.run_id)
    assert (await waiting).output == driven.output == "done"
    assert done.done == {"ann": 1}


async def test_an_answered_suspension_is_no_report(world: World) -> None:
    """Between the last answer and the step that takes it in, the handle waits for what comes of it."""
    app = world.process(gated(Effects()))
    suspended = await app.aio.run_embedded("x", "go", run_id="r")
    handle = app.aio.handle("r")
    assert (await handle.result(1)).status == "suspended"
    await handle.approve(suspended.pending_approvals[0].approval_id)
    with pytest.raises(ResultTimeoutError, match="goes on"):
        await handle.result(timeout=0.05)


@pytest.mark.spec("APR-010", "APR-020")
async def test_answers_come_one_by_one_and_a_denial_is_told(world: World) -> None:
    """Each is stored at once; the run goes on after the last, and the model reads the reason of the denial."""
    done = Effects()
    app = world.process(agent := gated(done, count=3))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    ann, bob, cid = (item.approval_id for item in waiting.pending_approvals)
    handle = app.aio.handle("r")
    assert (await handle.approve(ann)).open_items == 2
    assert (await handle.deny(bob, "not him")).open_items == 1
    with pytest.raises(AnswerConflictError, match="denied before") as caught:
        await handle.approve(bob)
    assert caught.value.winner == {"approved": False, "reason": "not him"}
    assert [item.approval_id for item in await handle.pending()] == [cid]
    assert (await app.aio.resume_embedded("r")).status == "suspended"
    await handle.approve(cid)
    result = await app.aio.resume_embedded("r")
    assert result.status == "completed"
    assert done.done == {"ann": 1, "cid": 1}
    model = agent.model
    assert isinstance(model, MockModel)
    texts = [part.text for message in model.requests[-1].messages for part in message.tool_results]
    assert texts == ["paid ann", "Tool call denied. Reason: not him", "paid cid"]


async def test_an_answer_to_nothing_is_refused_with_what_is_pending(world: World) -> None:
    """An unknown item, and an unknown run."""
    app = world.process(gated(Effects()))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    with pytest.raises(StoreError, match=waiting.pending_approvals[0].approval_id) as caught:
        await app.aio.handle("r").approve("nosuch")
    assert caught.value.code == "unknown_item"
    with pytest.raises(RunNotFoundError):
        await app.aio.handle("nosuch").deny("x")


@pytest.mark.spec("APR-009")
async def test_a_resume_with_part_of_the_verdicts_stores_nothing(world: World) -> None:
    """None and one of two: suspended both times with the same two calls, nothing executed, nothing written."""
    done = Effects()
    app = world.process(gated(done, count=2))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    before = await world.loaded("r")
    for verdicts in ({}, {waiting.pending_approvals[0].approval_id: True}):
        result = await app.aio.resume_embedded("r", approvals=verdicts)
        assert (result.status, result.pending_approvals) == ("suspended", waiting.pending_approvals)
    after = await world.loaded("r")
    assert (after.head.revision, after.head.body) == (before.head.revision, before.head.body)
    assert (after.messages, after.receipts) == (before.messages, before.receipts)
    assert (after.head.open_items, done.done) == (2, {})
    verdicts = {item.approval_id: {"approved": True, "reason": "fine"} for item in waiting.pending_approvals}
    assert (await app.aio.resume_embedded("r", approvals=verdicts)).status == "completed"


@pytest.mark.spec("RES-016")
async def test_a_cancel_ends_a_model_call_at_once(world: World) -> None:
    """Asked for through a handle while the model is silent: `stopped`, `aborted`, and never again."""
    app = world.process(Agent("x", model=MockModel([hangs()])))
    handle = await app.aio.enqueue("x", "go")
    running = asyncio.ensure_future(app.aio.resume_embedded(handle.run_id))
    async for event in handle.events():
        if event.type == "model.called":
            assert await handle.cancel("changed my mind")
    result = await running
    assert (result.status, result.reason) == ("stopped", "aborted")
    assert result.stop_details == {"cancel_reason": "changed my mind"}
    assert not await handle.cancel()


async def test_a_cancel_from_another_process_reaches_the_holder_by_its_lease(world: World) -> None:
    """Nobody there hears the bell: the signal comes with the next renewal and ends the model call."""
    app, elsewhere = world.process(Agent("x", model=MockModel([hangs()])), ttl_ms=1_000), world.process()
    elsewhere.__dict__["leases"] = app.leases
    handle = await elsewhere.aio.enqueue("x", "go")
    running = asyncio.ensure_future(app.aio.resume_embedded(handle.run_id))
    async for event in handle.events():
        if event.type == "model.called":
            assert await handle.cancel()
    assert (await running).reason == "aborted"


async def test_a_cancel_from_another_thread_reaches_a_tool(world: World) -> None:
    """The tool sees its signal; what it returns is kept, and the run is stopped."""
    asked = threading.Event()

    @tool
    def wait(context: ToolContext) -> str:
        asked.set()
        assert context.signal.wait(10_000)
        return "stopped in time"

    app = world.process(Agent("x", model=MockModel([calls(call("wait")), "done"]), tools=[wait]))
    running = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="r"))
    await asyncio.to_thread(asked.wait, 10)
    assert await asyncio.to_thread(app.handle("r").cancel)
    result = await running
    assert (result.status, result.reason) == ("stopped", "aborted")
    [receipt] = (await world.receipts("r")).values()
    assert receipt.value == "stopped in time"


async def test_a_suspended_run_can_be_cancelled(world: World) -> None:
    """It ends without its answer; the call never runs."""
    done = Effects()
    app = world.process(gated(done))
    await app.aio.run_embedded("x", "go", run_id="r")
    assert await app.aio.handle("r").cancel()
    result = await app.aio.resume_embedded("r")
    assert (result.status, result.reason, done.done) == ("stopped", "aborted", {})


async def test_events_are_the_journal_in_order_and_end_with_the_run(world: World) -> None:
    """Dense sequence numbers from 1; a reader that comes late or goes on from a cursor misses nothing."""

    @tool
    async def look() -> str:
        return "seen"

    app = world.process(Agent("x", model=MockModel([calls(call("look")), "done"]), tools=[look]))
    handle = await app.aio.enqueue("x", "go")
    reading = asyncio.ensure_future(_all(handle))
    await app.aio.resume_embedded(handle.run_id)
    live = await reading
    assert [event.seq for event in live] == list(range(1, len(live) + 1))
    kinds = [event.type for event in live]
    assert kinds[0] in ("run.bound", "model.called")
    assert kinds[-1] == "run.completed"
    assert [kind for kind in kinds if kind.startswith("tool.")] == ["tool.started", "tool.completed"]
    assert [event async for event in handle.events(after=3)] == live[3:]


async def test_events_can_be_read_without_waiting(memory: World) -> None:
    """`follow=False` ends with what is there, although the run goes on."""
    app = memory.process(gated(Effects()))
    await app.aio.run_embedded("x", "go", run_id="r")
    assert [event.type async for event in app.aio.handle("r").events(follow=False)][-1] == "run.suspended"


async def test_a_handle_of_no_run_says_so(memory: World) -> None:
    """Every method, with run and scope."""
    handle = memory.process().aio.handle("nosuch", "acme")
    for asked in (handle.status(), handle.result(), handle.cancel(), handle.ring(), anext(handle.events())):
        with pytest.raises(RunNotFoundError, match=r"'nosuch'.*'acme'"):
            await asked


@pytest.mark.spec("RES-017")
async def test_a_passed_deadline_fails_the_run(world: World) -> None:
    """`ExecutionPolicyError`, code `deadline_exceeded`; a start that came too late stops it."""
    app = world.process(Agent("x", model=MockModel(["never"])))
    late = await app.aio.enqueue("x", "go", deadline=timedelta(seconds=-1))
    result = await app.aio.resume_embedded(late.run_id)
    assert result.status == "failed"
    assert ((result.error or {})["name"], (result.error or {})["code"]) == ("ExecutionPolicyError", "deadline_exceeded")
    missed = await app.aio.enqueue("x", "go", start_before=timedelta(seconds=-1))
    result = await app.aio.resume_embedded(missed.run_id)
    assert (result.status, result.reason) == ("stopped", "start-before-passed")


async def test_the_synchronous_handle_does_the_same(memory: World) -> None:
    """From a thread without a loop: enqueue, events, result, pending, approve."""
    done = Effects()
    app = memory.process(gated(done))

    def work() -> None:
        assert app.run_embedded("x", "go", run_id="r").status == "suspended"
        handle = app.handle("r")
        assert (handle.status(), handle.envelope().status, app.inspect("r").agent) == ("suspended", "suspended", "x")
        [pending] = handle.pending()
        handle.approve(pending.approval_id)
        assert app.resume_embedded("r").output == "done"
        assert handle.result(timeout=5).output == "done"
        assert [event.type for event in handle.events()][-1] == "run.completed"
        assert not handle.cancel()
        started = app.enqueue("x", "go")
        assert (started.status(), started.cancel()) == ("queued", True)
        with pytest.raises(ResultTimeoutError):
            started.result(timeout=0.01)
        started.ring()

    await asyncio.to_thread(work)
    assert done.done == {"ann": 1}


async def test_the_synchronous_client_on_its_own_loop_is_refused(memory: World) -> None:
    """An async tool of a run on that loop would wait for itself; it gets a sentence, and the run goes on."""

    @tool
    async def nested() -> str:
        app.enqueue("x", "go")
        return "never"

    app = memory.process(Agent("x", model=MockModel([calls(call("nested")), "done"]), tools=[nested]))
    result = await asyncio.to_thread(app.run_embedded, "x", "go")
    [part] = [part for message in result.messages for part in message.tool_results]
    assert "await the function of the same name on app.aio" in part.text
    assert result.status == "completed"


async def test_a_sync_tool_may_run_an_agent_and_wait_for_it(memory: World) -> None:
    """In its thread the synchronous client works, although the run it belongs to is on the client's loop."""

    @tool
    def delegate() -> str:
        return app.run_embedded("y", "go").output

    app = memory.process(
        Agent("x", model=MockModel([calls(call("delegate")), "done"]), tools=[delegate]), Agent("y", model=MockModel(["inner"]))
    )
    result = await asyncio.to_thread(app.run_embedded, "x", "go")
    assert [part.text for message in result.messages for part in message.tool_results] == ["inner"]


async def test_a_driver_is_rung_by_the_clients_of_its_process(memory: World) -> None:
    """A run that another thread enqueues on the driver's queue is taken at once, and its handle resolves there."""
    app = memory.process(Agent("x", model=MockModel(["hi"])))
    stop = asyncio.Event()
    async with driver(app, queues=("default",)) as driving:
        serving = asyncio.ensure_future(driving.serve(stop))
        result = await asyncio.to_thread(lambda: app.enqueue("x", "go").result(timeout=10))
        stop.set()
        await serving
    assert result.output == "hi"


@pytest.mark.spec("RES-003")
async def test_a_result_without_output_says_why(memory: World) -> None:
    """Reading `output` of a suspended, stopped or failed run raises, with status and reason."""
    app = memory.process(gated(Effects()))
    suspended = await app.aio.run_embedded("x", "go", run_id="r")
    with pytest.raises(RunFailedError, match="1 approval is pending"):
        _ = suspended.output
    await app.aio.handle("r").cancel()
    with pytest.raises(RunFailedError, match="stopped and has no output: aborted"):
        _ = (await app.aio.resume_embedded("r")).output
    late = await app.aio.enqueue("x", "go", deadline=timedelta(seconds=-1))
    with pytest.raises(RunFailedError, match="failed and has no output: ExecutionPolicyError: the deadline"):
        _ = (await app.aio.resume_embedded(late.run_id)).output


async def test_verdicts_that_are_none_are_refused(memory: World) -> None:
    """So are calls that were not interrupted, and calls that are listed twice."""
    app = memory.process(gated(Effects()))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    with pytest.raises(ConfigurationError, match="True, False, or a mapping"):
        await app.aio.resume_embedded("r", approvals={waiting.pending_approvals[0].approval_id: {"ok": 1}})
    with pytest.raises(ConfigurationError, match="was not interrupted"):
        await app.aio.resume_embedded("r", retry_tool_call_ids=["c"])
    with pytest.raises(ConfigurationError, match="named twice"):
        await app.aio.resume_embedded("r", retry_tool_call_ids=["c"], reconciled_tool_results={"c": 1})


async def _all(handle: AsyncHandle) -> list[RunEvent]:
    return [event async for event in handle.events()]
