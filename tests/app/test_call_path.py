"""The one path of every tool call, where no other test looks at it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from deuz_workers import Agent, MockModel, client_tool, resume_agent, run_agent, tool
from deuz_workers.errors import ModelRequestError
from deuz_workers.leases import memory_leases
from deuz_workers.providers.script import ScriptedReply, call, calls, raw_call, reply
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.world import World


@pytest.mark.spec("PTH-016")
@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls"])
async def test_calls_are_executed_whatever_the_finish_reason_says(world: World, finish_reason: Any) -> None:
    """`stop` with an open call does not end the loop."""
    ran: list[str] = []

    @tool
    async def work() -> None:
        ran.append("worked")

    model = MockModel([reply("", call("work"), finish_reason=finish_reason), "done"])
    result = await run_agent(Agent("x", model=model, tools=[work]), "go", store=world.store)
    assert (result.status, result.output, ran) == ("completed", "done", ["worked"])


@pytest.mark.spec("PTH-013")
async def test_a_call_with_an_outcome_is_answered_from_it(world: World) -> None:
    """Neither its predicate nor its function is asked again by the process that goes on."""
    asked: list[str] = []
    dies = [True]

    def predicate(arguments: Mapping[str, Any]) -> bool:
        asked.append("predicate")
        return False

    def made() -> Agent:
        @tool(needs_approval=predicate)
        async def work() -> str:
            asked.append("work")
            return "worked"

        @tool(replay="idempotent")
        async def die() -> str:
            if not dies:
                return "alive"
            while (await world.receipts("r"))[1, "w"].stage != "completed":  # noqa: ASYNC110 - another process' store
                await asyncio.sleep(0.002)
            raise ProcessDied

        model = MockModel([calls(call("work").with_id("w"), call("die").with_id("d")), "done"])
        return Agent("x", model=model, tools=[work, die])

    with pytest.raises(ProcessDied):
        await run_agent(made(), "go", store=world.store, run_id="r")
    assert asked == ["predicate", "work"]
    dies.clear()
    result = await resume_agent(made(), "r", store=world.store, leases=memory_leases())
    assert (result.status, asked) == ("completed", ["predicate", "work"])


@pytest.mark.spec("PTH-018")
@pytest.mark.parametrize("asked", [call("work", n="seven"), call("work"), call("work", n=7, m=8), raw_call("work", "{n: 7")])
async def test_a_call_with_invalid_arguments_does_not_run(world: World, asked: Any) -> None:
    """Its predicate is not asked either; the model reads an error, and the run goes on."""
    ran: list[str] = []

    @tool(needs_approval=lambda arguments: ran.append("asked"))
    async def work(n: int) -> None:
        ran.append("worked")

    model = MockModel([calls(asked), "done"])
    result = await run_agent(Agent("x", model=model, tools=[work]), "go", store=world.store, run_id="r")
    [part] = [part for message in model.requests[-1].messages for part in message.tool_results]
    assert (result.status, ran) == ("completed", [])
    assert (part.is_error, part.outcome) == (True, "invalid-arguments")
    assert [receipt.stage for receipt in (await world.receipts("r")).values()] == ["failed"]


@pytest.mark.spec("PTH-006")
@pytest.mark.parametrize("what", ["deadline", "cancel"])
async def test_nothing_begins_when_the_run_ended_while_its_predicate_was_asked(world: World, what: str) -> None:
    """The deadline passes, or the run is cancelled, inside the predicate: the tool does not run and has no receipt."""
    ran: list[str] = []
    app_of: list[Any] = []
    loop = asyncio.get_running_loop()

    async def meanwhile() -> None:
        if what == "cancel":
            await app_of[0].aio.handle("r").cancel()

    def predicate(arguments: Mapping[str, Any]) -> Any:
        asyncio.run_coroutine_threadsafe(meanwhile(), loop).result(10)
        if what == "deadline":
            time.sleep(0.6)
        return False

    @tool(needs_approval=predicate)
    async def work() -> None:
        ran.append("worked")

    app = world.process(Agent("x", model=MockModel([calls(call("work")), "never"]), tools=[work]))
    app_of.append(app)
    deadline = timedelta(milliseconds=500) if what == "deadline" else None
    result = await app.aio.run_embedded("x", "go", run_id="r", deadline=deadline)
    if what == "deadline":
        assert (result.status, (result.error or {})["code"]) == ("failed", "deadline_exceeded")
    else:
        assert (result.status, result.reason) == ("stopped", "aborted")
    assert (ran, await world.receipts("r")) == ([], {})


@pytest.mark.spec("RES-002", "RES-003")
@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("success", "completed"),
        ("approval", "suspended"),
        ("refusal", "stopped"),
        ("model", "failed"),
        ("store", "failed"),
    ],
)
async def test_every_way_to_end_is_one_of_four_and_only_one_has_an_output(world: World, how: str, status: str) -> None:
    """Success, a wait, a refusal, a failing model and a failing store."""

    @tool(needs_approval=True)
    async def pay() -> None: ...

    scripts: dict[str, list[str | ScriptedReply | Exception]] = {
        "approval": [calls(call("pay"))],
        "refusal": [reply("no", finish_reason="content_filter")],
        "model": [ModelRequestError("bad")],
    }
    made = Agent("x", model=MockModel(scripts.get(how, ["done"])), tools=[pay])
    store = CrashingStore(world.store, at=2, error=RuntimeError("disk full")).as_store if how == "store" else world.store
    result = await run_agent(made, "go", store=store)
    assert result.status == status
    if status == "completed":
        assert result.output == "done"
    else:
        with pytest.raises(Exception, match="has no output"):
            _ = result.output


@pytest.mark.spec("RES-004")
async def test_a_suspended_result_lists_what_it_waits_for(world: World) -> None:
    """A gated call and a client's call of one turn stand in the respective lists of one result."""

    @tool(needs_approval=True)
    async def pay() -> None: ...

    ask = client_tool("ask", "Ask the user.", {"type": "object", "properties": {}})
    model = MockModel([calls(call("pay").with_id("p"), call("ask").with_id("a")), "done"])
    result = await run_agent(Agent("x", model=model, tools=[pay, ask]), "go", store=world.store)
    assert result.status == "suspended"
    assert [waiting.tool_call_id for waiting in result.pending_approvals] == ["p"]
    assert [waiting.tool_call_id for waiting in result.pending_client_calls] == ["a"]
