"""What a whole chat completion is read as."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.messages import ReasoningPart, TextPart, message_from_record, message_to_record
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelResponseError, ModelUnavailableError
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.chat.reply import parse_completion, read_reply


def read(message: dict[str, Any], finish_reason: str | None = "stop", **fields: Any) -> ModelReply:
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}], **fields}
    return read_reply(json.loads(json.dumps(completion)), author="openai:gpt", provider="openai", model="gpt")


def called(*functions: dict[str, Any]) -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"id": f"c{n}", "function": given} for n, given in enumerate(functions)]}


def test_a_plain_answer() -> None:
    """Text, finish reason, usage with its details, and the model as the provider calls it."""
    usage = {
        "prompt_tokens": 12,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    reply = read({"content": "Hi."}, model="gpt-2026-01-01", usage=usage)
    assert reply.message.parts == (TextPart("Hi."),)
    assert (reply.finish_reason, reply.model) == ("stop", "openai:gpt-2026-01-01")
    assert reply.usage == Usage(12, 7, cached_tokens=4, reasoning_tokens=5, cost_micros=None, cache_write_tokens=2)


@pytest.mark.parametrize("nonsense", [-1, True, 1.5, 12.0, "12", 10**25, float("nan")])
@pytest.mark.parametrize("place", ["prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"])
def test_usage_that_is_nonsense_is_unknown(place: str, nonsense: object) -> None:
    """One count that is none makes the whole unknown: what is left would be less than was used."""
    details: dict[str, dict[str, Any]] = {
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    usage: dict[str, Any] = {"prompt_tokens": 12, "completion_tokens": 7, **details}
    inner = next((known for known in details.values() if place in known), usage)
    inner[place] = nonsense
    assert read({"content": "Hi."}, usage=usage).usage is None


@pytest.mark.parametrize("usage", [None, {}, "12", {"prompt_tokens": -1}, {"prompt_tokens": True}, {"total_tokens": 3}])
def test_usage_that_is_missing_is_unknown(usage: object) -> None:
    """Unknown is None, never zero."""
    assert read({"content": "Hi."}, usage=usage).usage is None


def test_deepseek_counts_cached_input_under_its_own_name() -> None:
    """`prompt_cache_hit_tokens` is the cached part of the input."""
    usage = read({"content": ""}, usage={"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 8}).usage
    assert usage == Usage(9, 1, cached_tokens=8, cost_micros=None)


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        (None, "stop"),
        ("", "stop"),
        ("eos", "stop"),
        ("insufficient_system_resource", "error"),
        ("error", "error"),
    ],
)
def test_finish_reasons(given: str | None, read_as: str) -> None:
    """Known reasons are mapped, unknown ones mean that the generation broke off."""
    assert read({"content": "x"}, given).finish_reason == read_as


@pytest.mark.parametrize(
    ("given", "read_as"),
    [("stop", "tool_calls"), (None, "tool_calls"), ("length", "length"), ("content_filter", "content_filter")],
)
def test_calls_with_another_finish_reason(given: str | None, read_as: str) -> None:
    """Servers that say `stop` beside calls mean the calls; a cut or filtered turn stays one."""
    assert read(called({"name": "add", "arguments": "{}"}), given).finish_reason == read_as


def test_a_refusal_is_filtered_content() -> None:
    """The text of the refusal is kept, and the reason is the one that a refusal has everywhere."""
    reply = read({"content": None, "refusal": "I can't."})
    assert (reply.message.text, reply.finish_reason) == ("I can't.", "content_filter")


@pytest.mark.parametrize(
    ("written", "arguments", "raw"),
    [
        ('{"a":1}', {"a": 1}, None),
        ({"a": 1}, {"a": 1}, None),
        ("", {}, None),
        (None, {}, None),
        ("  ", {}, None),
        ('{"a": ', None, '{"a": '),
        ("[1]", None, "[1]"),
        ([1], None, "[1]"),
        ('{"a": NaN}', None, '{"a": NaN}'),
        ("{'a': 1}", None, "{'a': 1}"),
        ('{"a":' * 80 + "1" + "}" * 80, None, '{"a":' * 80 + "1" + "}" * 80),
        ('{"a":' + "[" * 5000 + "]" * 5000 + "}", None, '{"a":' + "[" * 5000 + "]" * 5000 + "}"),
        ('{"a":1' + "0" * 5000 + "}", None, '{"a":1' + "0" * 5000 + "}"),
    ],
    ids=[
        "text",
        "object",
        "empty",
        "null",
        "blank",
        "cut",
        "array",
        "array value",
        "nan",
        "python",
        "deep",
        "very deep",
        "huge integer",
    ],
)
def test_arguments(written: object, arguments: object, raw: str | None) -> None:
    """A JSON object is read, whatever it came as; nothing means no arguments; everything else is kept as the text it was.

    What is read can be stored and comes back equal.
    """
    (use,) = read(called({"name": "add", "arguments": written})).message.tool_uses
    assert (use.arguments, use.raw_arguments) == (arguments, raw)
    message = read(called({"name": "add", "arguments": written})).message
    assert message_from_record(decode(encode(message_to_record(message)))) == message


def test_an_unusual_spelling_is_kept_beside_the_arguments() -> None:
    """Blanks and order are kept for the replay, so that the provider's prompt cache finds what it wrote."""
    (spelled, usual) = read(
        called({"name": "a", "arguments": '{"x": 1}'}, {"name": "b", "arguments": '{"x":1}'})
    ).message.tool_uses
    assert (spelled.arguments, spelled.provider) == ({"x": 1}, {"author": "openai:gpt", "arguments": '{"x": 1}'})
    assert usual.provider == {}


def test_missing_and_repeated_ids_stay_as_they_are() -> None:
    """An empty `call_id` where the server sent none; telling calls apart is left to the engine."""
    calls = [{"id": given, "function": {"name": "add"}} for given in ("x", "x", None, "", 7)]
    assert [use.call_id for use in read({"tool_calls": calls}).message.tool_uses] == ["x", "x", "", "", ""]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_are_parts_of_their_own(field: str) -> None:
    """They come before the text and remember the field and the author."""
    reply = read({"content": "Hi.", field: "Hm."})
    assert reply.message.parts == (ReasoningPart("Hm.", {"author": "openai:gpt", "field": field}), TextPart("Hi."))


def test_content_as_a_list_of_parts() -> None:
    """The text parts are joined, others are left out."""
    content = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "H"}, {"type": "text", "text": "i"}, 7]
    assert read({"content": content}).message.text == "Hi"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"message":7}]}',
        b'{"choices":[{"message":{"tool_calls":[{"id":"c"}]}}]}',
        b'{"choices":[{"message":{"tool_calls":[{"function":{"name":""}}]}}]}',
        b'{"choices":[{"message":{"tool_calls":[7]}}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_completion_is_a_response_error(body: bytes) -> None:
    """A typed error that repeats nothing of the body."""
    with pytest.raises(ModelResponseError) as caught:
        read_reply(parse_completion(body), author="a", provider="p", model="m")
    assert "html" not in caught.value.message


def test_an_error_under_status_200() -> None:
    """Gateways report failures in a body of status 200; the code is kept, the text is not."""
    body = b'{"error": {"message": "secret prompt", "type": "server_error", "code": "upstream_failed"}}'
    with pytest.raises(ModelUnavailableError, match="upstream_failed") as caught:
        parse_completion(body)
    assert "secret" not in str(caught.value)
    assert caught.value.billed == "unknown"
