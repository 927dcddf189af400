"""What an agent does is the same on every wire, streamed or not: whole runs against a server on a real socket."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typing_extensions import TypedDict

from deuz_workers import (
    Agent,
    FilePart,
    Limits,
    TextPart,
    resume_agent,
    run_agent,
    tool,
)
from deuz_workers.app.results import AgentResult
from deuz_workers.core.messages import Message, ReasoningPart
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelRateLimitedError
from deuz_workers.providers.anthropic.model import AnthropicModel
from deuz_workers.providers.gemini.model import GeminiModel
from deuz_workers.providers.responses.model import ResponsesModel
from deuz_workers.providers.script import ScriptedCall, attempts, call, calls, raw_call, reply
from deuz_workers.providers.wire_model import WireModel
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.anthropic_answers import SIGNATURE as ANTHROPIC_SIGNATURE
from deuz_workers.testing.gemini_answers import SIGNATURE as GEMINI_SIGNATURE
from deuz_workers.testing.model_faults import refuse
from deuz_workers.testing.model_server import ModelServer, Script, in_order
from tests.providers.sent import sent
from tests.providers.wires import WIRES

OVER = [f"{wire}-{how}" for wire, how in itertools.product(WIRES, ("streamed", "whole"))]


@pytest.fixture(params=OVER)
def over(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`async with over(script) as (server, model)`."""
    wire, _, how = request.param.partition("-")

    @asynccontextmanager
    async def talking(script: Script, **settings: Any) -> AsyncGenerator[tuple[ModelServer, WireModel]]:
        with ModelServer(script) as server:
            model = WIRES[wire].model(server, stream=how == "streamed", **settings)
            yield server, model
            await model.close()

    return talking


@pytest.fixture
async def store() -> AsyncGenerator[SqlStore]:
    """In memory, over the life of several calls."""
    kept = open_store("sqlite://:memory:")
    yield kept
    await kept.close()


PAID: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()


@tool
async def pay(amount: int) -> str:
    """Pays."""
    PAID.append(amount)
    return f"paid {amount}"


@tool(needs_approval=True)
async def sign(name: str) -> str:
    """Signs."""
    return f"signed {name}"


def texts(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(said.role, said.text or ",".join(part.text for part in said.tool_results)) for said in messages]


async def test_calls_in_parallel_and_one_after_the_other(over: Any) -> None:
    """Each call runs once with its own arguments, and the model gets each result under the call that it made."""
    script = [calls(call("pay", amount=1), call("pay", amount=2), text="Two."), calls(call("pay", amount=3)), "done"]
    async with over(script) as (server, model):
        result = await run_agent(Agent("x", model=model, tools=[pay]), "go")
    assert (result.status, result.text, sorted(PAID)) == ("completed", "done", [1, 2, 3])
    assert [text for _, text in texts(result.messages)] == ["go", "Two.", "paid 1,paid 2", "", "paid 3", "done"]
    assert result.usage.total_tokens == 45
    assert server.received == 3


NO_ID = call("pay", amount=1).without_id(), call("pay", amount=2).without_id()
ONE_ID = call("pay", amount=1).with_id("x"), call("pay", amount=2).with_id("x")
REUSED = call("pay", amount=1).with_id("x"), call("pay", amount=2).with_id("y")


@pytest.mark.spec("FR-28")
@pytest.mark.parametrize("made", [NO_ID, ONE_ID, REUSED], ids=["no ids", "one id for both", "ids of an earlier turn"])
async def test_providers_with_strange_ids(over: Any, made: tuple[ScriptedCall, ...]) -> None:
    """Every call of both turns runs once, and on the way back each result stands under an id that names its call alone."""
    async with over([calls(*made), calls(*made), "done"]) as (server, model):
        result = await run_agent(Agent("x", model=model, tools=[pay]), "go")
        assert (result.status, PAID) == ("completed", [1, 2, 1, 2])
        pairs = sent(server.requests[-1]).pairs
    assert [answer for _, answer in pairs] == ["paid 1", "paid 2", "paid 1", "paid 2"]


async def test_arguments_that_are_no_json_are_told_to_the_model(over: Any) -> None:
    """The call does not run; the model reads why, and its next turn is the answer."""
    async with over([raw_call("pay", '{"amount": '), "sorry"]) as (_, model):
        result = await run_agent(Agent("x", model=model, tools=[pay]), "go")
    assert (result.status, result.text, PAID) == ("completed", "sorry", [])
    assert result.messages[2].tool_results[0].is_error


@pytest.mark.parametrize(("reason", "stopped_by"), [("length", "length"), ("content_filter", "refusal")])
async def test_a_turn_that_is_cut_or_refused_runs_nothing(over: Any, reason: Any, stopped_by: str) -> None:
    """Its calls look complete and are not run."""
    async with over([reply("I ", call("pay", amount=1), finish_reason=reason)]) as (_, model):
        result = await run_agent(Agent("x", model=model, tools=[pay]), "go")
    assert PAID == []
    assert result.status in ("stopped", "failed")
    assert stopped_by in str((result.reason, result.error))


async def test_a_suspended_run_goes_on_in_another_process(over: Any, store: SqlStore) -> None:
    """Call ids, thoughts and arguments outlive the store: the result goes to the call that was asked for."""
    script = [reply("", call("sign", name="é"), reasoning="Hm."), "done"]
    async with over(script) as (server, model):
        waiting = await run_agent(Agent("x", model=model, tools=[sign]), "go", run_id="r", store=store)
        [item] = waiting.pending_approvals
        again, answers = Agent("x", model=model, tools=[sign]), {item.approval_id: True}
        result = await resume_agent(again, run_id="r", store=store, approvals=answers)
        assert (waiting.status, result.status, result.text) == ("suspended", "completed", "done")
        assert [answer for _, answer in sent(server.requests[-1]).pairs] == ["signed é"]


async def test_thoughts_are_sent_back_as_they_came(over: Any) -> None:
    """Where the wire has them back at all: byte for byte, before the call that they led to, and in the run's messages."""
    async with over([reply("", call("pay", amount=1), reasoning="Hm.\u2028"), "done"]) as (server, model):
        result = await run_agent(Agent("x", model=model, tools=[pay]), "go")
        again = sent(server.requests[-1])
    (thought,) = [part for part in result.messages[1].parts if isinstance(part, ReasoningPart)]
    assert thought.text == "Hm.\u2028"
    match model:
        case ResponsesModel():
            kinds = [item.get("type") for item in again.history]
            assert kinds == [None, "reasoning", "function_call", "function_call_output"]
            assert again.thoughts == [thought.provider["item"]]
        case AnthropicModel():
            signed = {"type": "thinking", "thinking": "Hm.\u2028", "signature": ANTHROPIC_SIGNATURE}
            assert again.thoughts == [signed] == again.history[1]["content"][:1]
        case GeminiModel():
            called = {"id": "call_1_1", "name": "pay", "args": {"amount": 1}}
            signed = {"functionCall": called, "thoughtSignature": GEMINI_SIGNATURE}
            assert again.thoughts == [{"text": "Hm.\u2028", "thought": True}, signed] == again.history[1]["parts"]
        case _:
            assert again.thoughts == []


class Bill(TypedDict):
    cents: int


@pytest.mark.spec("FIN-003", "WIR-001", "WIR-002", "WIR-003")
async def test_a_typed_answer_by_the_format_of_the_wire(over: Any) -> None:
    """The finalization request has the format field, and everything of the loop's last request before it: the same tools, byte
    for byte, and its messages as the beginning. Gemini alone gets no tools: a format and declarations do not go together."""
    script = [calls(call("pay", amount=1)), "I have paid", '{"cents": 7}']
    async with over(script) as (server, model):
        result = await run_agent(Agent("x", model=model, tools=[pay], output_type=Bill, instructions="Be kind."), "go")
        bodies = [server.requests[number].body for number in (1, 2)]
        loop, final = (sent(server.requests[number]) for number in (1, 2))
    assert (result.status, result.output) == ("completed", {"cents": 7})
    assert json.dumps(final.history).startswith(json.dumps(loop.history)[:-1])
    assert final.schema is not None
    assert (list(final.schema["properties"]), loop.schema) == (["cents"], None)
    if isinstance(model, GeminiModel):
        assert (loop.tools, final.tools, final.choice) == (["pay"], [], None)
    else:
        assert json.dumps(bodies[0]["tools"]) == json.dumps(bodies[1]["tools"])
        assert final.choice == "none"


@pytest.mark.spec("FIN-003", "WIR-004")
async def test_a_typed_answer_by_one_forced_tool(over: Any) -> None:
    """The request's only tool is the output, and the model has to call it."""
    script = [calls(call("pay", amount=1)), "I have paid", call("json_output", cents=7)]
    async with over(script, output_mode="tool") as (server, model):
        result = await run_agent(Agent("x", model=model, tools=[pay], output_type=Bill), "go")
        final = sent(server.requests[-1])
    assert (result.status, result.output) == ("completed", {"cents": 7})
    assert (final.tools, final.choice, final.schema) == (["json_output"], "required", None)


async def test_a_passing_failure_is_tried_again_and_paid_once(over: Any) -> None:
    """A rate limit costs nothing: usage and accounting are those of the answer."""
    script = [attempts(ModelRateLimitedError("slow"), reply("done", usage=Usage(7, 3, cost_micros=None)))]
    async with over(script, max_retries=0) as (server, model):
        result = await run_agent(Agent("x", model=model, limits=Limits(max_retries=2)), "go")
    assert (result.status, result.text, server.received) == ("completed", "done", 2)
    assert (result.accounting.spent.tokens, result.accounting.unknown.tokens) == (10, 0)


async def test_a_request_that_is_too_long_is_shortened(over: Any) -> None:
    """The server's refusal is understood, and the run goes on with a summary of what was before."""
    long = refuse(400, code="context_length_exceeded")
    script = in_order([calls(call("pay", amount=1)), long, "done"])
    async with over(script) as (server, model):
        result = await run_agent(Agent("x", model=model, tools=[pay]), "go")
    assert (result.status, result.text, PAID) == ("completed", "done", [1])
    assert server.received == 3


async def test_a_file_in_the_question(over: Any) -> None:
    """It is sent as the wire has files, and stored with the run."""
    question = [TextPart("What is this?"), FilePart("application/pdf", b"%PDF", name="bill.pdf")]
    async with over(["a bill"]) as (server, model):
        result: AgentResult[Any] = await run_agent(Agent("x", model=model), question)
        body = server.requests[0].body
    assert result.text == "a bill"
    assert result.messages[0].parts == tuple(question)
    assert "JVBERg==" in json.dumps(body)
