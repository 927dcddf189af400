"""What a whole response of OpenAI's is read as."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.messages import ReasoningPart, TextPart, message_from_record, message_to_record
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelResponseError, ModelUnavailableError
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.responses.reply import parse_response, read_reply

AUTHOR = "openai:gpt"


def read(*output: dict[str, Any], **fields: Any) -> ModelReply:
    response = {"status": "completed", "output": list(output), **fields}
    return read_reply(json.loads(json.dumps(response)), author=AUTHOR, provider="openai", model="gpt")


def said(*content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": list(content), **fields}


def text(given: str) -> dict[str, Any]:
    return {"type": "output_text", "text": given, "annotations": []}


def called(arguments: object, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c1", "name": "add", "arguments": arguments, **fields}


def test_a_plain_answer() -> None:
    """Text, finish reason, usage with its details, and the model as the provider calls it."""
    usage = {
        "input_tokens": 12,
        "output_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    reply = read(said(text("Hi.")), model="gpt-2026-01-01", usage=usage)
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    assert reply.message.parts == (TextPart("Hi.", {"author": AUTHOR, "item": item}),)
    assert (reply.finish_reason, reply.model) == ("stop", "openai:gpt-2026-01-01")
    assert reply.usage == Usage(12, 7, cached_tokens=4, reasoning_tokens=5, cost_micros=None, cache_write_tokens=2)


@pytest.mark.parametrize("nonsense", [-1, True, 1.5, "12", 10**25])
@pytest.mark.parametrize("place", ["input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens"])
def test_usage_that_is_nonsense_is_unknown(place: str, nonsense: object) -> None:
    """One count that is none makes the whole unknown: what is left would be less than was used."""
    details: dict[str, dict[str, Any]] = {
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 1},
        "output_tokens_details": {"reasoning_tokens": 1},
    }
    usage: dict[str, Any] = {"input_tokens": 12, "output_tokens": 7, **details}
    inner = next((known for known in details.values() if place in known), usage)
    inner[place] = nonsense
    assert read(said(text("Hi.")), usage=usage).usage is None


@pytest.mark.parametrize("usage", [None, {}, "12", {"total_tokens": 3}])
def test_usage_that_is_missing_is_unknown(usage: object) -> None:
    """Unknown is None, never zero."""
    assert read(said(text("Hi.")), usage=usage).usage is None


def test_a_refusal_is_filtered_content() -> None:
    """The text of the refusal is kept, and the reason is the one that a refusal has everywhere."""
    reply = read(said({"type": "refusal", "refusal": "I can't."}))
    assert (reply.message.text, reply.finish_reason) == ("I can't.", "content_filter")


def test_thoughts_are_kept_as_they_came() -> None:
    """The text is the summary or the content; the item beside it is complete, with fields that nobody here knows."""
    item = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}],
        "content": [{"type": "reasoning_text", "text": "Three."}],
        "encrypted_content": "gAA+/==\u2028",
        "status": None,
        "new": {"x": [1, 2.5]},
    }
    reply = read(item, said(text("Hi.")))
    assert reply.message.parts[0] == ReasoningPart("One.\n\nTwo.\n\nThree.", {"author": AUTHOR, "item": item})


def test_items_of_other_features_are_kept_where_they_stood() -> None:
    """A search that the provider made is nothing to show, and goes back with the turn."""
    item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}}
    reply = read(item, said(text("Hi.")))
    assert reply.message.parts[0] == ReasoningPart("", {"author": AUTHOR, "item": item})
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize(
    ("written", "arguments", "raw"),
    [
        ('{"a":1}', {"a": 1}, None),
        ({"a": 1}, {"a": 1}, None),
        ("", {}, None),
        (None, {}, None),
        ('{"a": ', None, '{"a": '),
        ("[1]", None, "[1]"),
        ('{"a": NaN}', None, '{"a": NaN}'),
        ('{"a":' * 80 + "1" + "}" * 80, None, '{"a":' * 80 + "1" + "}" * 80),
    ],
    ids=["text", "object", "empty", "null", "cut", "array", "nan", "deep"],
)
def test_arguments(written: object, arguments: object, raw: str | None) -> None:
    """A JSON object is read, whatever it came as; everything else is kept as the text it was, and can be stored."""
    message = read(called(written, id="fc_1")).message
    (use,) = message.tool_uses
    assert (use.call_id, use.arguments, use.raw_arguments) == ("c1", arguments, raw)
    assert message_from_record(decode(encode(message_to_record(message)))) == message


def test_missing_and_repeated_ids_stay_as_they_are() -> None:
    """An empty `call_id` where the server sent none; telling calls apart is left to the engine."""
    calls = [called("{}", call_id=given) for given in ("x", "x", None, "", 7)]
    reply = read(*calls)
    assert [use.call_id for use in reply.message.tool_uses] == ["x", "x", "", "", ""]
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"output":7}',
        b'{"output":[],"status":"in_progress"}',
        b'{"output":[],"status":"cancelled"}',
        b'{"output":[{"type":"function_call"}]}',
        b'{"choices":[{"message":{"content":"Hi."}}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_response_is_a_response_error(body: bytes) -> None:
    """A typed error that repeats nothing of the body."""
    with pytest.raises(ModelResponseError) as caught:
        read_reply(parse_response(body), author="a", provider="p", model="m")
    assert "html" not in caught.value.message


@pytest.mark.parametrize("body", [{"error": {"code": "server_error", "message": "secret"}}, {"status": "failed"}])
def test_a_failed_response_is_its_error(body: dict[str, Any]) -> None:
    """Under status 200: the code is kept, the text is not, and what was billed is unknown."""
    with pytest.raises(ModelUnavailableError) as caught:
        parse_response(json.dumps(body).encode())
    assert "secret" not in str(caught.value)
    assert caught.value.billed == "unknown"
