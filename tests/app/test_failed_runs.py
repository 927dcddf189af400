"""Runs that failed: what is recorded of the cause, and what becomes of them when they are taken up again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    AgentResult,
    Budget,
    ConfigurationError,
    ExecutionPolicy,
    Limits,
    MockModel,
    ModelBreakerOpenError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelUnavailableError,
    RetryRefusedError,
    RunNotFoundError,
    client_tool,
    tool,
)
from deuz_workers.core.change import Change, MessageRow, ReceiptRow
from deuz_workers.core.codec import encode
from deuz_workers.core.messages import Message, ToolUsePart, message_to_record
from deuz_workers.core.names import run_lease_key, run_scope_key
from deuz_workers.engine.settings import EngineSettings
from deuz_workers.leases import memory_leases
from deuz_workers.ports.guard import Guardrails
from deuz_workers.ports.leases import Lease
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.providers.retry import RetryPolicy
from deuz_workers.providers.script import Entry, attempts, call, calls, hangs, reply
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from deuz_workers.testing.model_faults import Served, cut, refuse, stall
from deuz_workers.testing.model_server import ModelServer
from deuz_workers.testing.simulation import Simulation
from tests.app.world import Effects, World

ONE_TRY = Limits(max_retries=0)
OUTAGE = ModelUnavailableError("away", status=503)
ESTIMATE = Budget.of(tokens=1_234)
"""Of one call."""


@dataclass
class Answer:
    n: int


def agent(*script: Entry, tools: Any = (), limits: Limits = ONE_TRY, **given: Any) -> Agent:
    return Agent("x", model=MockModel(script), tools=tools, limits=limits, **given)


def requests(agent: Agent) -> int:
    assert isinstance(agent.model, MockModel)
    return len(agent.model.requests)


async def run(world: World, agent: Agent, **options: Any) -> AgentResult[Any]:
    return await world.process(agent).aio.run_embedded("x", "go", run_id="r", **options)


async def resume(world: World, agent: Agent, **options: Any) -> AgentResult[Any]:
    return await world.process(agent).aio.resume_embedded("r", **options)


async def rows(world: World) -> tuple[object, ...]:
    """Everything that is stored of the run, but what only the clock moves."""
    loaded = await world.loaded("r")
    head = replace(loaded.head, due_in_ms=None, deadline_in_ms=None)
    return (head, loaded.messages, loaded.receipts, loaded.notes, loaded.items)


@pytest.mark.spec("MDL-001")
async def test_a_plain_resume_of_a_failed_run_reads(world: World) -> None:
    """The stored error comes back, no model is called, nothing is written."""
    failed = await run(world, agent(attempts(OUTAGE, "done")))
    stored, next_agent = await rows(world), agent(attempts(OUTAGE, "done"))
    assert (await resume(world, next_agent)).error == failed.error
    assert (requests(next_agent), await rows(world)) == (0, stored)


async def test_the_policy_of_a_retry_outlives_the_process_that_asked_for_it(world: World) -> None:
    """It dies behind the commit that takes the run up; whoever goes on knows nothing of the policy and is held to it."""
    done = Effects()

    @tool
    async def pay() -> str:
        done("pay")
        return "paid"

    def payer(*script: Entry) -> Agent:
        return agent(*script, tools=[pay])

    assert (await run(world, payer(attempts(OUTAGE)))).status == "failed"
    script = (calls(call("pay")), "done")
    dying = world.dying(payer(*script), at=1, applied=True)
    with pytest.raises(ProcessDied):
        await dying.aio.resume_embedded("r", retry_failed=True, policy=ExecutionPolicy(allowed_tools=()))
    result = await resume(world, payer(*script))
    assert (result.status, (result.error or {}).get("code"), done.done) == ("failed", "tool_not_allowed", {})


async def _of_a_server(world: World, script: list[Any], served: Any = None, **limits: int) -> tuple[Any, AgentResult[Any], str]:
    """A run whose first model call fails as the server says, then a `retry_failed` of it against a server that answers."""
    options = {"retry": RetryPolicy(max_retries=0)}
    given = Limits(max_retries=0, **limits)
    with ModelServer(script) as server:
        model = ChatCompletionsModel("m", served or server.base_url, **options)  # pyright: ignore[reportArgumentType]
        first = Agent("x", model=model, limits=given, execution_estimate=ESTIMATE)
        assert (await run(world, first, budget=Budget(tokens=1_000_000))).status == "failed"
        retry = (await world.process(first).aio.handle("r").envelope()).retry
        await model.close()
    with ModelServer(["done"]) as server:
        model = ChatCompletionsModel("m", server.base_url, **options)  # pyright: ignore[reportArgumentType]
        again = await resume(world, Agent("x", model=model, limits=given, execution_estimate=ESTIMATE), retry_failed=True)
        await model.close()
    rid = (await world.head("r")).rid
    return (retry or {}).get("kind"), again, run_scope_key(rid)


@pytest.mark.spec("MDL-003")
@pytest.mark.parametrize(
    ("served", "kind"),
    [
        (refuse(500), "server-error"),
        (refuse(502), "server-error"),
        (refuse(503), "server-error"),
        (refuse(504), "server-error"),
        (refuse(529), "overload"),
        (refuse(429), "rate-limit"),
        (stall(), "timeout"),
        (None, "no-connection"),
    ],
)
async def test_a_cause_that_may_pass_is_recorded_and_the_retry_completes(
    memory: World, served: Served | None, kind: str
) -> None:
    """One test per kind, against a real server, or none at all."""
    limits = {"model_timeout_ms": 200} if kind == "timeout" else {}
    where = "http://127.0.0.1:9/v1" if served is None else None
    found, again, _ = await _of_a_server(memory, ["unused"] if served is None else [served], where, **limits)
    assert (found, again.status, again.output) == (kind, "completed", "done")


@pytest.mark.spec("MDL-003")
async def test_a_call_that_an_open_breaker_kept_back_may_be_tried_again(world: World) -> None:
    """It was not sent, so it left no hold."""
    broken = agent(attempts(ModelBreakerOpenError("open"), "done"))
    await run(world, broken, budget=Budget(tokens=1_000_000))
    envelope = await world.process().aio.handle("r").envelope()
    assert ((envelope.retry or {})["kind"], envelope.unknown_tokens) == ("breaker-open", 0)
    assert (await resume(world, broken, retry_failed=True)).status == "completed"


@pytest.mark.spec("MDL-004", "MDL-011")
@pytest.mark.parametrize(
    ("served", "kind"),
    [
        (cut(reply("a long answer in several words"), 300), "broken-stream"),
        (refuse(503), "server-error"),
        (refuse(529), "overload"),
    ],
)
async def test_the_estimate_of_a_reply_that_may_have_been_billed_stays_unknown(world: World, served: Served, kind: str) -> None:
    """One estimate, beside what the retry used; nothing is held any more."""
    found, again, scope = await _of_a_server(world, [served])
    assert (found, again.status) == (kind, "completed")
    balance = await world.store.balance(scope)
    assert balance is not None
    unknown = (await world.process().aio.handle("r").envelope()).unknown_tokens
    assert balance.unknown.tokens == unknown == ESTIMATE.tokens
    assert balance.spent.tokens == again.usage.total_tokens > 0
    assert balance.held.tokens == 0


@pytest.mark.spec("MDL-011")
async def test_a_refused_call_leaves_no_hold(world: World) -> None:
    """A 429 billed nothing."""
    kind, again, scope = await _of_a_server(world, [refuse(429)])
    balance = await world.store.balance(scope)
    assert balance is not None
    assert (kind, again.status, balance.unknown.tokens, balance.held.tokens) == ("rate-limit", "completed", 0, 0)


def _raises(*_: object) -> Any:
    raise RuntimeError("a hook that raises")


@pytest.mark.spec("MDL-002", "MDL-012")
@pytest.mark.parametrize(
    ("made", "options"),
    [
        (lambda: agent("done"), {"budget": Budget(tokens=1)}),
        (lambda: agent(ModelRequestError("bad", status=400)), {}),
        (lambda: agent(ModelResponseError("nonsense")), {}),
        (lambda: agent("done", guardrails=Guardrails(on_input=(_raises,))), {}),
    ],
    ids=["policy", "request", "reply", "hook"],
)
async def test_a_lasting_cause_is_not_recorded_and_not_retried(
    world: World, made: Callable[[], Agent], options: dict[str, Any]
) -> None:
    """The retry is a TypeError, before anything is written or called."""
    assert (await run(world, made(), **options)).status == "failed"
    stored, again = await rows(world), made()
    assert "retry" not in (await world.head("r")).body
    result = await resume(world, again, retry_failed=True)
    assert (result.status, (result.error or {})["name"], (result.error or {})["code"]) == (
        "failed",
        "TypeError",
        "not_transient",
    )
    with pytest.raises(RetryRefusedError):
        await world.process(again).aio.handle("r").retry_failed()
    assert (await rows(world), requests(again)) == (stored, 0)


@pytest.mark.spec("MDL-006")
@pytest.mark.parametrize("ending", ["cancel", "deadline", "deadline in the call", "lease"])
async def test_no_cause_is_kept_of_an_end_by_cancel_deadline_or_lost_lease(world: World, ending: str) -> None:
    """What is stored names no cause: not although a cancelled run had waited for a model that was away, and not of a loser,
    which stores nothing."""
    waiting = agent(attempts(OUTAGE, "done"), limits=Limits(max_retries=3))
    app = world.process(waiting)
    match ending:
        case "cancel":
            store = CrashingStore(world.store, 3)
            with pytest.raises(ProcessDied):
                await world.process(waiting, store=store.as_store).aio.run_embedded("x", "go", run_id="r")
            assert '"retry"' in (await world.head("r")).body
            await app.aio.handle("r").cancel()
            assert (await app.aio.resume_embedded("r")).reason == "aborted"
        case "deadline":
            far = agent(ModelRateLimitedError("wait", retry_after_ms=60_000), limits=Limits(max_retries=3))
            result = await run(world, far, deadline=timedelta(milliseconds=300))
            assert (result.error or {})["code"] == "deadline_exceeded"
        case "deadline in the call":
            result = await run(world, agent(hangs()), deadline=timedelta(milliseconds=300))
            assert (result.error or {})["code"] == "deadline_exceeded"
        case _:
            leases, key = memory_leases(), run_lease_key("default", "r")

            async def robbed(request: ModelRequest) -> Entry:
                await leases.release(Lease(key, (await leases.peek(key)).owner, 1, "", 1_000, "none"))
                assert isinstance(await leases.acquire(key, "thief", 60_000), Lease)
                return await asyncio.Event().wait()  # pyright: ignore[reportReturnType]

            loser = Agent("x", model=MockModel.function(robbed), limits=Limits(max_retries=3))
            app = world.process(loser, ttl_ms=1_000)
            app.__dict__["leases"] = leases
            lost = await app.aio.run_embedded("x", "go", run_id="r")
            assert (lost.status, (lost.error or {})["code"]) == ("failed", "lease_lost")
            assert (await world.head("r")).status == "running"
    assert '"retry"' not in (await world.head("r")).body
    if ending.startswith("deadline"):
        with pytest.raises(TypeError):
            await app.aio.handle("r").retry_failed()


@pytest.mark.spec("MDL-007", "MDL-010")
async def test_a_retry_goes_on_in_the_phase_that_failed(world: World) -> None:
    """In the loop after a turn that is answered, and in the final answer; the failed call counts among turns and answers."""
    done = Effects()

    @tool
    async def act() -> str:
        done("act")
        return "did it"

    def made(binding_id: str = "1") -> Agent:
        script = calls(call("act")), attempts(OUTAGE, "enough"), attempts(OUTAGE, '{"n": 3}')
        return agent(*script, tools=[act], output_type=Answer, binding_id=binding_id)

    assert (await run(world, made())).status == "failed"
    assert (await world.head("r")).phase == "loop"
    stored = await rows(world)
    other = await resume(world, made(binding_id="2"), retry_failed=True)
    assert ((other.error or {})["code"], await rows(world)) == ("binding_changed", stored)
    assert (await resume(world, made(), retry_failed=True)).status == "failed"
    head = await world.head("r")
    assert (head.phase, head.status) == ("finalizing", "failed")
    last = await resume(world, made(), retry_failed=True)
    assert (last.status, last.output, last.steps) == ("completed", Answer(3), 5), "turn, failure, turn, failure, answer"
    checkpoint = (await world.process().aio.handle("r").envelope()).checkpoint
    assert (checkpoint.output_attempts, done.done) == (2, {"act": 1})


@pytest.mark.spec("MDL-010")
async def test_the_failed_call_is_a_step(world: World) -> None:
    """Two, not one."""
    flaky = agent(attempts(OUTAGE, "done"))
    await run(world, flaky)
    assert (await resume(world, flaky, retry_failed=True)).steps == 2


@pytest.mark.spec("MDL-008", "MDL-009")
async def test_answers_and_effects_of_the_failed_leg_stand(world: World) -> None:
    """A verdict was applied, a client's result taken, a tool run; the retry needs none of it again."""
    done = Effects()

    @tool(needs_approval=True)
    async def pay() -> str:
        done("pay")
        return "paid"

    def made() -> Agent:
        ask = client_tool("ask", "Asks.", {"type": "object", "properties": {}})
        return agent(calls(call("pay"), call("ask")), attempts(OUTAGE, "done"), tools=[pay, ask])

    waiting = await run(world, made())
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    results = {item.tool_call_id: "yes" for item in waiting.pending_client_calls}
    assert (await resume(world, made(), approvals=verdicts, client_tool_results=results)).status == "failed"
    assert (await resume(world, made(), retry_failed=True)).status == "completed"
    assert done.done == {"pay": 1}


async def _failed_with_an_unknown_effect(world: World) -> None:
    """As an older build may have left it: failed for a passing cause, with a call whose receipt says `executing`."""
    await run(world, agent(attempts(OUTAGE, "done"), tools=[act_of(Effects())]))
    head = await world.head("r")
    record = message_to_record(Message("assistant", (ToolUsePart("c", "act", {}),)))
    change = Change(
        head.rid,
        head.revision,
        world.process().ids.commit_id(),
        "failed",
        head.phase,
        head.version,
        head.epoch,
        head.last_seq + 1,
        head.seen_seq,
        head.body,
        None,
        mid_step=True,
        model_step=1,
        messages=(MessageRow(head.last_seq + 1, encode(record)),),
        receipts=(ReceiptRow(1, "c", 0, "executing", encode({"tool": "act", "idempotent": False})),),
        journal_seq=head.journal_seq,
    )
    await world.store.commit(change)


def act_of(done: Effects) -> Any:
    @tool
    async def act() -> str:
        done("act")
        return "did it"

    return act


@pytest.mark.spec("MDL-008")
async def test_a_retry_does_not_guess_at_an_effect(world: World) -> None:
    """It stops for reconciliation with nothing written; with a word about the call it goes on."""
    await _failed_with_an_unknown_effect(world)
    stored, done = await rows(world), Effects()
    again = agent(attempts(OUTAGE, "done"), "done", tools=[act_of(done)])
    result = await resume(world, again, retry_failed=True)
    assert (result.status, result.reason) == ("stopped", "tool-reconciliation-required")
    assert [effect.tool_call_id for effect in result.unknown_effects] == ["c"]
    with pytest.raises(ConfigurationError):
        await world.process(again).aio.handle("r").retry_failed()
    assert (await rows(world), requests(again), done.done) == (stored, 0, {})
    told = await resume(world, again, retry_failed=True, reconciled_tool_results={"c": "it had"})
    assert (told.status, done.done) == ("completed", {})


@pytest.mark.spec("MDL-012")
@pytest.mark.parametrize("state", ["suspended", "stopped", "completed"])
async def test_in_every_other_state_a_retry_is_a_plain_resume(world: World, state: str) -> None:
    """The same result, the same rows; a handle says False."""

    @tool(needs_approval=True)
    async def gated() -> str:
        return "done"

    def made() -> Agent:
        if state == "stopped":
            return agent(calls(call("gated")), limits=Limits(max_steps=1), tools=[tool(_look)])
        return agent(calls(call("gated")) if state == "suspended" else "done", tools=[gated])

    assert (await run(world, made())).status == state
    stored, plain = await rows(world), await resume(world, made())
    assert await resume(world, made(), retry_failed=True) == plain
    assert await world.process(made()).aio.handle("r").retry_failed() is False
    assert await rows(world) == stored


async def _look() -> str:
    return "seen"


async def test_of_many_who_take_a_run_up_one_does(world: World) -> None:
    """At every handle, and in a resume beside them; the revision moves once."""
    await run(world, agent(attempts(OUTAGE, "done")))
    before = (await world.head("r")).revision
    handles = [world.process().aio.handle("r") for _ in range(8)]
    assert sorted(await asyncio.gather(*(handle.retry_failed() for handle in handles))) == [False] * 7 + [True]
    head = await world.head("r")
    assert (head.revision, head.status, head.has_work) == (before + 1, "running", True)
    assert (await resume(world, agent(attempts(OUTAGE, "done")))).status == "completed"


async def test_an_unknown_run_cannot_be_taken_up(memory: World) -> None:
    """The error names it."""
    with pytest.raises(RunNotFoundError, match="'nosuch'"):
        await memory.process().aio.handle("nosuch").retry_failed()


async def test_a_death_at_any_save_of_a_retry_costs_nothing(world: World) -> None:
    """Whether the commit was applied or not: the next retry or resume completes."""

    for at, applied in itertools.product((1, 2), (False, True)):
        flaky = agent(attempts(OUTAGE, "done"))
        run_id = f"r{at}{applied}"
        await world.process(flaky).aio.run_embedded("x", "go", run_id=run_id)
        with pytest.raises(ProcessDied):
            await world.dying(flaky, at=at, applied=applied).aio.resume_embedded(run_id, retry_failed=True)
        await world.later(60_000)
        assert (await world.process(flaky).aio.resume_embedded(run_id, retry_failed=True)).status == "completed"


@pytest.mark.spec("MDL-013")
async def test_a_run_takes_itself_up_so_many_times() -> None:
    """A lasting outage: once and as often as `max_reruns` says, after waits whose bound doubles, each by a turn and hold of its
    own; until then it is not failed, and afterwards it can be taken up by hand."""
    seen: list[int] = []

    def away(request: Any) -> Entry:
        seen.append(simulation.clock.passed_ms)
        return OUTAGE if len(seen) <= 4 else "done"

    model = MockModel.function(away)
    definition = Agent("x", model=model, limits=Limits(max_retries=0, max_reruns=3)).definition
    simulation = Simulation({"x": definition})
    await simulation.enqueue("x", "r", budget=Budget(tokens=1_000_000))
    ended = await simulation.run("r")
    assert (len(seen), ended.envelope.status, ended.envelope.checkpoint.step) == (4, "failed", 4)
    waits = [later - earlier for earlier, later in itertools.pairwise(seen)]
    bounds = [EngineSettings().rerun_base_ms * 2**taken_up for taken_up in range(3)]
    assert max(waits) > 0
    assert all(0 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True)), waits
    assert (ended.envelope.retry or {})["kind"] == "server-error"
    assert ended.envelope.unknown_tokens > 0
    estimates = await simulation.store.balance(ended.envelope.scopes[0])
    assert estimates is not None
    assert (estimates.unknown.tokens, estimates.held.tokens) == (ended.envelope.unknown_tokens, 0)
    events = await simulation.store.journal("simulation", "r", 0, 100)
    assert sum('"run.retried"' in event.body for event in events) == 3
    assert sum('"run.failed"' in event.body for event in events) == 1
