"""Our side of OpenAI's two wires against the official package: what we send is of its request types, and its client reads what
our server answers. The package is a dependency of the tests only."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import TypeAdapter

from deuz_workers.core.messages import (
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    assistant,
    system,
    user,
)
from deuz_workers.core.usage import Usage
from deuz_workers.ports.model import ModelRequest, OutputFormat, ToolSpec
from deuz_workers.providers.script import ScriptedReply, call, calls, reply
from deuz_workers.providers.sse import EventReader
from deuz_workers.testing.chat_answers import ChatAnswers
from deuz_workers.testing.model_faults import refuse
from deuz_workers.testing.model_server import ModelServer
from deuz_workers.testing.model_wire import Answers, Asked
from deuz_workers.testing.responses_answers import ResponsesAnswers
from tests.providers.responses_events import PASSED_OVER, READ, event
from tests.providers.test_same_contract import answered
from tests.providers.wires import WIRES

TURN = reply(
    "Paying.",
    call("pay", amount=1250, to="é"),
    call("pay", amount=7),
    reasoning="Hm.",
    usage=Usage(20, 9, 4, 3, cost_micros=None),
)
PAY = ToolSpec("pay", "Pays.", {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]})
BILL = OutputFormat("bill", {"type": "object", "properties": {"cents": {"type": "integer"}}})


def consumed(value: Any) -> Any:
    """What pydantic made of a body: iterables are validated as they are read, so all of them are."""
    if isinstance(value, Mapping):
        return {name: consumed(item) for name, item in typing.cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [consumed(item) for item in typing.cast("Iterable[Any]", value)]
    return value


TYPES: dict[tuple[str, bool], Any] = {
    ("chat", True): CompletionCreateParamsStreaming,
    ("chat", False): CompletionCreateParamsNonStreaming,
    ("responses", True): ResponseCreateParamsStreaming,
    ("responses", False): ResponseCreateParamsNonStreaming,
}

REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": (PAY,), "max_output_tokens": 9, "temperature": 0.5},
    "a forced tool": {"tools": (PAY,), "tool_choice": "required"},
    "a typed answer": {"tools": (PAY,), "tool_choice": "none", "output_format": BILL},
}


async def conversation(wire: str, stream: bool, **settings: Any) -> list[dict[str, Any]]:
    """The bodies that a client sends for two turns, the second with what the first one answered."""
    question = user([TextPart("What?"), ImagePart("image/png", b"x"), ImagePart("image/png", url="https://x/y.png"), _file()])
    foreign = assistant([ReasoningPart("Hm.", {"author": "other:m", "item": {"id": "z"}}), TextPart("Let me see.")])
    history: tuple[Message, ...] = (system("Be kind."), user("hi"), foreign, question)
    with ModelServer([TURN] * 3) as server:
        model = WIRES[wire].model(server, stream=stream)
        first = await model.call(ModelRequest("r1", history, timeout_ms=20_000, **settings))
        history = (*history, *answered(first.message))
        await model.call(ModelRequest("r2", history, timeout_ms=20_000, **settings))
        await model.close()
        return [request.body for request in server.requests]


def _file() -> FilePart:
    return FilePart("application/pdf", b"%PDF", name="bill.pdf")


@pytest.mark.parametrize("settings", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize(("wire", "stream"), TYPES, ids=str)
async def test_what_is_sent_is_of_the_types_of_the_package(wire: str, stream: bool, settings: dict[str, Any]) -> None:
    """Every field is one that the package knows where it stands: what it does not know would be missing afterwards."""
    adapter: TypeAdapter[Any] = TypeAdapter(TYPES[wire, stream])
    for body in await conversation(wire, stream, **settings):
        expected = {name: value for name, value in body.items() if name != "reasoning_content"}
        assert consumed(adapter.validate_python(body)) == expected


ANSWERS: dict[str, Answers] = {"chat": ChatAnswers(), "responses": ResponsesAnswers()}
EVENTS: dict[str, TypeAdapter[Any]] = {
    "chat": TypeAdapter(ChatCompletionChunk),
    "responses": TypeAdapter(ResponseStreamEvent),
}
WHOLE: dict[str, TypeAdapter[Any]] = {"chat": TypeAdapter(ChatCompletion), "responses": TypeAdapter(Response)}


@pytest.mark.parametrize("scripted", [TURN, reply("cut", finish_reason="length"), reply("no", finish_reason="content_filter")])
@pytest.mark.parametrize("wire", ANSWERS)
def test_what_our_server_says_is_of_the_types_of_the_package(wire: str, scripted: ScriptedReply) -> None:
    """Events and whole bodies have every field that the package requires, of the right type."""
    asked = Asked("m", 1, stream=True)
    stream = b"".join(piece.data for piece in ANSWERS[wire].pieces(scripted, asked))
    events = [given.data for given in EventReader().feed(stream) if given.data != "[DONE]"]
    assert len(events) > 3
    for data in events:
        EVENTS[wire].validate_json(data)
    WHOLE[wire].validate_json(ANSWERS[wire].whole(scripted, asked))


def test_every_event_of_the_package_has_a_recorded_shape() -> None:
    """A kind of event that a newer package adds is missed here, and each shape is of the type that it stands for."""
    union = typing.get_args(typing.get_args(ResponseStreamEvent)[0])
    kinds = {typing.get_args(kind.model_fields["type"].annotation)[0] for kind in union}
    recorded = READ | PASSED_OVER
    assert kinds == recorded.keys()
    for number, (kind, fields) in enumerate(recorded.items()):
        EVENTS["responses"].validate_python(event(kind, fields, number))


def client(server: ModelServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="sk-1", max_retries=0)


PAID = [("pay", '{"amount":1250,"to":"é"}'), ("pay", '{"amount":7}')]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_client_of_the_package_reads_our_chat_completions(stream: bool) -> None:
    """Text, calls, finish reason and usage, over a real socket."""

    def ask(server: ModelServer) -> ChatCompletion:
        messages: Any = [{"role": "user", "content": "hi"}]
        if not stream:
            return client(server).chat.completions.create(model="m", messages=messages)
        asked = client(server).chat.completions.stream(model="m", messages=messages, stream_options={"include_usage": True})
        with asked as events:
            return events.get_final_completion()

    with ModelServer([TURN]) as server:
        got = await asyncio.to_thread(ask, server)
    (choice,) = got.choices
    assert (choice.message.content, choice.finish_reason) == ("Paying.", "tool_calls")
    made: Any = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in made] == PAID
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (20, 9, 29)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_client_of_the_package_reads_our_responses(stream: bool) -> None:
    """Thought, text, calls, status and usage, over a real socket."""

    def ask(server: ModelServer) -> Response:
        if not stream:
            return client(server).responses.create(model="m", input="hi")
        with client(server).responses.stream(model="m", input="hi") as events:
            return events.get_final_response()

    with ModelServer([TURN]) as server:
        got = await asyncio.to_thread(ask, server)
    assert (got.status, got.output_text) == ("completed", "Paying.")
    made: Any = [item for item in got.output if item.type == "function_call"]
    assert [(item.name, item.arguments) for item in made] == PAID
    thoughts: Any = [item for item in got.output if item.type == "reasoning"]
    assert thoughts[0].summary[0].text == "Hm."
    assert got.usage is not None
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.total_tokens) == (20, 9, 29)


async def test_the_client_of_the_package_reads_our_refusals() -> None:
    """A rate limit is one to it too, with its code and the wait that was asked for."""

    def ask(server: ModelServer) -> openai.RateLimitError:
        with pytest.raises(openai.RateLimitError) as caught:
            client(server).responses.create(model="m", input="hi")
        return caught.value

    with ModelServer([refuse(429, retry_after="7", code="rate_limit_exceeded")]) as server:
        error = await asyncio.to_thread(ask, server)
    assert (error.code, error.response.headers["retry-after"]) == ("rate_limit_exceeded", "7")


def test_a_turn_of_calls_alone() -> None:
    """Without a text there is no message among the items, and content is null in a completion."""
    asked = Asked("m", 1, stream=False)
    alone = calls(call("pay", amount=1))
    response = WHOLE["responses"].validate_json(ANSWERS["responses"].whole(alone, asked))
    completion = WHOLE["chat"].validate_json(ANSWERS["chat"].whole(alone, asked))
    assert [item.type for item in response.output] == ["function_call"]
    assert completion.choices[0].message.content is None
