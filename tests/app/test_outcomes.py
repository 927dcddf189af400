"""How a call ended can be told from its result, its receipt and the journal, whatever way it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import pytest

from deuz_workers import (
    Agent,
    Block,
    Budget,
    Guardrails,
    Limits,
    MockModel,
    ModelRequestError,
    ToolCallRequest,
    ToolContext,
    ToolError,
    ToolOutput,
    tool,
)
from deuz_workers.core.messages import Message, ToolResultPart, message_to_record
from deuz_workers.core.outcomes import CallOutcome
from deuz_workers.core.receipts import receipt_record
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, ScriptedReply, call, calls, raw_call, reply
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import World


@tool
async def work() -> str:
    return "worked"


@tool
async def fail() -> str:
    raise ToolError("no luck")


@tool
async def count(n: int) -> int:
    return n


@tool(timeout_ms=1)
async def sleep() -> str:
    await asyncio.Event().wait()
    return "never"


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


@tool(output_schema=int)
async def misfit() -> str:
    return "no number"


@tool(to_model_output=lambda value: value.missing)
async def unreadable() -> int:
    return 1


TOOLS = [work, fail, count, sleep, pay, misfit, unreadable]


def agent(*script: ScriptedReply | str) -> Agent:
    return Agent("x", model=MockModel(script), tools=TOOLS)


async def journalled(world: World, run_id: str) -> list[dict[str, object]]:
    handle = world.process().aio.handle(run_id)
    found = [dict(event.data) | {"type": event.type} async for event in handle.events(follow=False)]
    return [record for record in found if str(record["type"]).startswith("tool.") and record["type"] != "tool.started"]


def result_of_call(messages: tuple[Message, ...]) -> ToolResultPart:
    [part] = [part for message in messages for part in message.tool_results]
    return part


@pytest.mark.spec("OUTC-002", "PTH-017")
@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        (calls(call("work")), None),
        (calls(call("fail")), "error"),
        (calls(call("nobody")), "unknown-tool"),
        (calls(call("count", n="x")), "invalid-arguments"),
        (calls(raw_call("count", "{")), "invalid-arguments"),
        (calls(call("sleep")), "timeout"),
        (calls(call("misfit")), "invalid-result"),
        (calls(call("unreadable")), "projection-failed"),
    ],
)
async def test_result_receipt_and_journal_name_the_same_outcome(
    world: World, asked: ScriptedReply, outcome: str | None
) -> None:
    """Each way to end has a name of its own; a call that succeeded has none, and the key is absent everywhere."""
    result = await world.process(agent(asked, "done")).aio.run_embedded("x", "go", run_id="r")
    assert result.status == "completed"
    part = result_of_call(result.messages)
    [receipt] = (await world.receipts("r")).values()
    [*_, last] = await journalled(world, "r")
    assert (part.outcome, part.is_error) == (outcome, outcome is not None)
    assert receipt.outcome == outcome
    assert last.get("outcome") == outcome
    if outcome is None:
        [record] = [message_to_record(message) for message in result.messages if message.role == "tool"]
        for stored in (record["parts"][0], receipt_record(receipt, None), last):  # pyright: ignore
            assert "outcome" not in stored


@tool(context_schema=int)
async def scoped() -> str:
    return "never"


def _denies(request: ToolCallRequest) -> bool:
    return False


def _refuses(value: object, context: object) -> Block:
    return Block("no")


TABLE: dict[CallOutcome, tuple[ScriptedReply, dict[str, Any]]] = {
    "error": (calls(call("fail")), {}),
    "denied": (calls(call("pay")), {"approve_tool_call": _denies}),
    "blocked": (calls(call("work")), {"guardrails": Guardrails(on_tool_call=[_refuses])}),
    "withheld": (calls(call("work")), {"guardrails": Guardrails(on_tool_result=[_refuses])}),
    "invalid-arguments": (calls(call("count", n="x")), {}),
    "unknown-tool": (calls(call("nobody")), {}),
    "invalid-context": (calls(call("scoped")), {}),
    "timeout": (calls(call("sleep")), {}),
    "cancelled": (calls(call("wait")), {}),
    "invalid-result": (calls(call("misfit")), {}),
    "projection-failed": (calls(call("unreadable")), {}),
    "transfer-refused": (
        calls(call("transfer_to_other")),
        {"handoffs": [Agent("other", model=MockModel(["never"]))], "limits": Limits(max_handoffs=0)},
    ),
    "not-dispatched": (reply("", call("work"), finish_reason="length"), {}),
}
"""How a call of each outcome comes about."""


@pytest.mark.spec("OUTC-001", "OUTC-003")
@pytest.mark.parametrize("outcome", TABLE)
async def test_result_and_stream_name_the_outcome(memory: World, outcome: CallOutcome) -> None:
    """The part of the history, where the run got that far, and the part of the stream say the same of the call."""
    asked, options = TABLE[outcome]

    @tool
    async def wait(context: ToolContext) -> str:
        await app.aio.handle("r").cancel()
        await asyncio.to_thread(context.signal.wait, 10_000)
        context.signal.raise_if_set()
        return "never"

    made = Agent("x", model=MockModel([asked, "done"]), tools=[*TOOLS, scoped, wait], **options)
    app = memory.process(made)
    stream = app.aio.stream_embedded("x", "go", run_id="r")
    shown = [event.outcome async for event in stream.events if isinstance(event, ToolOutput)]
    told = [part.outcome for message in (await stream.result).messages for part in message.tool_results]
    assert shown == ([None] if outcome == "withheld" else [outcome])
    assert told == ([] if outcome == "cancelled" else [outcome])


def _cancels(world: World) -> Callable[[ModelRequest], Awaitable[Entry]]:
    """A model that cancels the run which asks it, as somebody outside may."""

    async def think(_: ModelRequest) -> Entry:
        await world.opened[-1].aio.handle("r/helper:1:call-1").cancel()
        await asyncio.Event().wait()
        return "never"

    return think


DELEGATED: dict[CallOutcome, Callable[[World], dict[str, Any]]] = {
    "child-failed": lambda world: {"model": MockModel([ModelRequestError("no")])},
    "child-stopped": lambda world: {"model": MockModel([calls(call("work"))]), "tools": [work], "limits": Limits(max_steps=1)},
    "over-budget": lambda world: {"model": MockModel(["never"]), "budget": Budget.of(tokens=1)},
    "cancelled": lambda world: {"model": MockModel.function(_cancels(world))},
}
"""How a call ends that another agent does."""


@pytest.mark.spec("OUTC-001")
def test_the_tables_have_every_outcome() -> None:
    """One line for each, of a tool's call or of one that another agent does."""
    assert set(get_args(CallOutcome)) == TABLE.keys() | DELEGATED.keys()


@pytest.mark.spec("OUTC-001")
@pytest.mark.parametrize("outcome", DELEGATED)
async def test_result_and_stream_name_the_outcome_of_a_delegated_call(memory: World, outcome: CallOutcome) -> None:
    """Here a cancel ends the run of the call alone: the one that called reads about it and goes on."""
    helper = Agent("helper", **DELEGATED[outcome](memory))
    boss = Agent("x", model=MockModel([calls(call("helper", prompt="go").with_id("call-1")), "done"]), tools=[helper])
    stream = memory.process(boss).aio.stream_embedded("x", "go", run_id="r")
    shown = [event.outcome async for event in stream.events if isinstance(event, ToolOutput)]
    result = await stream.result
    told = [part.outcome for message in result.messages for part in message.tool_results]
    assert (result.output, shown, told) == ("done", [outcome], [outcome])


@pytest.mark.spec("OUTC-004")
@pytest.mark.parametrize("reason", ["too much", None])
async def test_a_denial_is_marked_with_its_reason_and_a_tool_that_raised_is_not(world: World, reason: str | None) -> None:
    """`denied` and what the person said, on result and receipt; the call beside it that raised has no such fields."""
    script = [calls(call("pay").with_id("p"), call("fail").with_id("f")), "done"]
    waiting = await world.process(agent(*script)).aio.run_embedded("x", "go", run_id="r")
    [asked] = waiting.pending_approvals
    verdict = {"approved": False} | ({} if reason is None else {"reason": reason})
    result = await world.process(agent(*script)).aio.resume_embedded("r", approvals={asked.approval_id: verdict})
    parts = {part.call_id: part for message in result.messages for part in message.tool_results}
    receipts = {call_id: receipt for (_, call_id), receipt in (await world.receipts("r")).items()}
    for found in (parts, receipts):
        assert (found["p"].outcome, found["p"].reason) == ("denied", reason)
        assert (found["f"].outcome, found["f"].reason) == ("error", None)
    assert {record["call_id"]: record["outcome"] for record in await journalled(world, "r")} == {"p": "denied", "f": "error"}


async def test_a_cancelled_call_says_so_on_its_receipt(memory: World) -> None:
    """The run ends before the model is answered, so that its receipt and the journal are all there is."""
    running = asyncio.Event()

    @tool
    async def wait(context: ToolContext) -> str:
        running.set()
        await asyncio.to_thread(context.signal.wait, 10_000)
        context.signal.raise_if_set()
        return "never"

    app = memory.process(Agent("x", model=MockModel([calls(call("wait")), "never"]), tools=[wait]))
    driven = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="r"))
    await running.wait()
    await app.aio.handle("r").cancel()
    result = await driven
    assert (result.status, result.reason) == ("stopped", "aborted")
    [receipt] = (await memory.receipts("r")).values()
    assert (receipt.stage, receipt.outcome) == ("failed", "cancelled")
    assert [record["outcome"] for record in await journalled(memory, "r")] == ["cancelled"]


@pytest.mark.spec("PTH-002")
@pytest.mark.parametrize(("finish_reason", "reason"), [("length", "length"), ("content_filter", "refusal")])
async def test_calls_of_a_reply_that_was_cut_off_or_refused_are_not_dispatched(
    world: World, finish_reason: str, reason: str
) -> None:
    """No execution, no receipt, no approval asked; each call is answered, so that the conversation can be continued."""
    done: list[str] = []

    @tool
    async def touch() -> None:
        done.append("touched")

    asked = reply("", call("touch"), call("pay"), finish_reason=finish_reason)  # pyright: ignore[reportArgumentType]
    made = Agent("x", model=MockModel([asked, "never"]), tools=[touch, pay])
    result = await world.process(made).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, result.reason, done) == ("stopped", reason, [])
    assert await world.receipts("r") == {}
    assert (await world.head("r")).open_items == 0
    parts = [part for message in result.messages for part in message.tool_results]
    assert [(part.name, part.outcome) for part in parts] == [("touch", "not-dispatched"), ("pay", "not-dispatched")]


@pytest.mark.spec("OUTC-005")
@pytest.mark.parametrize(
    ("name", "outcome"), [("fail", "error"), ("sleep", "timeout"), ("nobody", "unknown-tool"), ("misfit", "invalid-result")]
)
async def test_a_replay_after_a_crash_reports_the_same_outcome(world: World, name: str, outcome: str) -> None:
    """The process dies when the call has its receipt and the turn has no answers yet; the next one answers from the receipt."""
    dies = [True]

    @tool(replay="idempotent")
    async def die(context: ToolContext) -> str:
        if not dies:
            return "alive"
        while (await world.receipts("r"))[1, "c"].stage not in ("failed", "validation-failed"):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        raise ProcessDied

    def made() -> Agent:
        script = [calls(call(name).with_id("c"), call("die").with_id("d")), "done"]
        return Agent("x", model=MockModel(script), tools=[*TOOLS, die])

    with pytest.raises(ProcessDied):
        await world.process(made()).aio.run_embedded("x", "go", run_id="r")
    dies.clear()
    before = (await world.receipts("r"))[1, "c"]
    result = await world.process(made()).aio.resume_embedded("r")
    assert result.status == "completed"
    parts = {part.call_id: part for message in result.messages for part in message.tool_results}
    assert (parts["c"].outcome, parts["c"].text, before.outcome) == (outcome, before.error, outcome)


@pytest.mark.spec("TSC-002")
async def test_the_model_reads_the_projection_and_the_receipt_keeps_the_raw_result(world: World) -> None:
    """Unprojected value on the receipt, `to_model_output` of the checked value in the history and the next request."""

    @tool(validate_result=lambda value: {"rows": len(value)}, to_model_output=lambda value: f"{value['rows']} rows")
    async def query() -> list[int]:
        return [1, 2, 3]

    model = MockModel([calls(call("query")), "done"])
    result = await world.process(Agent("x", model=model, tools=[query])).aio.run_embedded("x", "go", run_id="r")
    [receipt] = (await world.receipts("r")).values()
    assert (receipt.stage, receipt.value) == ("completed", [1, 2, 3])
    assert result_of_call(result.messages).text == "3 rows"
    assert result_of_call(model.requests[-1].messages).text == "3 rows"


@pytest.mark.spec("TSC-003")
async def test_without_a_projection_the_model_reads_the_checked_result(world: World) -> None:
    """What `validate_result` and the output schema made of it stands in the history; the receipt keeps what was returned."""

    @tool(output_schema=dict[str, int], validate_result=lambda value: {name: 2 * given for name, given in value.items()})
    async def double() -> dict[str, int]:
        return {"n": 21}

    model = MockModel([calls(call("double")), "done"])
    result = await world.process(Agent("x", model=model, tools=[double])).aio.run_embedded("x", "go", run_id="r")
    [receipt] = (await world.receipts("r")).values()
    assert (receipt.stage, receipt.value) == ("completed", {"n": 21})
    assert result_of_call(result.messages).text == result_of_call(model.requests[-1].messages).text == '{"n": 42}'


@pytest.mark.spec("TSC-004")
@pytest.mark.parametrize(
    ("broken", "stage", "outcome"),
    [("to_model_output", "projection-failed", "projection-failed"), ("validate_result", "validation-failed", "invalid-result")],
)
@pytest.mark.parametrize("repaired", [True, False])
async def test_a_result_that_could_not_be_shown_is_tried_again_without_its_tool(
    world: World, broken: str, stage: str, outcome: str, repaired: bool
) -> None:
    """Killed before the turn is answered: repaired, the next process shows the stored raw value; still broken, the model gets
    that error. The tool ran once either way."""
    ran: list[str] = []
    dies, works = [True], [False]

    def convert(value: dict[str, int]) -> dict[str, int]:
        if not works[0]:
            raise ValueError("not today")
        return {"n": value["n"] + 1}

    def made() -> Agent:
        option: dict[str, Callable[[dict[str, int]], object]] = {broken: convert}

        @tool(**option)  # pyright: ignore[reportArgumentType]
        async def give() -> dict[str, int]:
            ran.append("gave")
            return {"n": 1}

        @tool(replay="idempotent")
        async def die() -> str:
            if not dies:
                return "alive"
            while (await world.receipts("r"))[1, "c"].stage != stage:  # noqa: ASYNC110 - another process' store
                await asyncio.sleep(0.002)
            raise ProcessDied

        script = [calls(call("give").with_id("c"), call("die").with_id("d")), "done"]
        return Agent("x", model=MockModel(script), tools=[give, die])

    with pytest.raises(ProcessDied):
        await world.process(made()).aio.run_embedded("x", "go", run_id="r")
    receipt = (await world.receipts("r"))[1, "c"]
    assert (receipt.stage, receipt.value, receipt.outcome) == (stage, {"n": 1}, outcome)
    dies.clear()
    works[0] = repaired
    result = await world.process(made()).aio.resume_embedded("r")
    assert result.status == "completed"
    assert ran == ["gave"]
    parts = {part.call_id: part for message in result.messages for part in message.tool_results}
    receipt = (await world.receipts("r"))[1, "c"]
    if repaired:
        assert (parts["c"].text, parts["c"].outcome, parts["c"].is_error) == ('{"n": 2}', None, False)
        assert (receipt.stage, receipt.value, receipt.error) == ("completed", {"n": 1}, None)
    else:
        assert (parts["c"].outcome, parts["c"].is_error) == (outcome, True)
        assert "not today" in parts["c"].text
        assert (receipt.stage, receipt.value) == (stage, {"n": 1})
