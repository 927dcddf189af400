"""What the official `anthropic` package says of the Messages wire: of what we send, and of what our scripted server sends.

The package and its types stand for the vendor; no request leaves this machine.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import anthropic
import pydantic
import pytest
from anthropic.types import (
    Message,
    RawContentBlockDelta,
    RawMessageStreamEvent,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming

from deuz_workers.core.messages import (
    FilePart,
    ImagePart,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    assistant,
    message,
    system,
    user,
)
from deuz_workers.core.usage import Usage
from deuz_workers.ports.model import ModelRequest, OutputFormat, ToolSpec
from deuz_workers.providers.anthropic.reply import FINISH_REASONS
from deuz_workers.providers.anthropic.request import Dialect, build_body
from deuz_workers.providers.script import ScriptedReply, call, reply
from deuz_workers.providers.sse import EventReader
from deuz_workers.testing.model_faults import Served, refuse
from deuz_workers.testing.model_server import ModelServer
from tests.providers.recorded import recorded

AUTHOR = "anthropic:claude"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
BILL = OutputFormat("bill", {"type": "object", "properties": {"cents": {"type": "integer"}}})
THINKING: dict[str, object] = {"type": "enabled", "budget_tokens": 2048}
HISTORY = (
    system("Be kind."),
    user(
        [
            TextPart("hi"),
            ImagePart("image/png", b"x"),
            ImagePart("image/png", url="https://x/y.png"),
            FilePart("application/pdf", b"x", name="bill"),
            FilePart("application/pdf", url="https://x/y.pdf"),
            FilePart("text/plain", b"x"),
            FilePart("application/pdf", file_id="file_011"),
        ]
    ),
    assistant(
        [
            ReasoningPart("hm", {"author": AUTHOR, "signature": "s"}),
            ReasoningPart("", {"author": AUTHOR, "redacted": "r"}),
            TextPart("Let me add."),
            ToolUsePart("a", "add", {"a": 1}),
            ToolUsePart("b", "add", None, "{"),
        ]
    ),
    message("tool", [ToolResultPart("a", "add", "1"), ToolResultPart("b", "add", "no", is_error=True)]),
)
REQUESTS = {
    "plain": ModelRequest("r", (user("hi"),)),
    "all parts": ModelRequest("r", HISTORY, (ADD,), max_output_tokens=9_000),
    "forced": ModelRequest("r", HISTORY, (ADD,), "required"),
    "typed": ModelRequest("r", HISTORY, (ADD,), "none", output_format=BILL),
    "extra": ModelRequest("r", HISTORY, extra={"metadata": {"user_id": "u"}, "stop_sequences": ["x"]}),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("dialect", [{}, {"thinking": THINKING, "cache": True}], ids=["plain", "thinking"])
@pytest.mark.parametrize("name", REQUESTS)
def test_the_body_is_of_the_package_s_own_type(name: str, dialect: dict[str, Any], stream: bool) -> None:
    """Every field at every depth is one that the package knows, and of a kind that it takes."""
    body = build_body(REQUESTS[name], Dialect(AUTHOR, "claude", stream=stream, **dialect))
    assert validated(body) == body


def validated(body: dict[str, Any]) -> object:
    """The body as the package's type of a request reads it, which leaves out what it does not know."""
    # Held until the end: the lists are validated by it when they are read.
    params: pydantic.TypeAdapter[Any]
    params = pydantic.TypeAdapter(MessageCreateParamsStreaming if body.get("stream") else MessageCreateParamsNonStreaming)
    return unrolled(params.validate_python(body))


def unrolled(value: Any) -> object:
    """With the lists that were validated one by one only when they are read."""
    match value:
        case dict():
            return {name: unrolled(inner) for name, inner in value.items()}
        case str() | bytes() | int() | float() | None:
            return value
        case _:
            return [unrolled(inner) for inner in value]


def test_a_body_that_is_wrong_is_noticed() -> None:
    """The check above can fail: a field of a wrong kind anywhere in the request is none of the package's types."""
    body = build_body(REQUESTS["all parts"], Dialect(AUTHOR, "claude"))
    body["messages"][1]["content"][0] = {"type": "text", "text": 7}
    with pytest.raises(pydantic.ValidationError):
        validated(body)
    body = build_body(REQUESTS["plain"], Dialect(AUTHOR, "claude")) | {"max_token": 1}
    assert validated(body) != body


@contextmanager
def client_of(script: Any) -> Generator[anthropic.Anthropic]:
    with (
        ModelServer(script) as server,
        anthropic.Anthropic(api_key="k", base_url=server.base_url.removesuffix("/v1"), max_retries=0) as client,
    ):
        yield client


USED = Usage(100, 20, 60, 5, cost_micros=None, cache_write_tokens=30)
TURN = reply(
    "Paying now.",
    call("pay", amount=1250, to="é"),
    call("pay", amount=7),
    reasoning=ReasoningPart("Hm, hm.", {"signature": "Sig+/=="}),
    usage=USED,
)
ASKED: dict[str, Any] = {"model": "claude", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}


def check_turn(got: Message) -> None:
    thought, text, *uses = got.content
    assert isinstance(thought, ThinkingBlock)
    assert (thought.thinking, thought.signature) == ("Hm, hm.", "Sig+/==")
    assert isinstance(text, TextBlock)
    assert text.text == "Paying now."
    assert [use.input for use in uses if isinstance(use, ToolUseBlock)] == [{"amount": 1250, "to": "é"}, {"amount": 7}]
    assert got.stop_reason == "tool_use"
    counted = (got.usage.input_tokens, got.usage.cache_read_input_tokens, got.usage.cache_creation_input_tokens)
    assert (*counted, got.usage.output_tokens) == (10, 60, 30, 20)


def test_the_package_reads_our_whole_reply() -> None:
    """Over a real socket: blocks, signature, arguments and usage."""
    with client_of([TURN]) as client:
        check_turn(client.messages.create(**ASKED))


def test_the_package_reads_our_stream() -> None:
    """Over a real socket, event by event, each one of a type that the package knows."""
    with client_of([TURN]) as client, client.messages.stream(**ASKED) as stream:
        events = list(stream)
        check_turn(stream.get_final_message())
    assert events[-1].type == "message_stop"


def test_the_package_reads_our_refusals() -> None:
    """Each status and type ends in the package's own class for it, with what the server asks to wait."""
    refusals: dict[int, type[anthropic.APIStatusError]] = {
        400: anthropic.BadRequestError,
        401: anthropic.AuthenticationError,
        404: anthropic.NotFoundError,
        429: anthropic.RateLimitError,
        500: anthropic.InternalServerError,
    }
    for status, kind in refusals.items():
        with client_of([refuse(status, retry_after="7")]) as client, pytest.raises(kind) as caught:
            client.messages.create(**ASKED)
        assert caught.value.response.headers["retry-after"] == "7"


def typed(event: Mapping[str, Any]) -> bool:
    try:
        pydantic.TypeAdapter(RawMessageStreamEvent).validate_python(event)
    except pydantic.ValidationError:
        return False
    return True


def test_the_recorded_events_are_of_the_documented_types() -> None:
    """Every kind of event and delta that the package has a type for is in the recording, and is of that type."""
    events = [json.loads(event.data) for event in EventReader().feed(recorded("anthropic_every_event.sse"))]
    known = [event for event in events if event["type"] not in ("ping", "something_of_tomorrow")]
    assert [event for event in known if not typed(event)] == []
    assert {event["type"] for event in known} == kinds_of(RawMessageStreamEvent)
    deltas = {event["delta"]["type"] for event in known if event["type"] == "content_block_delta"}
    assert deltas == kinds_of(RawContentBlockDelta)


def kinds_of(union: Any) -> set[str]:
    """Values of `type` in a union of the package's models."""
    members = get_args(get_args(union)[0])
    return {get_args(member.model_fields["type"].annotation)[0] for member in members}


def test_the_package_reads_the_recording() -> None:
    """The whole recording, those parts included that we pass over."""
    served = Served(recorded("anthropic_every_event.sse"), content_type="text/event-stream")
    with client_of([served]) as client:
        kinds = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


def test_a_scripted_turn_without_calls_ends_as_one() -> None:
    """The reasons of the script in the vendor's words."""
    reasons = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
    for given, said in reasons.items():
        scripted: ScriptedReply = reply("x", finish_reason=given)  # pyright: ignore[reportArgumentType]
        with client_of([scripted]) as client:
            assert client.messages.create(**ASKED).stop_reason == said


def test_every_stop_reason_of_the_package_is_decided() -> None:
    """Those that are not in our table mean that the turn broke off: a new one is looked at here."""
    assert set(get_args(StopReason)) == {"pause_turn"} | FINISH_REASONS.keys()
