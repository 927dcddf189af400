"""`reconcile_agent_run`, and who is turned away while another executor has a run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from deuz_workers import (
    Agent,
    AgentRunLeaseError,
    ConfigurationError,
    Limits,
    MockModel,
    ModelUnavailableError,
    ScopeMismatchError,
    UnsupportedStoreError,
    reconcile_agent_run,
    resume_agent,
    resume_stream_agent,
    run_agent,
    stream_agent,
    tool,
)
from deuz_workers.core.names import run_lease_key
from deuz_workers.leases import memory_leases
from deuz_workers.leases.sqlite import SqliteLeases
from deuz_workers.ports.leases import Lease, Renewed
from deuz_workers.ports.store import Loaded, RunStore
from deuz_workers.providers.script import Entry, call, calls, fails, hangs
from tests.app.world import Effects, World

KEY = run_lease_key("default", "r")


class Elsewhere:
    """The same store as another object: what another process would have."""

    def __init__(self, inner: RunStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @staticmethod
    def of(world: World) -> RunStore:
        return cast(RunStore, Elsewhere(world.store))


def gated(done: Effects, *script: Entry) -> Agent:
    @tool(needs_approval=True)
    async def pay() -> str:
        done("pay")
        return "paid"

    return Agent("x", model=MockModel([*script, "done"]), tools=[pay])


async def waiting_signal(leases: SqliteLeases) -> str:
    """What the next holder of the key would be told; it stays told to nobody else."""
    lease = await leases.acquire(KEY, "looks", 60_000)
    assert isinstance(lease, Lease)
    [renewed] = leases.renewer(timeout_ms=1_000).renew([lease])
    await leases.release(lease)
    assert isinstance(renewed, Renewed)
    return renewed.signal


async def hung(world: World, leases: SqliteLeases) -> asyncio.Task[Any]:
    """A run `r` whose model call is under way in an executor that holds its lease."""
    called = asyncio.Event()

    async def answer(request: object) -> Entry:
        called.set()
        return hangs()

    agent = Agent("x", model=MockModel.function(answer))
    running = asyncio.ensure_future(run_agent(agent, "go", store=world.store, leases=leases, run_id="r"))
    await called.wait()
    return running


async def end(running: asyncio.Task[Any]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.spec("LEA-002", "RES-021")
async def test_a_second_executor_is_refused_in_the_form_of_its_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start and resume end as a failed result, `reconcile_agent_run` raises; name and code are the same, and nothing is
    written."""
    monkeypatch.setenv("DEUZ_LEASE_TTL_MS", "1000")  # as long as a resume waits for a holder that might be dead
    leases = memory_leases()
    running = await hung(world, leases)
    before = await world.loaded("r")
    options: dict[str, Any] = {"store": Elsewhere.of(world), "leases": leases}
    agent = Agent("x", model=MockModel(["never"]))
    resumed = await resume_agent(agent, "r", **options)
    started = await run_agent(agent, "go", run_id="r", on_conflict="return", **options)
    for result in (resumed, started):
        error = result.error or {}
        assert (result.status, error["name"], error["code"]) == ("failed", "AgentRunLeaseError", "lease_held")
    with pytest.raises(AgentRunLeaseError) as caught:
        await reconcile_agent_run("r", **options)
    assert (type(caught.value).__name__, caught.value.code) == ("AgentRunLeaseError", "lease_held")
    after = await world.loaded("r")
    assert (after.head.revision, after.head.wake_seq, after.messages) == (
        before.head.revision,
        before.head.wake_seq,
        before.messages,
    )
    await end(running)
    await leases.close()


@pytest.mark.spec("CKP-008")
@pytest.mark.parametrize("how", ["start", "resume"])
async def test_the_later_of_two_in_one_process_is_turned_away_at_once(world: World, how: str) -> None:
    """Over one store object, with a lease that would be waited for, for half a minute: the second await has failed before the
    first one has got anywhere."""
    leases = memory_leases()
    running = await hung(world, leases)
    agent = Agent("x", model=MockModel(["never"]))
    options: dict[str, Any] = {"store": world.store, "leases": leases}
    async with asyncio.timeout(10):
        if how == "start":
            second = await run_agent(agent, "go", run_id="r", on_conflict="return", **options)
        else:
            second = await resume_agent(agent, "r", **options)
    assert (second.status, (second.error or {})["code"], running.done()) == ("failed", "lease_held", False)
    await end(running)
    completed = await resume_agent(Agent("x", model=MockModel(["done"])), "r", **options)
    assert completed.status == "completed"
    await leases.close()


@pytest.mark.spec("LEA-009")
async def test_a_queued_cancel_of_a_run_that_has_ended_is_dropped(world: World) -> None:
    """By `reconcile_agent_run`, and by a resume that only reads the result."""
    leases = memory_leases()
    agent = Agent("x", model=MockModel(["done"]))
    assert (await run_agent(agent, "go", store=world.store, leases=leases, run_id="r")).status == "completed"
    for look in ("reconcile", "resume"):
        await leases.signal(KEY, "cancel")
        if look == "reconcile":
            assert (await reconcile_agent_run("r", store=world.store, leases=leases)).run_id == "r"
        else:
            assert (await resume_agent(agent, "r", store=world.store, leases=leases)).status == "completed"
        assert await waiting_signal(leases) == ""
    await leases.close()


@pytest.mark.spec("LEA-009")
async def test_a_queued_cancel_of_a_suspended_run_is_kept_for_who_takes_it_up(world: World) -> None:
    """Neither `reconcile_agent_run` nor a resume without answers takes it; the next one with all answers ends the run as
    aborted, and calls neither model nor tool."""
    leases, done = memory_leases(), Effects()
    agent = gated(done, calls(call("pay").with_id("p")))
    options: dict[str, Any] = {"store": world.store, "leases": leases}
    [asked] = (await run_agent(agent, "go", run_id="r", **options)).pending_approvals
    app = world.process(agent)
    app.__dict__["leases"] = leases
    before = await world.head("r")
    await leases.signal(KEY, "cancel")
    await reconcile_agent_run("r", **options)
    assert (await resume_agent(agent, "r", **options)).status == "suspended"
    assert await waiting_signal(leases) == "cancel"
    assert (await world.head("r")).revision == before.revision
    assert await app.aio.handle("r").cancel("enough")
    await reconcile_agent_run("r", **options)
    assert isinstance(agent.model, MockModel)
    requests = len(agent.model.requests)
    result = await resume_agent(agent, "r", approvals={asked.approval_id: True}, **options)
    assert (result.status, result.reason) == ("stopped", "aborted")
    assert (len(agent.model.requests), done.done) == (requests, {})
    await leases.close()


async def test_a_repair_of_what_is_not_there_or_lapsed(world: World) -> None:
    """Another scope's run is none; a lease that its dead holder let lapse is not given back: the next step counts that."""
    leases = memory_leases()
    agent = gated(Effects(), calls(call("pay")))
    await run_agent(agent, "go", store=world.store, leases=leases, run_id="r")
    with pytest.raises(ScopeMismatchError, match="no run 'r' in scope 'other'"):
        await reconcile_agent_run("r", store=world.store, leases=leases, scope="other")
    dead = await leases.acquire(KEY, "dead", 1)
    assert isinstance(dead, Lease)
    while (await leases.peek(KEY)).ms_left is not None:  # noqa: ASYNC110 - time passes, and nobody tells
        await asyncio.sleep(0.001)
    await reconcile_agent_run("r", store=world.store, leases=leases)
    assert (await leases.peek(KEY)).ms_left is not None
    await leases.close()


@pytest.mark.spec("LEA-005")
async def test_no_retry_is_recorded_of_a_run_past_its_deadline(world: World) -> None:
    """It is failed, without `retry`, although its model was away when the time was over; `retry_failed` is a `TypeError`."""

    async def answer(request: object) -> Entry:
        await world.later(60_000)
        return fails(ModelUnavailableError("away"))

    app = world.process(Agent("x", model=MockModel.function(answer), limits=Limits(max_retries=3)))
    await app.aio.enqueue("x", "go", run_id="r", deadline=timedelta(seconds=30))
    result = await app.aio.resume_embedded("r")
    assert (result.status, (result.error or {})["code"]) == ("failed", "deadline_exceeded")
    assert (await app.aio.handle("r").envelope()).retry is None
    again = await app.aio.resume_embedded("r", retry_failed=True)
    assert (again.status, (again.error or {})["name"]) == ("failed", "TypeError")


@pytest.mark.spec("LEA-005")
async def test_no_retry_is_recorded_of_a_cancelled_run(world: World) -> None:
    """It waits for its next attempt when it is cancelled: stopped, without `retry`, and `retry_failed` has no effect."""

    async def answer(request: object) -> Entry:
        await app.aio.handle("r").cancel()
        return fails(ModelUnavailableError("away"))

    app = world.process(Agent("x", model=MockModel.function(answer), limits=Limits(max_retries=3)))
    await app.aio.enqueue("x", "go", run_id="r")
    result = await app.aio.resume_embedded("r")
    assert (result.status, result.reason) == ("stopped", "aborted")
    before = await world.loaded("r")
    assert (await app.aio.handle("r").envelope()).retry is None
    again = await app.aio.resume_embedded("r", retry_failed=True)
    assert (again.status, again.reason, again.error) == ("stopped", "aborted", None)
    assert (await world.loaded("r")).head.revision == before.head.revision


@pytest.mark.spec("LEA-005")
async def test_no_retry_is_recorded_by_an_executor_that_lost_its_lease(world: World) -> None:
    """Another executor takes the run during its model call: it stores nothing of how that ended, so that the other's record has
    no `retry` either."""
    leases = memory_leases()
    stored: list[Loaded] = []

    async def answer(request: object) -> Entry:
        owner = (await leases.peek(KEY)).owner
        await leases.release(Lease(KEY, owner, 1, "", 1_000, "none"))
        assert isinstance(await leases.acquire(KEY, "thief", 60_000), Lease)
        stored.append(await world.loaded("r"))
        return hangs()

    app = world.process(Agent("x", model=MockModel.function(answer)), ttl_ms=1_000)
    app.__dict__["leases"] = leases
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, (result.error or {})["code"]) == ("failed", "lease_lost")
    [then] = stored
    now = await world.loaded("r")
    assert (now.head.revision, now.receipts) == (then.head.revision, then.receipts)
    assert (await world.process().aio.handle("r").envelope()).retry is None


@pytest.mark.spec("RES-021")
async def test_a_scope_that_is_not_the_run_s_is_refused_in_the_form_of_the_call(world: World) -> None:
    """Resume and stream end as a failed result, `reconcile_agent_run` raises the error of that name."""
    agent = Agent("x", model=MockModel(["done"]))
    await run_agent(agent, "go", store=world.store, run_id="r")
    options: dict[str, Any] = {"store": world.store, "scope": "other"}
    results = [await resume_agent(agent, "r", **options), await resume_stream_agent(agent, "r", **options).result]
    results.append(await run_agent(agent, "go", run_id="r", **options))
    for result in results:
        assert (result.status, (result.error or {})["name"]) == ("failed", "ScopeMismatchError")
    with pytest.raises(ScopeMismatchError):
        await reconcile_agent_run("r", **options)


class Untouched:
    """A store of which nothing may be asked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(name)


@pytest.mark.spec("RES-021", "V3R-009")
@pytest.mark.parametrize(
    ("store", "backend"), [("redis://127.0.0.1:1/0", "redis"), (Untouched(), "Untouched"), ("sqlite:///none/r.db", "sqlite")]
)
async def test_a_version_of_record_that_a_store_does_not_keep_is_refused_before_it_is_asked(store: Any, backend: str) -> None:
    """Start, stream and resume end as a failed result whose error says store and feature, `reconcile_agent_run` raises it."""
    model = MockModel(["never"])
    agent = Agent("x", model=model)
    options: dict[str, Any] = {"store": store, "checkpoint_version": 3}
    results = [
        await run_agent(agent, "go", **options),
        await stream_agent(agent, "go", **options).result,
        await resume_agent(agent, "r", **options),
        await resume_stream_agent(agent, "r", **options).result,
    ]
    about = {"name": "UnsupportedStoreError", "code": "unsupported_store", "backend": backend, "feature": "agent-run-v3"}
    for result in results:
        assert (result.status, about.items() <= (result.error or {}).items()) == ("failed", True)
    with pytest.raises(UnsupportedStoreError) as caught:
        await reconcile_agent_run("r", **options)
    assert (caught.value.code, caught.value.fields["backend"]) == ("unsupported_store", backend)
    assert model.requests == ()
    with pytest.raises(ConfigurationError, match="checkpoint_version"):
        await run_agent(agent, "go", checkpoint_version=2)  # pyright: ignore[reportArgumentType]
