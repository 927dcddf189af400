"""What messages of the Messages API are read as: whole ones, and the errors in their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.messages import ReasoningPart, TextPart, message_from_record, message_to_record
from deuz_workers.core.usage import Usage
from deuz_workers.errors import (
    ModelAuthenticationError,
    ModelContextOverflowError,
    ModelError,
    ModelNotFoundError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.anthropic.errors import status_failure
from deuz_workers.providers.anthropic.reply import parse_message, read_reply

AUTHOR = "anthropic:claude"


def read(*content: Any, stop_reason: str | None = "end_turn", **fields: Any) -> ModelReply:
    message = {"type": "message", "content": list(content), "stop_reason": stop_reason, **fields}
    return read_reply(json.loads(json.dumps(message)), author=AUTHOR, provider="anthropic", model="claude")


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def called(given: Any, call_id: Any = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "add", "input": given}


def test_a_plain_answer() -> None:
    """Text, stop reason, and the model as the provider calls it."""
    reply = read(text("Hi."), model="claude-opus-5-5-20261101")
    assert reply.message.parts == (TextPart("Hi."),)
    assert (reply.finish_reason, reply.model) == ("stop", "anthropic:claude-opus-5-5-20261101")
    assert read(text("Hi.")).model == "anthropic:claude"


def test_usage_counts_the_whole_request() -> None:
    """What was read from the cache and what was written to it are part of the input; thoughts are part of the output."""
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 20,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 5},
        "service_tier": "standard",
    }
    assert read(usage=usage).usage == Usage(330, 7, 300, 5, cost_micros=None, cache_write_tokens=20)
    assert read(usage={"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": None}).usage == Usage(
        1, 2, cost_micros=None
    )


@pytest.mark.parametrize("nonsense", [-1, True, 1.5, "12", 10**25])
@pytest.mark.parametrize("place", ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"])
def test_usage_that_is_nonsense_is_unknown(place: str, nonsense: object) -> None:
    """One count that is none makes the whole unknown: what is left would be less than was used."""
    assert read(usage={"input_tokens": 1, "output_tokens": 2, place: nonsense}).usage is None


@pytest.mark.parametrize("usage", [None, {}, "12", {"input_tokens": 1}, {"output_tokens": 1}])
def test_usage_that_is_missing_is_unknown(usage: object) -> None:
    """Unknown is None, never zero."""
    assert read(text("Hi."), usage=usage).usage is None


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "error"),
        ("something_new", "error"),
        (None, "stop"),
    ],
)
def test_finish_reasons(given: str | None, read_as: str) -> None:
    """Known reasons are mapped, unknown ones mean that the turn broke off."""
    assert read(text("x"), stop_reason=given).finish_reason == read_as


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ("tool_use", "tool_calls"),
        ("end_turn", "tool_calls"),
        (None, "tool_calls"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
    ],
)
def test_calls_with_any_finish_reason(given: str | None, read_as: str) -> None:
    """An end beside calls means the calls; a cut or refused turn stays one."""
    assert read(called({}), stop_reason=given).finish_reason == read_as


def test_blocks_keep_their_order() -> None:
    """Thoughts between texts and calls stand where they stood."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    reply = read(thought, text("A"), {"type": "redacted_thinking", "data": "Zm9v"}, called({"a": 1}), text("B"), text(""))
    signed = ReasoningPart("Hm.", {"author": AUTHOR, "signature": "s"})
    hidden = ReasoningPart("", {"author": AUTHOR, "redacted": "Zm9v"})
    use = reply.message.tool_uses[0]
    assert reply.message.parts == (signed, TextPart("A"), hidden, use, TextPart("B"))
    assert (use.call_id, use.name, use.arguments, reply.message.text) == ("toolu_1", "add", {"a": 1}, "AB")


@pytest.mark.parametrize(
    ("written", "arguments", "raw"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({}, {}, None),
        (None, {}, None),
        ("", {}, None),
        ('{"a":1}', {"a": 1}, None),
        ('{"a": ', None, '{"a": '),
        ([1], None, "[1]"),
        (json.loads('{"a":' + "[" * 80 + "]" * 80 + "}"), None, '{"a": ' + "[" * 80 + "]" * 80 + "}"),
    ],
    ids=["object", "empty", "null", "no text", "text", "cut", "array", "deep"],
)
def test_arguments(written: object, arguments: object, raw: str | None) -> None:
    """An object is read, whatever it came as; everything else is kept as the text it was. What is read can be stored."""
    message = read(called(written), stop_reason="tool_use").message
    (use,) = message.tool_uses
    assert (use.arguments, use.raw_arguments) == (arguments, raw)
    assert message_from_record(decode(encode(message_to_record(message)))) == message


def test_missing_and_repeated_ids_stay_as_they_are() -> None:
    """An empty `call_id` where the server sent none; telling calls apart is left to the engine."""
    reply = read(*(called({}, given) for given in ("x", "x", None, "", 7)))
    assert [use.call_id for use in reply.message.tool_uses] == ["x", "x", "", "", ""]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"content":7}',
        b'{"content":[7]}',
        b'{"content":[{"type":"tool_use","id":"c"}]}',
        b'{"content":[{"type":"tool_use","name":""}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_a_response_error(body: bytes) -> None:
    """A typed error that repeats nothing of the body."""
    with pytest.raises(ModelResponseError) as caught:
        read_reply(parse_message(body), author="a", provider="p", model="m")
    assert "html" not in caught.value.message


SECRET = "the prompt that nobody may read"


def error(kind: str, message: str = SECRET, **details: Any) -> bytes:
    inner: dict[str, Any] = {"type": kind, "message": message}
    return json.dumps({"type": "error", "error": inner | ({"details": details} if details else {}), "request_id": "r"}).encode()


@pytest.mark.spec("WIR-007")
@pytest.mark.parametrize(
    ("status", "body", "kind", "billed", "retry"),
    [
        (400, error("invalid_request_error"), ModelRequestError, "no", "never"),
        (
            400,
            error("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
            ModelContextOverflowError,
            "no",
            "never",
        ),
        (401, error("authentication_error"), ModelAuthenticationError, "no", "never"),
        (402, error("billing_error"), ModelRequestError, "no", "never"),
        (403, error("permission_error"), ModelAuthenticationError, "no", "never"),
        (404, error("not_found_error"), ModelNotFoundError, "no", "never"),
        (404, b"<html>", ModelRequestError, "no", "never"),
        (408, b"", ModelTimeoutError, "unknown", "later"),
        (409, error("conflict_error"), ModelUnavailableError, "unknown", "later"),
        (413, error("request_too_large"), ModelContextOverflowError, "no", "never"),
        (429, error("rate_limit_error"), ModelRateLimitedError, "no", "later"),
        (500, error("api_error"), ModelUnavailableError, "unknown", "later"),
        (503, b"", ModelUnavailableError, "unknown", "later"),
        (504, error("timeout_error"), ModelUnavailableError, "unknown", "later"),
        (529, error("overloaded_error"), ModelUnavailableError, "unknown", "later"),
        (302, b"", ModelRequestError, "no", "never"),
    ],
)
def test_every_refusal_has_its_error(status: int, body: bytes, kind: type[ModelError], billed: str, retry: str) -> None:
    """One class for each, which says whether it was paid for and whether it may pass; the text is not repeated."""
    failure = status_failure(status, body, host="h", retry_after_ms=1_500)
    assert type(failure) is kind
    assert (failure.billed, failure.retry, failure.fields["status"]) == (billed, retry, status)
    assert failure.retry_after_ms == (1_500 if retry == "later" else None)
    assert SECRET not in str(failure)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("invalid_request_error", "Your credit balance is too low to access the API.")),
        (400, error("invalid_request_error", "You have reached your specified API usage limits.")),
        (402, error("billing_error")),
        (429, error("rate_limit_error", error_code="enforced_spend_limit_reached")),
        (429, error("rate_limit_error", error_code="contract_spend_limit_reached")),
    ],
)
def test_an_empty_account_is_not_waited_for(status: int, body: bytes) -> None:
    """It does not pass by waiting, whatever the status is."""
    failure = status_failure(status, body, host="h", retry_after_ms=None)
    assert (failure.code, failure.retry) == ("insufficient_quota", "never")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("rate_limit_error", ModelRateLimitedError),
        ("overloaded_error", ModelUnavailableError),
        ("timeout_error", ModelTimeoutError),
        ("authentication_error", ModelAuthenticationError),
        ("request_too_large", ModelContextOverflowError),
        ("not_found_error", ModelNotFoundError),
        ("invalid_request_error", ModelRequestError),
        ("api_error", ModelStreamBrokenError),
        ("Secret Prompt", ModelStreamBrokenError),
    ],
)
def test_an_error_under_status_200(given: str, kind: type[ModelError]) -> None:
    """Work had begun, so nobody knows what it cost; the code is kept if it looks like one, the text is not."""
    with pytest.raises(kind) as caught:
        parse_message(error(given))
    assert type(caught.value) is kind
    assert caught.value.billed == "unknown"
    assert not any(word in str(caught.value) for word in (SECRET, "Secret"))
