"""`run_agent` and `resume_agent`: nothing but the package, over memory, a file and Postgres."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    Budget,
    ConfigurationError,
    Limits,
    MockModel,
    ToolContext,
    Usage,
    resume_agent,
    resume_agent_sync,
    run_agent,
    run_agent_sync,
    tool,
)
from deuz_workers.core.change import Head
from deuz_workers.core.codec import encode
from deuz_workers.core.messages import message_to_record, user
from deuz_workers.core.names import run_lease_key
from deuz_workers.errors import ModelRateLimitedError, ModelRequestError, StoreUnavailableError
from deuz_workers.leases import memory_leases
from deuz_workers.ports.leases import Lease
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import Loaded
from deuz_workers.providers.script import Entry, attempts, call, calls, hangs, reply
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.crashing_store import CrashingStore
from deuz_workers.testing.lying_leases import LyingLeases
from deuz_workers.testing.store_conformance_bench import change_from
from tests.app.world import World


def agent(*script: object, **given: object) -> Agent:
    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    @tool
    async def look() -> str:
        return "seen"

    return Agent("x", model=MockModel(script), tools=[pay, look], **given)  # pyright: ignore[reportArgumentType]


async def test_a_run_needs_nothing_but_the_package(tmp_path: Path) -> None:
    """No store, no server, no file: the answer, and nothing left behind."""
    result = await run_agent(agent("hello"), "hi")
    assert (result.status, result.output, result.text, result.steps) == ("completed", "hello", "hello", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("CKP-003")
async def test_a_run_in_a_file_or_on_a_server_is_resumed_by_its_id(store_url: str) -> None:
    """Suspended in one call, answered in another one; memory forgets, and says so."""
    waiting = await run_agent(agent(calls(call("pay")), "done"), "hi", store=store_url, run_id="r")
    assert waiting.status == "suspended"
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    result = await resume_agent(agent(calls(call("pay")), "done"), "r", store=store_url, approvals=verdicts)
    if store_url.endswith(":memory:"):
        assert (result.status, (result.error or {})["code"]) == ("failed", "scope_mismatch")
    else:
        assert (result.status, result.output) == ("completed", "done")


@pytest.mark.spec("CKP-005")
async def test_a_run_id_that_exists_is_refused(world: World) -> None:
    """The second start fails and the first record is intact; a key goes on with what is there."""
    first = await run_agent(agent("one"), "hi", store=world.store, run_id="r")
    again = await run_agent(agent("two"), "hi", store=world.store, run_id="r")
    assert (again.status, (again.error or {})["name"]) == ("failed", "RunExistsError")
    assert await resume_agent(agent("three"), "r", store=world.store) == first
    by_key = await run_agent(agent("one"), "hi", store=world.store, idempotency_key="k")
    assert await run_agent(agent("two"), "hi", store=world.store, idempotency_key="k") == by_key


@pytest.mark.spec("CKP-004", "RSM-001")
async def test_another_scope_is_refused_ahead_of_any_call(world: World) -> None:
    """Starting and resuming a run of another scope: that sentence, no model call, revision unchanged."""
    await run_agent(agent("one"), "hi", store=world.store, run_id="r", scope="a")
    before = (await world.head("r", "a")).revision
    other = agent("two")
    sentence = "Native checkpoint version, identity, or scope mismatch."
    for result in (
        await run_agent(other, "hi", store=world.store, run_id="r", scope="b"),
        await resume_agent(other, "r", store=world.store, scope="b"),
    ):
        assert result.status == "failed"
        assert str((result.error or {})["message"]).startswith(sentence)
    assert isinstance(other.model, MockModel)
    assert other.model.requests == ()
    assert (await world.head("r", "a")).revision == before


@pytest.mark.spec("RSM-002", "RSM-003", "RSM-004")
@pytest.mark.parametrize(
    ("entry", "status"),
    [("done", "completed"), (reply("no", finish_reason="content_filter"), "stopped"), (ModelRequestError("bad"), "failed")],
)
async def test_resuming_a_run_that_has_ended_is_a_read(world: World, entry: object, status: str) -> None:
    """Completed, stopped and failed: the same result again, no call, revision unchanged."""
    first = await run_agent(agent(entry), "hi", store=world.store, run_id="r")
    assert first.status == status
    before = (await world.head("r")).revision
    again = agent(AssertionError("called"))
    assert await resume_agent(again, "r", store=world.store) == first
    assert isinstance(again.model, MockModel)
    assert again.model.requests == ()
    assert (await world.head("r")).revision == before


@pytest.mark.spec("RES-005")
@pytest.mark.parametrize("output_type", [None, int])
async def test_a_refusal_of_the_model_stops_the_run(memory: World, output_type: Any) -> None:
    """After exactly one call, with reason `refusal`, whether its text is the answer or one is asked for afterwards."""
    refusing = agent(reply("I will not", finish_reason="content_filter"), output_type=output_type)
    result = await run_agent(refusing, "hi", store=memory.store)
    assert (result.status, result.reason, result.text) == ("stopped", "refusal", "I will not")
    assert isinstance(refusing.model, MockModel)
    assert len(refusing.model.requests) == 1


@pytest.mark.spec("RES-005")
async def test_a_stop_with_more_to_say_has_details_that_are_plain_data(world: World) -> None:
    """Its reason names the kind, its details the values, and both come out of the store as they were."""
    made = agent(calls(call("look")), limits=Limits(max_steps=1))
    result = await run_agent(made, "hi", store=world.store, run_id="r")
    assert (result.status, result.reason) == ("stopped", "max-steps")
    assert json.loads(json.dumps(result.stop_details)) == {"max_steps": 1}
    assert (await resume_agent(made, "r", store=world.store)).stop_details == result.stop_details


@pytest.mark.spec("RES-007")
async def test_every_result_has_id_messages_usage_and_steps(memory: World) -> None:
    """Whatever its status."""
    ends = {
        "completed": agent("done"),
        "suspended": agent(calls(call("pay"))),
        "stopped": agent(calls(call("look")), limits=Limits(max_steps=1)),
        "failed": agent(ModelRequestError("bad")),
    }
    for status, made in ends.items():
        result = await run_agent(made, "hi", store=memory.store)
        assert result.status == status
        assert result.run_id
        assert result.messages
        assert result.usage.total_tokens == (0 if status == "failed" else 15)
        assert result.steps == 1


@pytest.mark.spec("RES-006")
async def test_the_error_of_a_failed_run_survives_json_and_the_store(world: World) -> None:
    """Name, message and code as plain data."""
    result = await run_agent(agent(ModelRequestError("no such model", model="m")), "hi", store=world.store, run_id="r")
    assert json.loads(json.dumps(result.error)) == {
        "name": "ModelRequestError",
        "message": "no such model",
        "code": "model_request",
        "model": "m",
    }
    assert (await resume_agent(agent(), "r", store=world.store)).error == result.error


@pytest.mark.spec("RES-015")
async def test_a_run_without_an_output_type_completes_with_the_last_text(memory: World) -> None:
    """One reply, one call, `text` and `output` are that reply."""
    made = agent("the answer")
    result = await run_agent(made, "hi", store=memory.store)
    assert result.text == result.output == "the answer"
    assert isinstance(made.model, MockModel)
    assert len(made.model.requests) == 1


async def test_automatic_repeats_are_waited_for(memory: World) -> None:
    """A 429 is no end: the driver looks again when the back-off is over."""
    limited = ModelRateLimitedError("slow down")
    result = await run_agent(agent(attempts(limited, limited, "done")), "hi", store=memory.store)
    assert (result.status, result.output) == ("completed", "done")


async def test_a_budget_refuses_the_call_it_has_no_room_for(memory: World) -> None:
    """Before it is made; the run says which budget."""
    made = agent("never", max_output_tokens=1_000, budget=Budget.of(tokens=10))
    result = await run_agent(made, "hi", store=memory.store)
    assert (result.status, (result.error or {})["code"]) == ("failed", "budget_exceeded")
    assert isinstance(made.model, MockModel)
    assert made.model.requests == ()
    assert result.usage == Usage()


@pytest.mark.spec("RES-009", "RES-010", "RES-011")
async def test_a_store_that_fails_is_a_failed_result_and_a_resume_goes_on(world: World) -> None:
    """No exception escapes, completion is not reported before it is stored, and the last commit stands."""
    made = agent("done")
    store = CrashingStore(world.store, at=2, error=RuntimeError("disk full"))
    result = await run_agent(made, "hi", store=store.as_store, run_id="r")
    assert result.status == "failed"
    loaded = await world.loaded("r")
    assert (loaded.head.status, loaded.head.revision, len(loaded.messages)) == ("running", 1, 1)
    await world.later(60_000)
    assert (await resume_agent(agent("done"), "r", store=world.store, leases=memory_leases())).status == "completed"
    assert (await world.head("r")).revision > 1


@pytest.mark.spec("RES-009")
@pytest.mark.parametrize("operation", ["create", "load", "head"])
@pytest.mark.parametrize("error", [RuntimeError("disk full"), StoreUnavailableError()])
async def test_whatever_operation_of_the_store_fails_no_exception_escapes(
    world: World, operation: str, error: Exception
) -> None:
    """Of a start and of a resume, also what no store of ours raises; afterwards the run goes on, if there is one."""

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name) if name != operation else self.fail

        async def fail(self, *given: Any, **options: Any) -> Any:
            raise error

    failing: Any = Failing()
    started = await run_agent(agent("done"), "hi", store=failing, run_id="r")
    resumed = await resume_agent(agent("done"), "r", store=failing)
    assert started.status == "failed"
    assert resumed.status == ("completed" if operation == "head" else "failed"), (
        "its end was stored before its head was asked for"
    )
    last = await resume_agent(agent("done"), "r", store=world.store)
    assert last.status == ("failed" if operation == "create" else "completed")


@pytest.mark.spec("CKP-009")
async def test_a_run_that_another_executor_holds_is_refused_after_a_ttl(world: World) -> None:
    """`AgentRunLeaseError`, `lease_held`; nothing is written."""
    leases = memory_leases()
    holder = world.process(agent(hangs()))
    holder.__dict__["leases"] = leases
    running = asyncio.ensure_future(holder.aio.run_embedded("x", "hi", run_id="r"))
    while not await _is_called(world.store):  # noqa: ASYNC110 - the store has no event to wait for
        await asyncio.sleep(0.002)
    before = await world.head("r")
    second = world.process(agent("done"), ttl_ms=1_000)
    second.__dict__["leases"] = leases
    result = await second.aio.resume_embedded("r")
    assert (result.status, (result.error or {})["name"], (result.error or {})["code"]) == (
        "failed",
        "AgentRunLeaseError",
        "lease_held",
    )
    assert (await world.head("r")).revision == before.revision
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.spec("LEA-003", "LEA-010")
@pytest.mark.parametrize(
    ("how", "name"), [("lease_lost", "AgentRunLeaseError"), ("revision_conflict", "RevisionConflictError")]
)
async def test_a_run_that_another_executor_took_over_is_a_failed_result(world: World, how: str, name: str) -> None:
    """It names the lost lease, or the conflict of one that heard of no loss; the record is the other executor's."""
    leases = memory_leases() if how == "lease_lost" else LyingLeases()

    @tool
    async def work(ctx: ToolContext) -> str:
        head = await world.head("r")
        if how == "lease_lost":
            key = run_lease_key("default", "r")
            owner = (await leases.peek(key)).owner
            await leases.release(Lease(key, owner, 1, "", 1_000, "none"))
            assert isinstance(await leases.acquire(key, "thief", 60_000), Lease)
            stored.append(await world.loaded("r"))
            await asyncio.to_thread(ctx.signal.wait, 10_000)
        else:
            await world.store.commit(change_from(head))
            stored.append(await world.loaded("r"))
        return "worked"

    stored: list[Loaded] = []
    app = world.process(Agent("x", model=MockModel([calls(call("work")), "done"]), tools=[work]), ttl_ms=1_000)
    app.__dict__["leases"] = leases
    result = await app.aio.run_embedded("x", "hi", run_id="r")
    assert (result.status, (result.error or {})["name"], (result.error or {})["code"]) == ("failed", name, how)
    [then] = stored
    now = await world.loaded("r")
    assert (now.head.revision, now.messages, now.receipts) == (then.head.revision, then.messages, then.receipts)


async def test_a_cancelled_task_leaves_its_run_to_be_resumed(world: World) -> None:
    """The model call ends at once, its lease is given back, and the next driver makes the call again."""
    running = asyncio.ensure_future(run_agent(agent(attempts(hangs(), "done")), "hi", store=world.store, run_id="r"))
    while not await _is_called(world.store):  # noqa: ASYNC110 - the store has no event to wait for
        await asyncio.sleep(0.002)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    head = await world.head("r")
    assert (head.status, head.mid_step) == ("running", False)
    result = await resume_agent(agent(attempts(hangs(), "done")), "r", store=world.store)
    assert (result.status, result.output) == ("completed", "done")


@pytest.mark.spec("BND-002", "BND-008", "RES-014")
async def test_a_changed_agent_is_refused_and_the_right_one_goes_on(world: World) -> None:
    """Another model, tool schema, limit or `binding_id`: that sentence, no call, revision unchanged."""
    script = [calls(call("pay")), "done"]
    waiting = await run_agent(agent(*script), "hi", store=world.store, run_id="r")
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}

    @tool
    async def pay(amount: int) -> str:
        return str(amount)

    changed = [
        Agent("x", model=MockModel(script, model="another"), tools=list(agent().tools.values())),
        Agent("x", model=MockModel(script), tools=[pay]),
        agent(*script, binding_id="2"),
        agent(*script, limits=Limits(max_steps=40)),
    ]
    revision = (await world.head("r")).revision
    await world.store.add_note("default", "r", "message", encode({"message": message_to_record(user("hurry"))}))
    for other in changed:
        result = await resume_agent(other, "r", store=world.store)
        assert result.status == "failed"
        assert str((result.error or {})["message"]).startswith("Native agent binding changed across resume.")
        assert isinstance(other.model, MockModel)
        assert other.model.requests == ()
        assert (await world.head("r")).revision == revision
    result = await resume_agent(agent(*script), "r", store=world.store, approvals=verdicts)
    assert (result.status, result.steps, result.usage.total_tokens) == ("completed", 2, 30)


@pytest.mark.spec("RES-014")
async def test_consumed_steps_and_attempts_go_on_from_the_record(world: World) -> None:
    """A resume has what is left of `max_steps` and no more; a model call that was open counts as an attempt."""

    def two_steps(*script: object) -> Agent:
        return agent(*script, limits=Limits(max_steps=2))

    called = asyncio.Event()

    async def silent(request: ModelRequest) -> Entry:
        called.set()
        return await asyncio.Event().wait()  # pyright: ignore[reportReturnType]

    script = [calls(call("pay")), attempts(silent, calls(call("look"))), "never"]
    waiting = await run_agent(two_steps(*script), "hi", store=world.store, run_id="r")
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    running = asyncio.ensure_future(resume_agent(two_steps(*script), "r", store=world.store, approvals=verdicts))
    await called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    last = two_steps(*script)
    result = await resume_agent(last, "r", store=world.store)
    assert (result.status, result.reason, result.steps) == ("stopped", "max-steps", 2)
    assert isinstance(last.model, MockModel)
    assert [request.attempt for request in last.model.requests] == [2]


@pytest.mark.spec("MSG-002")
async def test_a_message_that_arrives_in_the_middle_of_a_turn_follows_its_results(world: World) -> None:
    """A call is answered before anything else is said: over a suspension, a denial and the process that took it in."""
    script = [calls(call("pay"), call("look")), "done"]
    waiting = await run_agent(agent(*script), "hi", store=world.store, run_id="r")
    await world.store.add_note("default", "r", "message", encode({"message": message_to_record(user("hurry"))}))
    assert (await resume_agent(agent(*script), "r", store=world.store)).status == "suspended"
    verdicts = {item.approval_id: {"approved": False, "reason": "no"} for item in waiting.pending_approvals}
    made = agent(*script)
    result = await resume_agent(made, "r", store=world.store, approvals=verdicts)
    assert result.status == "completed"
    assert isinstance(made.model, MockModel)
    [request] = made.model.requests
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "user"]
    assert [part.call_id for part in request.messages[2].tool_results] == [use.call_id for use in request.messages[1].tool_uses]


async def test_the_limits_are_those_of_the_agent_that_begins_the_run(world: World) -> None:
    """A client that does not know the agent enqueues with the defaults; the first step puts the agent's own in their place."""
    handle = await world.process().aio.enqueue("x", "hi")
    assert (await handle.envelope()).limits == Limits()
    strict = agent(calls(call("look")), "done", limits=Limits(max_steps=1))
    result = await resume_agent(strict, handle.run_id, store=world.store)
    assert (result.status, result.reason, result.stop_details) == ("stopped", "max-steps", {"max_steps": 1})
    assert (await handle.envelope()).limits.max_steps == 1


async def test_a_run_of_another_agent_is_refused(world: World) -> None:
    """The error names the agent that the run belongs to."""
    await run_agent(agent(calls(call("pay"))), "hi", store=world.store, run_id="r")
    await world.store.add_note("default", "r", "message", "{}")
    result = await resume_agent(Agent("y", model=MockModel(["ok"])), "r", store=world.store)
    assert (result.error or {})["code"] == "unknown_agent"
    assert "'x'" in str((result.error or {})["message"])


async def test_what_is_no_agent_or_store_is_refused() -> None:
    """Mistakes of the caller's are raised."""
    with pytest.raises(ConfigurationError, match="takes an Agent, not a str"):
        await run_agent("x", "hi")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="'mysql://db/x' is no URL"):
        await run_agent(agent("ok"), "hi", store="mysql://db/x")


def test_the_synchronous_functions_need_no_loop(tmp_path: Path) -> None:
    """The same from a plain script."""
    url = f"sqlite:///{tmp_path}/runs.db"
    waiting = run_agent_sync(agent(calls(call("pay")), "done"), "hi", store=url, run_id="r")
    verdicts = {item.approval_id: False for item in waiting.pending_approvals}
    result = resume_agent_sync(agent(calls(call("pay")), "done"), "r", store=url, approvals=verdicts)
    assert (result.status, result.output) == ("completed", "done")


async def test_many_runs_share_a_loop(memory: World) -> None:
    """A hundred at a time over one store, each with its own driver."""
    results = await asyncio.gather(
        *(run_agent(agent(calls(call("look")), "done"), "hi", store=memory.store) for _ in range(100))
    )
    assert [result.status for result in results] == ["completed"] * 100
    assert len({result.run_id for result in results}) == 100


async def _is_called(store: SqlStore) -> bool:
    head: Head | None = await store.head("default", "r")
    return head is not None and head.mid_step


def test_stores_of_ones_own_are_not_closed(tmp_path: Path) -> None:
    """`run_agent` closes what it opened and nothing else."""

    async def twice() -> str:
        store = open_store("sqlite://:memory:")
        await run_agent(agent("one"), "hi", store=store, run_id="r")
        result = await resume_agent(agent("two"), "r", store=store)
        await store.close()
        return result.output

    assert asyncio.run(twice()) == "one"
