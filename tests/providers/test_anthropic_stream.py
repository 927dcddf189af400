"""Streams of the Messages API: every documented event, and what is made of streams that are not as documented."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.messages import ReasoningPart, TextPart
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelError, ModelRateLimitedError, ModelResponseError, ModelUnavailableError
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.anthropic.reply import read_reply
from deuz_workers.providers.anthropic.stream import MessageStream
from deuz_workers.providers.sse import EventReader, ServerEvent
from tests.providers.recorded import recorded

AUTHOR = "anthropic:claude"


def play(*events: dict[str, Any] | str, heard: list[str] | None = None) -> ModelReply | None:
    stream = MessageStream()
    for event in events:
        given = event if isinstance(event, str) else json.dumps(event)
        said = stream.take(ServerEvent("message", given))
        if heard is not None and said:
            heard.append(said)
    completion = stream.completion()
    return None if completion is None else read_reply(completion, author=AUTHOR, provider="anthropic", model="claude")


def played(*events: dict[str, Any] | str, heard: list[str] | None = None) -> ModelReply:
    reply = play(*events, heard=heard)
    assert reply is not None
    return reply


def start(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"model": "claude-5", "content": [], "usage": usage}}


def block(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def said(index: int, text: str) -> dict[str, Any]:
    return delta(index, "text_delta", text=text)


def piece(index: int, written: str) -> dict[str, Any]:
    return delta(index, "input_json_delta", partial_json=written)


def end(reason: str = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


STOP = {"type": "message_stop"}
USE = {"id": "toolu_1", "name": "add", "input": {}}


def test_every_documented_event() -> None:
    """A recorded stream with all of them, those that say nothing to us and one that nobody knows included."""
    stream, heard = MessageStream(), list[str]()
    for event in EventReader().feed(recorded("anthropic_every_event.sse")):
        assert not stream.is_done, "nothing follows the last event"
        heard.append(stream.take(event))
    assert stream.is_done
    completion = stream.completion()
    assert completion is not None
    reply = read_reply(completion, author=AUTHOR, provider="anthropic", model="claude")
    thought, hidden, said_first, searched, found, said_then, first, second = reply.message.parts
    assert thought == ReasoningPart("I should look it up.", {"author": AUTHOR, "signature": "EqQBCkgIARABGAIiQL8=="})
    assert hidden == ReasoningPart("", {"author": AUTHOR, "redacted": "EmwKAhgBEgy3va3pzix"})
    assert (said_first, said_then) == (TextPart("Let me search."), TextPart("It is sunny."))
    assert isinstance(searched, ReasoningPart)
    assert searched.provider["block"] == {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"query": "weather"},
    }
    assert isinstance(found, ReasoningPart)
    assert [first, second] == list(reply.message.tool_uses)
    assert [(use.call_id, use.arguments) for use in reply.message.tool_uses] == [
        ("toolu_1", {"city": "Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich", "days": 2}),
        ("toolu_2", {}),
    ]
    assert "".join(heard) == reply.message.text == "Let me search.It is sunny."
    assert reply.finish_reason == "tool_calls"
    assert reply.usage == Usage(2_712, 89, 2_048, 31, cost_micros=None, cache_write_tokens=192)
    assert reply.model == "anthropic:claude-opus-5-5"


def test_usage_is_what_was_counted_last() -> None:
    """Counts of the end go over those of the beginning; what the beginning says of the output is only its beginning."""
    begun = start(input_tokens=5, cache_read_input_tokens=7, output_tokens=1)
    assert played(begun, said(0, "a"), end(output_tokens=9), STOP).usage == Usage(12, 9, 7, cost_micros=None)
    assert played(begun, said(0, "a"), end(input_tokens=6, output_tokens=9), STOP).usage == Usage(13, 9, 7, cost_micros=None)
    assert played(begun, said(0, "a"), end(), STOP).usage is None


def test_arguments_in_pieces() -> None:
    """Two calls, interleaved; nothing at all means an empty object."""
    reply = played(
        start(),
        block(0, "tool_use", **USE),
        block(1, "tool_use", **USE | {"id": "toolu_2"}),
        piece(0, ""),
        piece(1, '{"x"'),
        piece(0, '{"x":'),
        piece(1, ":2}"),
        piece(0, "1}"),
        block(2, "tool_use", **USE | {"id": "toolu_3"}),
        end("tool_use"),
        STOP,
    )
    assert [use.arguments for use in reply.message.tool_uses] == [{"x": 1}, {"x": 2}, {}]


def test_half_of_a_surrogate_pair_waits_for_the_other() -> None:
    """A character that a server cut in two is heard whole, and stands whole in the reply."""
    heard: list[str] = []
    head = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
    halves = [head + half + '"}}' for half in (r"x\ud83d", r"\ude00y")]
    reply = played(start(), block(0, "text", text=""), *halves, end(), STOP, heard=heard)
    assert heard == ["x", "\N{GRINNING FACE}y"]
    assert reply.message.text == "x\N{GRINNING FACE}y"


@pytest.mark.parametrize(
    "events",
    [[], [start()], [start(), said(0, "Hel")], [start(), block(0, "tool_use", **USE), piece(0, '{"a":1}')]],
    ids=["nothing", "start", "text", "call"],
)
def test_a_stream_without_its_end_is_void(events: list[dict[str, Any]]) -> None:
    """Neither text nor calls of it become a reply."""
    assert play(*events) is None


def test_a_stop_reason_is_an_end_too() -> None:
    """It comes behind all content, so a body that ends there is whole; one that says it is done and says nothing is not."""
    assert played(start(), said(0, "Hi"), end(output_tokens=1)).message.text == "Hi"
    assert played(start(), said(0, "Hi"), STOP).finish_reason == "stop"
    with pytest.raises(ModelResponseError, match="without an answer"):
        play(start(), STOP)


def test_what_a_server_forgets() -> None:
    """A text without its start is a text; arguments without one are of no call, and two blocks in one place are none."""
    heard: list[str] = []
    reply = played(start(), said(0, "Hi"), delta(1, "thinking_delta", thinking="hm"), end(), STOP, heard=heard)
    assert (reply.message.text, heard) == ("Hi", ["Hi"])
    with pytest.raises(ModelResponseError, match="did not name"):
        play(start(), piece(0, "{}"))
    with pytest.raises(ModelResponseError, match="one place"):
        play(start(), block(0, "text", text=""), block(0, "text", text=""))
    with pytest.raises(ModelResponseError, match="without a type"):
        play(start(), {"type": "content_block_start", "index": 0, "content_block": 7})


def test_text_that_comes_with_the_start_is_heard() -> None:
    """Nothing of the reply was not told before."""
    heard: list[str] = []
    reply = played(start(), block(0, "text", text="He"), said(0, "llo"), end(), STOP, heard=heard)
    assert "".join(heard) == reply.message.text == "Hello"


def test_a_delta_that_does_not_fit_its_block_changes_nothing() -> None:
    """No text into a call and no arguments into a text: neither would be told or kept right."""
    heard: list[str] = []
    reply = played(
        start(),
        block(0, "text", text=""),
        block(1, "tool_use", **USE),
        piece(0, "{}"),
        said(1, "x"),
        delta(1, "signature_delta", signature="s"),
        delta(0, "something_new", text="x"),
        said(0, "Hi"),
        end("tool_use"),
        STOP,
        heard=heard,
    )
    assert heard == ["Hi"]
    assert (reply.message.text, reply.message.tool_uses[0].arguments) == ("Hi", {})


def test_what_is_not_an_object_is_no_event() -> None:
    """Broken JSON, arrays and endless nesting are typed errors; strange fields inside an event are passed over."""
    for data in ("{", "[]", "7", "[" * 100_000):
        with pytest.raises(ModelResponseError):
            play(data)
    strange = [
        {"type": "message_start", "message": 7},
        {"type": 7},
        {},
        {"type": "content_block_delta", "index": "x", "delta": 7},
    ]
    assert played(*strange, said(0, "Hi"), end(), STOP).message.text == "Hi"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ModelUnavailableError),
        ("rate_limit_error", ModelRateLimitedError),
        ("api_error", ModelUnavailableError),
    ],
)
def test_an_error_in_the_middle(kind: str, error: type[ModelError]) -> None:
    """It ends the call with the kind of error that it names; whether it was billed nobody knows; its text is not repeated."""
    with pytest.raises(error) as caught:
        play(start(), said(0, "Hel"), {"type": "error", "error": {"type": kind, "message": "secret"}})
    assert caught.value.billed == "unknown"
    assert "secret" not in str(caught.value)
