"""Streams: events cut anywhere, calls put together from fragments of every kind of server."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deuz_workers.core.messages import ReasoningPart, TextPart
from deuz_workers.core.usage import Usage
from deuz_workers.errors import (
    ModelError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelUnavailableError,
)
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.chat.reply import read_reply
from deuz_workers.providers.chat.stream import ChatStream
from deuz_workers.providers.sse import EventReader, ServerEvent

STREAM = b"".join(
    (
        b"\xef\xbb\xbf: hello\n\n",
        b'event: chunk\r\ndata: {"a":\r\ndata: 1}\r\n\r\n',
        b"id: 7\rdata:\xf0\x9f\x98\x80\r\r",
        b"retry: 9\n\ndata\n\n",
    )
)
EVENTS = [ServerEvent("chunk", '{"a":\n1}'), ServerEvent("message", "\N{GRINNING FACE}"), ServerEvent("message", "")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_do_not_depend_on_where_the_bytes_were_cut(places: list[int]) -> None:
    """Line ends of all three kinds, a byte order mark, comments, characters of several bytes: cut anywhere, read the same."""
    reader = EventReader()
    cuts = [0, *sorted(places), len(STREAM)]
    events = [event for start, end in itertools.pairwise(cuts) for event in reader.feed(STREAM[start:end])]
    assert events == EVENTS


def test_an_event_without_an_end_is_discarded() -> None:
    """The stream ended in its middle: nobody sees it."""
    assert EventReader().feed(b'data: {"a":1}\n') == []


def test_bytes_that_are_not_utf8_are_not_guessed() -> None:
    """A line that is not UTF-8 is an error."""
    with pytest.raises(UnicodeDecodeError):
        EventReader().feed(b"data: \xff\n\n")


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"model": "gpt", "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def calls(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return delta(tool_calls=list(entries), **fields)


def entry(
    index: int | None = None, call_id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": call_id, "function": {key: value for key, value in function.items() if value is not None}}


def play(*chunks: dict[str, Any] | str, heard: list[str] | None = None) -> ModelReply | None:
    stream = ChatStream()
    for chunk in chunks:
        text = stream.take(ServerEvent("message", chunk if isinstance(chunk, str) else json.dumps(chunk)))
        if heard is not None and text:
            heard.append(text)
    completion = stream.completion()
    return None if completion is None else read_reply(completion, author="a", provider="p", model="m")


def played(*chunks: dict[str, Any] | str, heard: list[str] | None = None) -> ModelReply:
    reply = play(*chunks, heard=heard)
    assert reply is not None
    return reply


def test_text_reasoning_and_usage() -> None:
    """Fragments are heard as they come and joined in the reply; the usage comes last, in a chunk without choices."""
    heard: list[str] = []
    reply = played(
        delta(role="assistant", content=""),
        delta(reasoning_content="H", reasoning="H"),
        delta(reasoning_content="m", reasoning="m"),
        delta(content="Hel"),
        delta(content=None),
        delta(content="lo"),
        delta("stop"),
        {"choices": None, "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        "[DONE]",
        heard=heard,
    )
    assert heard == ["Hel", "lo"]
    assert reply.message.parts == (ReasoningPart("Hm", {"author": "a", "field": "reasoning_content"}), TextPart("Hello"))
    assert (reply.finish_reason, reply.usage, reply.model) == ("stop", Usage(3, 2, cost_micros=None), "p:gpt")


def test_the_newest_of_several_usages_counts() -> None:
    """Servers that count in every chunk have the total in the last one."""
    first, last = ({"prompt_tokens": 3, "completion_tokens": n} for n in (1, 2))
    assert played(delta(content="a") | {"usage": first}, delta("stop") | {"usage": last}, "[DONE]").usage == Usage(
        3, 2, cost_micros=None
    )


def test_half_of_a_surrogate_pair_waits_for_the_other() -> None:
    """A character that a server cut in two is heard whole, and stands whole in the reply and in arguments."""
    heard: list[str] = []
    reply = played(
        '{"choices":[{"delta":{"content":"x\\ud83d"}}]}',
        '{"choices":[{"delta":{"content":"\\ude00y"}}]}',
        calls(entry(0, "c", "add", '{"a":"\ud83d')),
        calls(entry(0, arguments='\ude00"}')),
        delta("stop"),
        "[DONE]",
        heard=heard,
    )
    assert heard == ["x", "\N{GRINNING FACE}y"]
    assert reply.message.text == "x\N{GRINNING FACE}y"
    assert reply.message.tool_uses[0].arguments == {"a": "\N{GRINNING FACE}"}


def test_a_refusal_is_heard_behind_the_text() -> None:
    """Where it stands in the reply, once, whether the stream has a finish reason or only an end."""
    for ending in ((delta("stop"), delta("stop"), "[DONE]"), ("[DONE]",)):
        heard: list[str] = []
        reply = played(delta(refusal="I "), delta(content="Well."), delta(refusal="can't."), *ending, heard=heard)
        assert heard == ["Well.", "I can't."]
        assert (reply.message.text, reply.finish_reason) == ("Well.I can't.", "content_filter")


ONE, TWO = '{"x":1}', '{"x":2}'
SERVERS = {
    "OpenAI: an index per call, interleaved": [
        calls(entry(0, "a", "f", "")),
        calls(entry(1, "b", "f", "")),
        calls(entry(0, arguments='{"x":'), entry(1, arguments='{"x":')),
        calls(entry(1, arguments="2}"), entry(0, arguments="1}")),
    ],
    "index 0 for all, whole calls, ids differ": [calls(entry(0, "a", "f", ONE)), calls(entry(0, "b", "f", TWO))],
    "index 0 for all, in fragments, ids differ": [
        calls(entry(0, "a", "f", "")),
        calls(entry(0, arguments=ONE)),
        calls(entry(0, "b", "f", "")),
        calls(entry(0, arguments='{"x"')),
        calls(entry(0, arguments=":2}")),
    ],
    "index 0 for all, no ids": [calls(entry(0, None, "f", ONE)), calls(entry(0, None, "f", TWO))],
    "no index, whole calls in one chunk": [calls(entry(None, "a", "f", ONE), entry(None, "b", "f", TWO))],
    "no index, no ids, whole calls in one chunk": [calls(entry(None, None, "f", ONE), entry(None, None, "f", TWO))],
    "no index, in fragments": [
        calls(entry(None, "a", "f", "")),
        calls(entry(None, None, None, ONE)),
        calls(entry(None, "b", "f", '{"x":')),
        calls(entry(None, None, None, "2}")),
    ],
    "id and name in every fragment": [
        calls(entry(0, "a", "f", '{"x":')),
        calls(entry(0, "a", "f", "1}")),
        calls(entry(0, "a", "f", "")),
        calls(entry(1, "b", "f", TWO)),
    ],
    "arguments as objects": [calls(entry(0, "a", "f", {"x": 1})), calls(entry(1, "b", "f", {"x": 2}))],
    "one id for both": [calls(entry(0, "a", "f", ONE)), calls(entry(1, "a", "f", TWO))],
}


@pytest.mark.parametrize("chunks", SERVERS.values(), ids=SERVERS.keys())
def test_two_calls_stay_two(chunks: list[dict[str, Any]]) -> None:
    """However a server numbers, names and cuts its calls, two calls arrive with the arguments of their own."""
    reply = played(*chunks, delta("tool_calls"), "[DONE]")
    assert [(use.name, use.arguments) for use in reply.message.tool_uses] == [("f", {"x": 1}), ("f", {"x": 2})]


def test_a_call_without_arguments() -> None:
    """Nothing at all means an empty object."""
    assert played(calls(entry(0, "a", "f")), delta("tool_calls"), "[DONE]").message.tool_uses[0].arguments == {}


def test_a_stream_without_finish_reason_or_done_is_void() -> None:
    """Neither text nor calls of it become a reply."""
    assert play(delta(content="Hel")) is None
    assert play(calls(entry(0, "a", "f", ONE))) is None
    assert play() is None


def test_done_without_a_finish_reason() -> None:
    """Whole calls and text count; a call whose arguments are no object was cut, and nothing at all is no answer."""
    assert played(delta(content="Hi"), "[DONE]").finish_reason == "stop"
    assert played(calls(entry(0, "a", "f", ONE)), "[DONE]").finish_reason == "tool_calls"
    for chunks in ([calls(entry(0, "a", "f", '{"x":'))], [calls(entry(0, "a", "f"))], []):
        with pytest.raises(ModelResponseError):
            play(*chunks, "[DONE]")


def test_what_is_not_an_object_is_no_chunk() -> None:
    """Broken JSON, arrays and endless nesting are typed errors; strange fields inside a chunk are passed over."""
    for data in ("{", "[]", "7", "[" * 100_000):
        with pytest.raises(ModelResponseError):
            play(data)
    strange = [{"choices": 7}, {"choices": [7]}, {"choices": [{"delta": 7}]}, delta(content=7, tool_calls=[7], refusal=7)]
    assert played(*strange, delta(content="Hi"), delta("stop")).message.text == "Hi"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "rate_limit_exceeded"}, ModelRateLimitedError),
        ({"code": 429}, ModelRateLimitedError),
        ({"type": "server_error"}, ModelUnavailableError),
        ({"code": 502, "message": "secret"}, ModelUnavailableError),
        ("secret", ModelUnavailableError),
        ({"type": "invalid_request_error"}, ModelRequestError),
        ({"code": 400}, ModelRequestError),
    ],
)
def test_an_error_in_the_middle(error: object, kind: type[ModelError]) -> None:
    """It ends the call with the kind of error that it names; whether it was billed nobody knows; its text is not repeated."""
    with pytest.raises(kind) as caught:
        play(delta(content="Hel"), {"error": error})
    assert caught.value.billed == "unknown"
    assert "secret" not in str(caught.value)
