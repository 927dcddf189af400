"""A script means the same, played by the scripted model or served over HTTP to a provider model."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from deuz_workers import Agent, run_agent, tool
from deuz_workers.core.messages import Message, TextPart, ToolResultPart, ToolUsePart, message, user
from deuz_workers.core.usage import Usage
from deuz_workers.errors import (
    ModelAuthenticationError,
    ModelError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from deuz_workers.ports.model import Model, ModelReply, ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, attempts, call, calls, fails, raw_call, reply
from deuz_workers.testing.model_server import ModelServer
from tests.providers.wires import WIRES

REPLIES: list[Entry] = [
    "plain text",
    calls(call("add", a=1, b=2)),
    calls(call("add", a=1), call("add", a=2), text="in parallel"),
    calls(call("a").without_id(), call("b").without_id()),
    calls(call("a").with_id("x"), call("b").with_id("x")),
    raw_call("add", '{"a": '),
    reply("cut", finish_reason="length"),
    reply("no", finish_reason="content_filter"),
    reply("nobody counted", usage=None),
    reply("counted", usage=Usage(3, 4, 2, 1, cost_micros=None)),
    reply("a\u0000b \N{GRINNING FACE}", fragments=["a\u0000", "b ", "\N{GRINNING FACE}"]),
    reply(""),
    call("last", nested={"list": [1, None, 2.5, True], "text": "é"}),
]


@pytest.fixture(params=[None, *itertools.product(WIRES, ("streamed", "whole"))], ids=str)
async def model(request: pytest.FixtureRequest) -> AsyncGenerator[Model]:
    """A model that plays `REPLIES`, itself or over each wire."""
    if request.param is None:
        yield MockModel(REPLIES)
        return
    wire, how = request.param
    with ModelServer(REPLIES) as server:
        made = WIRES[wire].model(server, model="scripted", provider="mock", stream=how == "streamed")
        yield made
        await made.close()


def answered(turn: Message) -> tuple[Message, ...]:
    """The turn as the engine keeps it, with a call id for every call, and the results or the word that follow it."""
    uses = iter([replace(use, call_id=f"c{place}", provider_call_id=use.call_id) for place, use in enumerate(turn.tool_uses)])
    kept = Message("assistant", tuple(next(uses) if part in turn.tool_uses else part for part in turn.parts))
    results = tuple(ToolResultPart(use.call_id, use.name, "ok") for use in kept.tool_uses)
    return (kept, message("tool", results)) if results else (kept, user("go on"))


@pytest.mark.spec("DEP-003", "WIR-006")
async def test_the_replies_are_the_same(model: Model) -> None:
    """A whole conversation: same messages, ids, finish reasons, usage and names, with fragments that add up to the text."""
    expected = MockModel(REPLIES)
    history: tuple[Message, ...] = (user("hi"),)
    for _ in REPLIES:
        heard: list[str] = []
        request = ModelRequest("r", history, timeout_ms=20_000)
        got = await model.call(request, heard.append)
        assert plain(got) == plain(await expected.call(request))
        assert "".join(heard) == got.message.text
        history += answered(got.message)
    assert model.name == expected.name


def plain(given: ModelReply) -> ModelReply:
    """Without the provider's private metadata, which no result shows."""
    parts = given.message.parts
    plainly = (replace(part, provider={}) for part in parts if isinstance(part, TextPart | ToolUsePart))
    return replace(given, message=Message("assistant", tuple(plainly)))


@pytest.mark.spec("DEP-003", "WIR-006")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "error",
    [
        ModelRateLimitedError("x", retry_after_ms=1_500),
        ModelAuthenticationError("x"),
        ModelRequestError("x"),
        ModelUnavailableError("x"),
        ModelTimeoutError("x"),
        ModelResponseError("x"),
    ],
    ids=lambda error: f"{type(error).__name__}-{error.billed}",
)
async def test_the_errors_are_the_same(error: ModelError, wire: str) -> None:
    """A scripted error has the same type, the same word about the bill and the same wait over HTTP."""
    request = ModelRequest("r", (user("hi"),), timeout_ms=200)
    with ModelServer([fails(error)]) as server:
        served = WIRES[wire].model(server, max_retries=0)
        with pytest.raises(ModelError) as caught:
            await served.call(request)
        await served.close()
    with pytest.raises(ModelError) as scripted:
        await MockModel([fails(error)]).call(request)
    for raised in (caught.value, scripted.value):
        assert (type(raised), raised.billed, raised.retry_after_ms) == (type(error), error.billed, error.retry_after_ms)


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


@tool
async def look() -> str:
    """Looks."""
    return "seen"


ENDINGS: dict[str, list[Entry]] = {
    "completed": [calls(call("look"), call("look"), text="let me see"), "done"],
    "suspended": [calls(call("pay", amount=7))],
    "stopped": [reply("I will not", finish_reason="content_filter")],
    "failed": [fails(ModelRequestError("no such thing"))],
}


@pytest.mark.spec("DEP-003")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", ENDINGS)
async def test_the_results_of_runs_are_the_same(status: str, stream: bool, wire: str) -> None:
    """Status, output or reason, steps, usage, history and what is waited for do not tell which model it was."""

    async def shown(model: Model) -> dict[str, object]:
        result = await run_agent(Agent("x", model=model, tools=[pay, look]), "hi", run_id="r")
        return {
            "status": result.status,
            "value": result.value,
            "reason": result.reason,
            "error": (result.error or {}).get("code"),
            "usage": (result.usage.input_tokens, result.usage.output_tokens),
            "steps": result.steps,
            "history": [
                (message.role, message.text, [(use.name, use.arguments) for use in message.tool_uses])
                for message in result.messages
            ],
            "answers": [part.text for message in result.messages for part in message.tool_results],
            "waits": [(item.tool_name, item.arguments) for item in result.pending_approvals],
        }

    script = ENDINGS[status]
    with ModelServer(script) as server:
        served = WIRES[wire].model(server, stream=stream)
        got = await shown(served)
        await served.close()
    assert got["status"] == status
    assert got == await shown(MockModel(script))


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_that_breaks_off_is_heard_until_then(wire: str) -> None:
    """Both deliver the fragments before the failure, and then fail alike."""
    script: list[Entry] = [attempts(fails(ModelUnavailableError("cut"), after=["he", "ll"]), "hello")]
    with ModelServer(script) as server:
        served = WIRES[wire].model(server)
        for model in (served, MockModel(script)):
            heard: list[str] = []
            with pytest.raises(ModelUnavailableError):
                await model.call(ModelRequest("r", (user("hi"),), timeout_ms=20_000), heard.append)
            assert heard == ["he", "ll"]
            again = await model.call(ModelRequest("r", (user("hi"),), timeout_ms=20_000, attempt=2))
            assert again.message.text == "hello"
        await served.close()
