"""Runs that a tool or a verifier starts in the execution context of its own run: charged to it, held to it, ended with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    AgentResult,
    Amount,
    Budget,
    ConfigurationError,
    ExecutionPolicy,
    MockModel,
    Verified,
    VerifyContext,
    resume_agent,
    run_agent,
    tool,
)
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.names import run_scope_key
from deuz_workers.errors import LeaseLost
from deuz_workers.ports.execution import Execution, Link
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.signal import Signal
from deuz_workers.ports.tool import ToolContext
from deuz_workers.providers.script import Entry, call, calls
from tests.app.delegating import boss as delegating_boss
from tests.app.delegating import scripted
from tests.app.world import Effects, World

Starts = Callable[[Execution], Awaitable[AgentResult[Any]]]
CALL = 15
"""Tokens of a call of a scripted model."""


class Boss:
    """An agent whose tool starts runs as it is told, and keeps what came of each."""

    def __init__(self, *starts: Starts, **given: Any) -> None:
        self.results: list[AgentResult[Any]] = []
        self.seen: list[Execution] = []

        @tool
        async def ask(context: ToolContext) -> str:
            self.seen.append(context.execution)
            for start in starts:
                self.results.append(await start(context.execution))
            return "asked"

        model, estimate = MockModel([calls(call("ask")), "done"]), Budget.of(tokens=100)
        self.agent = Agent("boss", model=model, tools=[ask], execution_estimate=estimate, **given)


def answering(*script: Entry, **given: Any) -> Agent:
    return Agent(
        "inner", model=MockModel(script or ["found"], model="inner"), execution_estimate=Budget.of(tokens=100), **given
    )


def nested(agent: Agent, run_id: str = "n", part: str | None = "a", **given: Any) -> Starts:
    async def start(execution: Execution) -> AgentResult[Any]:
        context = execution if part is None else execution.child(part, policy=given.pop("held_to", None))
        return await run_agent(agent, "look", execution=context, run_id=run_id, **given)

    return start


async def run(world: World, boss: Boss, **options: Any) -> AgentResult[Any]:
    return await world.process(boss.agent).aio.run_embedded("boss", "go", run_id="job", **options)


def code_of(result: AgentResult[Any]) -> object:
    return (result.error or {}).get("code")


@pytest.mark.spec("CHD-010", "LED-011")
@pytest.mark.parametrize("budget", [Budget.of(tokens=100_000), None])
async def test_a_nested_run_is_charged_to_the_run_that_started_it(world: World, budget: Budget | None) -> None:
    """Its calls are part of what the run has spent, with a budget of that one or without, under a path below it."""
    boss = Boss(nested(answering()), nested(answering(), "m", None))
    result = await run(world, boss, budget=budget)
    assert [one.output for one in boss.results] == ["found", "found"]
    assert result.accounting.spent.tokens == 4 * CALL
    key = run_scope_key((await world.head("job")).rid)
    part, whole = await world.store.balance(f"{key}/a"), await world.store.balance(key)
    assert part is not None
    assert whole is not None
    assert part.spent.tokens == CALL
    assert whole.spent.tokens == (4 * CALL if budget else 2 * CALL)
    inside = decode_envelope(await world.head("n")).nested
    assert inside is not None
    assert (inside.scope_id, inside.run_id, inside.root, inside.depth) == ("job/a", "job", "job", 1)
    [seen] = boss.seen
    assert (seen.scope_id, seen.child("a").child("b").scope_id) == ("job", "job/a/b")


@pytest.mark.spec("CHD-010")
async def test_a_nested_run_spends_no_more_than_there_is(world: World) -> None:
    """The budget of the run that started it refuses its call before it is sent."""
    inner = answering()
    poor = Boss(nested(inner))
    result = await run(world, poor, budget=Budget.of(tokens=110))
    assert [code_of(one) for one in (*poor.results, result)] == ["budget_exceeded", "budget_exceeded"]
    assert isinstance(inner.model, MockModel)
    assert inner.model.requests == ()


@pytest.mark.spec("CHD-010")
async def test_runs_on_one_child_share_what_it_may_spend(world: World) -> None:
    """The second finds what the first has left, although the run above has more."""
    inner = answering("one", "two")
    boss = Boss(_sharing(inner, "one"), _sharing(inner, "two"))
    assert (await run(world, boss, budget=Budget.of(tokens=100_000))).status == "completed"
    assert [(one.status, code_of(one)) for one in boss.results] == [("completed", None), ("failed", "budget_exceeded")]
    assert isinstance(inner.model, MockModel)
    assert len(inner.model.requests) == 1


def _sharing(agent: Agent, run_id: str) -> Starts:
    async def start(execution: Execution) -> AgentResult[Any]:
        return await run_agent(agent, "look", run_id=run_id, execution=execution.child("a", budget=Budget.of(tokens=110)))

    return start


@pytest.mark.spec("CHD-010")
async def test_a_nested_run_may_do_no_more(world: World) -> None:
    """Tools and models that the run above may not use it may not use either, nor those that its child context leaves out."""
    done = Effects()

    @tool
    async def look() -> str:
        done("look")
        return "seen"

    policy = ExecutionPolicy(allowed_tools={"ask"}, allowed_models={"mock:scripted", "mock:inner"})
    uses_tool = answering(calls(call("look")), "found", tools=[look])
    other_model = Agent("inner", model=MockModel(["never"], model="other"))
    boss = Boss(
        nested(uses_tool, "1"), nested(other_model, "2"), nested(answering(), "3", held_to=ExecutionPolicy(allowed_models=()))
    )
    assert (await run(world, boss, policy=policy)).status == "completed"
    assert [code_of(one) for one in boss.results] == ["tool_not_allowed", "model_not_allowed", "model_not_allowed"]
    assert done.done == {}


@pytest.mark.spec("CHD-010")
async def test_a_nested_run_has_the_deadline_of_the_run_above(world: World) -> None:
    """Or its own where that is earlier; a later one changes nothing."""
    own = [None, timedelta(seconds=5), timedelta(days=9)]
    boss = Boss(*(nested(answering(), str(place), deadline=given) for place, given in enumerate(own)))
    assert (await run(world, boss, deadline=timedelta(minutes=1))).status == "completed"
    left = [(await world.head(str(place))).deadline_in_ms for place in range(3)]
    assert all(0 < (ms or 0) <= most for ms, most in zip(left, (60_000, 5_000, 60_000), strict=True))


def waiting(begun: asyncio.Event) -> Agent:
    """Its model never answers."""

    async def wait(_: ModelRequest) -> Entry:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    return Agent("inner", model=MockModel.function(wait, model="inner"))


@pytest.mark.spec("CHD-010")
async def test_a_nested_run_ends_with_the_cancel_of_the_run_above(world: World) -> None:
    """Its model call is ended, and both runs have ended as cancelled; nothing is left reserved."""
    begun = asyncio.Event()
    boss = Boss(nested(waiting(begun)))
    app = world.process(boss.agent)
    running = asyncio.ensure_future(app.aio.run_embedded("boss", "go", run_id="job", budget=Budget.of(tokens=100_000)))
    await begun.wait()
    assert await app.aio.handle("job").cancel("enough")
    result = await running
    assert (result.status, result.reason) == ("stopped", "aborted")
    [inner] = boss.results
    assert (inner.status, inner.reason) == ("stopped", "aborted")
    assert (result.accounting.reserved.tokens, result.accounting.unknown.tokens > 0) == (0, True)


@pytest.mark.spec("CHD-010")
async def test_a_nested_run_ends_with_the_time_of_the_call_that_started_it(world: World) -> None:
    """A tool that is cut off leaves no run behind that goes on."""
    begun = asyncio.Event()
    inner = waiting(begun)

    @tool(timeout_ms=200)
    async def ask(context: ToolContext) -> str:
        return (await run_agent(inner, "look", run_id="n", execution=context.execution.child("a"))).text or ""

    boss = Agent("boss", model=MockModel([calls(call("ask")), "done"]), tools=[ask])
    assert (await world.process(boss).aio.run_embedded("boss", "go", run_id="job")).status == "completed"
    head = await world.head("n")
    assert (head.status, decode_envelope(head).reason) == ("stopped", "aborted")


async def test_a_nested_run_whose_run_above_goes_on_elsewhere_is_left_to_be_resumed(memory: World) -> None:
    """The lease of that one is lost: this process drives neither, and ends neither."""
    begun, signal = asyncio.Event(), Signal()
    inner = waiting(begun)
    app = memory.process(inner)
    execution = Execution(
        scope="default", run_id="job", root="job", scope_id="job", ledger_key="run:0", link=Link(app, signal, lambda: None)
    )
    running = asyncio.ensure_future(run_agent(inner, "look", run_id="n", execution=execution))
    await begun.wait()
    signal.set(LeaseLost("gone"))
    with pytest.raises(LeaseLost):
        await running
    head = await memory.head("n")
    assert (head.status, head.cancel_seq) == ("running", 0)


@pytest.mark.spec("CHD-008")
@pytest.mark.parametrize(("depth", "nests", "delegates"), [(0, False, False), (1, True, False), (2, True, True)])
async def test_nested_runs_count_as_deeper(world: World, depth: int, nests: bool, delegates: bool) -> None:
    """Whether they were given a child context or share that of the run itself; what they delegate is deeper still. Beyond the
    policy nothing begins."""
    leaf = scripted("leaf", "deep")
    boss = Boss(nested(answering(), "1"), nested(answering(), "2", None), nested(delegating_boss(leaf), "3", None))
    await run(world, boss, policy=ExecutionPolicy(max_depth=depth))
    assert [code_of(one) for one in boss.results[:2]] == [None if nests else "depth_exceeded"] * 2
    assert [await world.store.head("default", name) is not None for name in "123"] == [nests] * 3
    assert isinstance(leaf.model, MockModel)
    assert len(leaf.model.requests) == delegates


@pytest.mark.spec("LED-007")
async def test_a_nested_run_is_resumed_in_its_context_and_not_without(world: World) -> None:
    """It waits for a person. Without its context, or in another part, a resume fails before any call and writes nothing; in the
    same part of the same run it goes on."""
    done = Effects()

    @tool(needs_approval=True)
    async def pay() -> str:
        done("pay")
        return "paid"

    def paying(*script: Entry) -> Agent:
        return answering(*script, tools=[pay])

    async def without(execution: Execution) -> AgentResult[Any]:
        before, verdicts = await world.head("n"), approved(boss)
        alone = await world.process(paying()).aio.resume_embedded("n", approvals=verdicts)
        elsewhere = await resume_agent(paying(), "n", approvals=verdicts, execution=execution.child("b"))
        assert [code_of(one) for one in (alone, elsewhere)] == ["execution_context"] * 2
        after = await world.head("n")
        assert (after.revision, after.wake_seq, after.open_items) == (before.revision, before.wake_seq, 1)
        return alone

    async def within(execution: Execution) -> AgentResult[Any]:
        return await resume_agent(
            paying(calls(call("pay")), "found"), "n", approvals=approved(boss), execution=execution.child("a")
        )

    boss = Boss(nested(paying(calls(call("pay")))), without, within)
    assert (await run(world, boss, budget=Budget.of(tokens=100_000))).status == "completed"
    assert [one.status for one in boss.results] == ["suspended", "failed", "completed"]
    assert done.done == {"pay": 1}


def approved(boss: Boss) -> dict[str, bool]:
    return {item.approval_id: True for item in boss.results[0].pending_approvals}


@pytest.mark.spec("VER-013")
@pytest.mark.parametrize("passes", [True, False])
async def test_what_a_verifier_calls_counts_where_it_passes_its_context_on(world: World, passes: bool) -> None:
    """With it the run's accounting is raised, without it nothing is charged."""

    async def verify(output: Any, context: VerifyContext) -> Verified:
        judge = answering("fine")
        options: dict[str, Any] = {"execution": context.execution.child("judge")} if passes else {}
        assert (await run_agent(judge, output, **options)).output == "fine"
        return Verified()

    made = Agent("x", model=MockModel(["done"]), verify=verify)
    result = await world.process(made).aio.run_embedded("x", "go", budget=Budget.of(tokens=100_000))
    assert (result.status, result.accounting.spent) == (
        "completed",
        Amount(CALL * (1 + passes), result.accounting.spent.cost_micros),
    )


@pytest.mark.spec("VER-013")
async def test_what_a_verifier_calls_ends_with_the_run(world: World) -> None:
    """Cancelling the run meanwhile ends the nested call and its run."""
    begun = asyncio.Event()
    judge = waiting(begun)

    async def verify(output: Any, context: VerifyContext) -> Verified:
        await run_agent(judge, output, run_id="n", execution=context.execution.child("judge"))
        return Verified()

    app = world.process(Agent("x", model=MockModel(["done"]), verify=verify))
    running = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="job"))
    await begun.wait()
    await app.aio.handle("job").cancel()
    result = await running
    assert (result.status, result.reason) == ("stopped", "aborted")
    head = await world.head("n")
    assert (head.status, decode_envelope(head).reason) == ("stopped", "aborted")


async def test_what_cannot_be_meant_is_refused(memory: World) -> None:
    """A context of no run, a place of its own, another scope, a name that is no part of a path; nothing is written."""

    async def refused(execution: Execution) -> AgentResult[Any]:
        others: list[dict[str, Any]] = [{"store": "sqlite://:memory:"}, {"scope": "other"}, {"shared_budgets": ["org"]}]
        for given in others:
            with pytest.raises(ConfigurationError):
                await run_agent(answering(), "look", execution=execution, **given)
        for name in ("", "a/b", "a#1", "x" * 65):
            with pytest.raises(ConfigurationError):
                execution.child(name)
        with pytest.raises(ConfigurationError):
            await run_agent(answering(), "look", execution=Execution())
        return await run_agent(answering(), "look", execution=execution)

    boss = Boss(refused)
    result = await memory.process(boss.agent).aio.run_embedded("boss", "go", run_id="job", shared_budgets=["org"])
    assert (result.status, len((await memory.process().aio.list_runs()).heads)) == ("completed", 2)
