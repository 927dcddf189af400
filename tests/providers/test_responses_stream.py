"""Streams of OpenAI's Responses: put together from finished items, whatever else is said in between."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.messages import ReasoningPart, TextPart
from deuz_workers.core.usage import Usage
from deuz_workers.errors import (
    ModelContextOverflowError,
    ModelError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelStreamBrokenError,
)
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.responses.reply import read_reply
from deuz_workers.providers.responses.stream import ResponseStream
from deuz_workers.providers.sse import ServerEvent
from tests.providers.responses_events import PASSED_OVER, READ, event

THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gA=="}
SAID = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
}
CALL = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x":1}', "status": "completed"}
USED = {"input_tokens": 3, "output_tokens": 2}


def text(piece: str, place: int = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": place, "delta": piece}


def done(place: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def end(kind: str = "completed", **response: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"model": "gpt", "output": [], "usage": USED, **response}}


def play(*events: dict[str, Any] | str, heard: list[str] | None = None) -> ModelReply | None:
    stream = ResponseStream()
    for given in events:
        said = stream.take(ServerEvent("message", given if isinstance(given, str) else json.dumps(given)))
        if heard is not None and said:
            heard.append(said)
    completion = stream.completion()
    return None if completion is None else read_reply(completion, author="a", provider="p", model="m")


def played(*events: dict[str, Any] | str, heard: list[str] | None = None) -> ModelReply:
    reply = play(*events, heard=heard)
    assert reply is not None
    return reply


def test_text_reasoning_calls_and_usage() -> None:
    """Fragments are heard as they come; parts stand in the order of the output, whatever order their items ended in."""
    heard: list[str] = []
    reply = played(text("Hel", 1), text("lo", 1), done(2, CALL), done(1, SAID), done(0, THOUGHT), end(), "[DONE]", heard=heard)
    assert heard == ["Hel", "lo"]
    thought, said, use = reply.message.parts
    assert thought == ReasoningPart("Hm.", {"author": "a", "item": THOUGHT})
    assert isinstance(said, TextPart)
    assert (said.text, reply.message.text, reply.message.tool_uses) == ("Hello", "Hello", (use,))
    assert (reply.finish_reason, reply.usage, reply.model) == ("tool_calls", Usage(3, 2, cost_micros=None), "p:gpt")


def test_every_documented_event_is_read_or_passed_over() -> None:
    """Between two pieces of text, and before the end: the reply is the same as without them, and nothing more is heard."""
    heard: list[str] = []
    others = [event(kind, fields, number) for number, (kind, fields) in enumerate(PASSED_OVER.items())]
    unknown = [{"type": "response.something.new", "item": 7}, {"keepalive": True}]
    whole = played(text("Hel"), text("lo"), done(0, SAID), done(1, CALL), end())
    mixed = played(
        *others, text("Hel"), *others, *unknown, text("lo"), done(0, SAID), *others, done(1, CALL), *others, end(), heard=heard
    )
    assert mixed == whole
    assert heard == ["Hel", "lo"]


def test_the_output_of_the_last_event_counts_where_items_did_not_come_by_themselves() -> None:
    """Servers that send no item events, or empty the last one's output: the reply is whole either way, and nothing twice."""
    by_events = played(done(0, SAID), done(1, CALL), end())
    assert played(end(output=[SAID, CALL])) == by_events
    assert played(done(0, SAID), done(1, CALL), end(output=[SAID, CALL])) == by_events
    assert played(done(1, CALL), end(output=[SAID, CALL])) == by_events


def test_a_stream_that_was_cut_short_on_purpose_keeps_what_was_said() -> None:
    """The limit on output was reached in the middle of a message and a call: the text is kept, the call was never asked for."""
    half = {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"x":'}
    reply = played(text("Hel"), half, end("incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert (reply.message.text, reply.message.tool_uses, reply.finish_reason) == ("Hel", (), "length")
    cut = CALL | {"arguments": '{"x":', "status": "incomplete"}
    reply = played(text("Hel"), end("incomplete", output=[SAID, cut], incomplete_details={"reason": "max_output_tokens"}))
    assert ([use.arguments for use in reply.message.tool_uses], reply.finish_reason) == ([None], "length")


def test_a_call_that_is_not_finished_in_a_response_that_is() -> None:
    """Its arguments may be anything: the turn counts as cut off, so that nothing of it runs."""
    assert played(done(0, CALL | {"status": "incomplete"}), end()).finish_reason == "length"


@pytest.mark.parametrize("reason", ["content_filter", "max_output_tokens", "max_messages", "steered", None, 7])
def test_why_a_response_is_incomplete(reason: object) -> None:
    """Known reasons are mapped, others mean that the generation broke off."""
    expected = {"content_filter": "content_filter", "max_output_tokens": "length"}.get(str(reason), "error")
    assert played(text("x"), end("incomplete", incomplete_details={"reason": reason})).finish_reason == expected


def test_half_of_a_surrogate_pair_waits_for_the_other() -> None:
    """A character that a server cut in two is heard whole."""
    heard: list[str] = []
    halves = [
        '{"type":"response.output_text.delta","output_index":0,"delta":"x\\ud83d"}',
        '{"type":"response.output_text.delta","output_index":0,"delta":"\\ude00y"}',
    ]
    reply = played(*halves, end("incomplete", incomplete_details={"reason": "max_output_tokens"}), heard=heard)
    assert heard == ["x", "\N{GRINNING FACE}y"]
    assert reply.message.text == "x\N{GRINNING FACE}y"


def test_a_stream_without_its_last_event_is_void() -> None:
    """Neither text nor finished calls of it become a reply; `[DONE]` is no end of this protocol."""
    for events in ([], [text("Hel")], [done(0, CALL)], [done(0, SAID), "[DONE]"]):
        assert play(*events) is None


def test_an_end_without_an_answer() -> None:
    """A response that is completed has said something."""
    with pytest.raises(ModelResponseError):
        play(end())
    with pytest.raises(ModelResponseError):
        play({"type": "response.completed"})


@pytest.mark.parametrize("data", ["{", "[]", "7", "[" * 100_000])
def test_what_is_not_an_object_is_no_event(data: str) -> None:
    """Broken JSON, arrays and endless nesting are typed errors."""
    with pytest.raises(ModelResponseError):
        play(data)


def test_strange_fields_are_passed_over() -> None:
    """An event of a known kind with fields of other types says nothing."""
    strange = [
        {"type": "response.output_text.delta", "delta": 7},
        {"type": "response.output_item.done", "item": 7, "output_index": 0},
        {"type": "response.output_item.done", "item": SAID, "output_index": "0"},
        {"type": 7},
    ]
    assert played(*strange, done(0, SAID), end()).message.text == "Hello"


@pytest.mark.spec("WIR-006")
@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (event("response.failed", READ["response.failed"]), ModelStreamBrokenError),
        (event("error", READ["error"]), ModelRateLimitedError),
        ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}, ModelRateLimitedError),
        ({"type": "response.failed", "response": {"error": {"code": "invalid_image_url"}}}, ModelRequestError),
        ({"type": "response.failed", "response": {"error": {"code": "bio_policy"}}}, ModelRequestError),
        ({"type": "response.failed", "response": {"error": {"code": "context_length_exceeded"}}}, ModelContextOverflowError),
        ({"type": "response.failed", "response": None}, ModelStreamBrokenError),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "secret"}}, ModelRequestError),
        ({"error": {"code": 502, "message": "secret"}}, ModelStreamBrokenError),
        (end("completed", error={"code": "server_error", "message": "secret"}), ModelStreamBrokenError),
    ],
)
def test_a_failure_in_the_middle(failed: dict[str, Any], kind: type[ModelError]) -> None:
    """It ends the call with one typed error; whether it was billed nobody knows; its text is not repeated."""
    with pytest.raises(ModelError) as caught:
        play(text("Hel"), failed)
    assert type(caught.value) is kind
    assert caught.value.billed == "unknown"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("has_items", [True, False])
@pytest.mark.parametrize("first", [0, 1, 5])
def test_places_that_a_server_counts_otherwise_double_nothing(first: int, has_items: bool) -> None:
    """Events count from one, the last event from zero: one text and one call, with the events of finished items or without."""
    said = {"type": "response.output_text.delta", "output_index": first, "item_id": "msg_1", "delta": "Hello"}
    items = [{"type": "response.output_item.done", "output_index": first + n, "item": x} for n, x in enumerate((SAID, CALL))]
    end = {"type": "response.completed", "response": {"output": [SAID, CALL], "usage": USED}}
    stream = ResponseStream()
    for record in (said, *(items if has_items else ()), end):
        stream.take(ServerEvent("message", json.dumps(record)))
    completion = stream.completion()
    assert completion is not None
    message = read_reply(completion, author="p:m", provider="p", model="m").message
    assert (message.text, [use.provider_call_id or use.call_id for use in message.tool_uses]) == ("Hello", ["c1"])


def test_a_message_that_is_finished_without_its_content_has_what_was_said() -> None:
    """Nobody hears a text that is not in the reply."""
    hollow = {"type": "response.output_item.done", "output_index": 0, "item": SAID | {"content": []}}
    end = {"type": "response.completed", "response": {"output": [], "usage": USED}}
    stream = ResponseStream()
    heard = "".join(
        stream.take(ServerEvent("message", json.dumps(record))) for record in (text("Hel"), text("lo"), hollow, end)
    )
    completion = stream.completion()
    assert completion is not None
    assert (heard, read_reply(completion, author="p:m", provider="p", model="m").message.text) == ("Hello", "Hello")
