"""What an application gives tools and hooks of a run: seen by whom it is meant for, and nowhere else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    ConfigurationError,
    MockModel,
    RunContext,
    RunFacts,
    ToolContext,
    resume_agent,
    run_agent,
    tool,
)
from deuz_workers.core.codec import encode
from deuz_workers.core.messages import message_to_record
from deuz_workers.providers.script import call, calls
from tests.app.world import World

SECRET = "hunter2"


@dataclass
class Account:
    owner: str
    limit: int


class Opaque:
    """Cannot be copied, compared or encoded."""

    def __copy__(self) -> Opaque:
        raise AssertionError("copied")

    def __deepcopy__(self, memo: object) -> Opaque:
        raise AssertionError("copied")

    def __reduce__(self) -> str:
        raise AssertionError("pickled")

    def __repr__(self) -> str:
        raise AssertionError("shown")


@pytest.mark.spec("TCX-001", "TCX-003")
async def test_a_scoped_tool_gets_its_own_checked_context_and_nothing_else(world: World) -> None:
    """What the validator returned reaches execute and approval; values of other tools, dependencies and the run's context do
    not. The attributes of a context are exactly these."""
    seen: dict[str, ToolContext] = {}

    def widen(account: Account) -> Account:
        return Account(account.owner, account.limit * 2)

    def large(arguments: Mapping[str, Any], context: ToolContext) -> bool:
        seen["predicate"] = context
        return arguments["amount"] > context.context.limit

    @tool(context_schema=Account, validate_context=widen, needs_approval=large)
    async def pay(amount: int, ctx: ToolContext) -> str:
        seen["pay"] = ctx
        return f"{ctx.context.owner} paid {amount}"

    @tool
    async def look(ctx: ToolContext) -> str:
        seen["look"] = ctx
        return str(ctx.context)

    model = MockModel([calls(call("pay", amount=7).with_id("p"), call("look").with_id("l")), "done"])
    made = Agent("x", model=model, tools=[pay, look], deps="the shop")
    given = {"pay": {"owner": "ann", "limit": 5}, "look": "a window"}
    result = await run_agent(made, "go", store=world.store, run_id="r", tools_context=given, runtime_context="all of it")
    assert result.status == "completed"
    assert {part.call_id: part.text for message in result.messages for part in message.tool_results} == {
        "p": "ann paid 7",
        "l": "a window",
    }
    scoped, free = seen["pay"], seen["look"]
    assert (scoped.context, scoped.deps, scoped.runtime_context) == (Account("ann", 10), None, None)
    assert (free.context, free.deps, free.runtime_context) == ("a window", "the shop", "all of it")
    assert seen["predicate"].context == Account("ann", 10)
    assert {field.name for field in dataclasses.fields(scoped)} == {
        "scope",
        "run_id",
        "agent",
        "agent_path",
        "model_step",
        "tool_call_id",
        "tool_name",
        "attempt",
        "deadline_in_ms",
        "signal",
        "messages",
        "execution",
        "context",
        "deps",
        "runtime_context",
    }
    assert (scoped.tool_call_id, scoped.model_step, scoped.agent_path) == ("p", 1, ("x",))
    assert [message.role for message in scoped.messages] == ["user", "assistant"]
    assert scoped.execution.limits == made.limits
    assert not scoped.signal.is_set


@pytest.mark.spec("TCX-001")
@pytest.mark.parametrize("given", [{"pay": {"owner": SECRET, "limit": SECRET}}, {}, {"look": {"owner": "a", "limit": 1}}])
async def test_a_context_that_misses_its_schema_fails_the_call_before_it_runs(world: World, given: dict[str, object]) -> None:
    """Wrong, missing, or another tool's: no execution, no predicate; the model is told where it misses, not the value."""
    ran: list[str] = []

    @tool(context_schema=Account, needs_approval=lambda arguments: bool(ran.append("asked")))
    async def pay() -> str:
        ran.append("paid")
        return "paid"

    model = MockModel([calls(call("pay")), "done"])
    made = Agent("x", model=model, tools=[pay])
    result = await run_agent(made, "go", store=world.store, run_id="r", tools_context=given)
    [part] = [part for message in result.messages for part in message.tool_results]
    assert (result.status, ran, part.outcome) == ("completed", [], "invalid-context")
    assert part.text.startswith("The context of pay is not valid: ")
    assert SECRET not in part.text


async def test_what_a_context_validator_raises_is_not_repeated(memory: World) -> None:
    """Its message may hold the value: the model and the record get the name of the error alone."""

    def refuse(value: object) -> object:
        raise ValueError(f"not {value}")

    @tool(validate_context=refuse)
    async def pay() -> str:
        return "paid"

    made = Agent("x", model=MockModel([calls(call("pay")), "done"]), tools=[pay])
    result = await run_agent(made, "go", store=memory.store, tools_context={"pay": SECRET})
    [part] = [part for message in result.messages for part in message.tool_results]
    assert part.outcome == "invalid-context"
    assert "ValueError" in part.text
    assert SECRET not in part.text


@pytest.mark.spec("TCX-002", "TCX-004")
async def test_context_values_are_neither_sent_nor_stored_nor_copied(world: World) -> None:
    """A planted secret is in no request and no stored row; an object that cannot be copied or encoded arrives as it is."""
    opaque = Opaque()
    seen: list[bool] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        seen.append(ctx.runtime_context is opaque and ctx.context is opaque)
        return "seen"

    @tool(context_schema=dict[str, str])
    async def use(ctx: ToolContext) -> str:
        return f"{len(ctx.context['key'])} characters"

    model = MockModel([calls(call("look"), call("use")), "done"])
    made = Agent("x", model=model, tools=[look, use])
    given = {"look": opaque, "use": {"key": SECRET}}
    result = await run_agent(made, "go", store=world.store, run_id="r", tools_context=given, runtime_context=opaque)
    assert (result.status, seen) == ("completed", [True])
    sent = [encode([message_to_record(message) for message in request.messages]) for request in model.requests]
    loaded = await world.loaded("r")
    rows = [loaded.head.body, *(row.body for row in loaded.messages), *(row.body for row in loaded.receipts)]
    rows += [row.body for row in await world.store.journal("default", "r", 0, 100)]
    assert not [text for text in sent + rows if SECRET in text]


async def test_the_agents_function_makes_the_context_where_nothing_was_given(world: World) -> None:
    """It gets scope, run id, agent and tags, and is asked anew by the process that resumes."""
    asked: list[RunFacts] = []

    async def make(facts: RunFacts) -> RunContext:
        asked.append(facts)
        return RunContext({"pay": facts.tags["who"]})

    @tool(context_schema=str, needs_approval=True)
    async def pay(ctx: ToolContext) -> str:
        return f"{ctx.context} paid"

    def made() -> Agent:
        return Agent("x", model=MockModel([calls(call("pay")), "done"]), tools=[pay], make_context=make)

    waiting = await run_agent(made(), "go", store=world.store, run_id="r", tags={"who": "ann"})
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    result = await resume_agent(made(), "r", store=world.store, approvals=verdicts)
    assert [part.text for message in result.messages for part in message.tool_results] == ["ann paid"]
    assert asked == [RunFacts("default", "r", "x", {"who": "ann"})] * 2


@pytest.mark.parametrize("fault", ["raises", "returns"])
async def test_a_context_that_cannot_be_made_ends_the_step_and_not_the_run(world: World, fault: str) -> None:
    """A service that is down is no reason to fail a run of weeks: it stays where it was, and goes on when there is one."""
    works = [False]

    def make(facts: RunFacts) -> Any:
        if not works[0]:
            if fault == "raises":
                raise KeyError(SECRET)
            return {"pay": 1}
        return RunContext()

    @tool
    async def pay() -> str:
        return "paid"

    made = Agent("x", model=MockModel([calls(call("pay")), "done"]), tools=[pay], make_context=make)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, (result.error or {})["code"]) == ("failed", "run_context")
    assert SECRET not in str(result.error)
    assert (await world.head("r")).status == "running"
    works[0] = True
    await world.later(60_000)
    assert (await resume_agent(made, "r", store=world.store)).status == "completed"


def test_what_cannot_declare_a_context_is_refused() -> None:
    """Where the tool or agent is made."""

    async def check(value: object) -> None: ...

    with pytest.raises(ConfigurationError, match="validate_context must be a plain function"):
        tool(name="look", validate_context=check)(lambda: None)
    with pytest.raises(ConfigurationError, match="make_context is a function, not a dict"):
        Agent("x", model=MockModel([]), make_context={})  # pyright: ignore[reportArgumentType]
