"""What responses of `generateContent` are read as: whole ones, and the errors in their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.limits import MAX_RETRY_AFTER_MS
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
from deuz_workers.providers.gemini.errors import status_failure
from deuz_workers.providers.gemini.reply import parse_response, read_reply

AUTHOR = "google:gemini"


def read(*parts: Any, finish_reason: str | None = "STOP", **fields: Any) -> ModelReply:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish_reason}
    response = {"candidates": [candidate], **fields}
    return read_reply(json.loads(json.dumps(response)), author=AUTHOR, provider="google", model="gemini")


def called(given: Any, **call: Any) -> dict[str, Any]:
    return {"functionCall": {"name": "add", "args": given, **call}}


def test_a_plain_answer() -> None:
    """Text, finish reason, and the model as the provider calls it."""
    reply = read({"text": "Hi."}, modelVersion="gemini-3.8-flash-002")
    assert reply.message.parts == (TextPart("Hi."),)
    assert (reply.finish_reason, reply.model) == ("stop", "google:gemini-3.8-flash-002")
    assert read({"text": "Hi."}).model == "google:gemini"


def test_usage_counts_the_whole_request() -> None:
    """Input read from the cache is part of the prompt; results of provider's tools are input too, and thoughts are output."""
    usage = {
        "promptTokenCount": 100,
        "toolUsePromptTokenCount": 20,
        "cachedContentTokenCount": 64,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 5,
        "totalTokenCount": 132,
    }
    assert read(usageMetadata=usage).usage == Usage(120, 12, 64, 5, cost_micros=None)
    assert read(usageMetadata={"promptTokenCount": 3, "totalTokenCount": 3}).usage == Usage(3, 0, cost_micros=None)


@pytest.mark.parametrize("nonsense", [-1, True, 1.5, "12", 10**25])
@pytest.mark.parametrize("place", ["promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount"])
def test_usage_that_is_nonsense_is_unknown(place: str, nonsense: object) -> None:
    """One count that is none makes the whole unknown: what is left would be less than was used."""
    assert read(usageMetadata={"promptTokenCount": 1, place: nonsense}).usage is None


@pytest.mark.parametrize("usage", [None, {}, "12", {"candidatesTokenCount": 1}])
def test_usage_that_is_missing_is_unknown(usage: object) -> None:
    """Unknown is None, never zero."""
    assert read({"text": "Hi."}, usageMetadata=usage).usage is None


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("CONTINUATION", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MODEL_ARMOR", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("UNEXPECTED_TOOL_CALL", "error"),
        ("OTHER", "error"),
        ("SOMETHING_NEW", "error"),
        (None, "stop"),
    ],
)
def test_finish_reasons(given: str | None, read_as: str) -> None:
    """Known reasons are mapped, unknown ones mean that the generation broke off."""
    assert read({"text": "x"}, finish_reason=given).finish_reason == read_as


@pytest.mark.parametrize(
    ("given", "read_as"), [("STOP", "tool_calls"), (None, "tool_calls"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter")]
)
def test_calls_with_any_finish_reason(given: str | None, read_as: str) -> None:
    """Calls end with `STOP`; a cut or filtered turn stays one."""
    assert read(called({}), finish_reason=given).finish_reason == read_as


def test_a_prompt_that_was_refused_is_filtered_content() -> None:
    """It has no candidate, but a reason; what it cost is counted all the same."""
    response = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}}
    reply = read_reply(response, author=AUTHOR, provider="google", model="gemini")
    assert (reply.finish_reason, reply.message.parts, reply.usage) == ("content_filter", (), Usage(9, 0, cost_micros=None))


def test_a_filtered_answer_may_have_no_content() -> None:
    """The candidate says why, and nothing else."""
    response = {"candidates": [{"finishReason": "SAFETY", "index": 0}]}
    reply = read_reply(response, author=AUTHOR, provider="google", model="gemini")
    assert (reply.finish_reason, reply.message.parts) == ("content_filter", ())


def test_parts_keep_their_order_and_their_signatures() -> None:
    """Thoughts, texts and calls stand where they stood; an empty text that carries a signature is kept."""
    reply = read(
        {"text": "Hm.", "thought": True},
        {"text": "A", "thoughtSignature": "s1"},
        called({"a": 1}, id="c"),
        {"text": "", "thoughtSignature": "s2"},
        {"text": ""},
        {"text": "B", "partMetadata": {"x": 1}},
    )
    use = reply.message.tool_uses[0]
    assert reply.message.parts == (
        ReasoningPart("Hm.", {"author": AUTHOR}),
        TextPart("A", {"author": AUTHOR, "signature": "s1"}),
        use,
        TextPart("", {"author": AUTHOR, "signature": "s2"}),
        TextPart("B"),
    )
    assert (use.call_id, use.arguments, use.provider) == ("c", {"a": 1}, {"author": AUTHOR, "id": "c"})


@pytest.mark.parametrize(
    ("written", "arguments", "raw"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({}, {}, None),
        (None, {}, None),
        ('{"a": ', None, '{"a": '),
        ([1], None, "[1]"),
        (json.loads('{"a":' + "[" * 80 + "]" * 80 + "}"), None, '{"a": ' + "[" * 80 + "]" * 80 + "}"),
    ],
    ids=["object", "empty", "null", "cut", "array", "deep"],
)
def test_arguments(written: object, arguments: object, raw: str | None) -> None:
    """An object is read; everything else is kept as the text it was. What is read can be stored and comes back equal."""
    message = read(called(written)).message
    (use,) = message.tool_uses
    assert (use.arguments, use.raw_arguments) == (arguments, raw)
    assert message_from_record(decode(encode(message_to_record(message)))) == message


@pytest.mark.parametrize("part", [called({}, willContinue=True), called(None, partialArgs=[{"jsonPath": "$.a"}])])
def test_a_part_of_a_call_is_none(part: dict[str, Any]) -> None:
    """Pieces of arguments, which are not asked for, are refused: no tool runs on them."""
    with pytest.raises(ModelResponseError, match="wanted whole"):
        read(part)


def test_missing_and_repeated_ids_stay_as_they_are() -> None:
    """An empty `call_id` where the model sent none; telling calls apart is left to the engine."""
    reply = read(called({}, id="x"), called({}, id="x"), called({}), called({}, id=7))
    assert [use.call_id for use in reply.message.tool_uses] == ["x", "x", "", ""]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"candidates":[]}',
        b'{"candidates":[7]}',
        b'{"candidates":[{"content":{"parts":[7]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"args":{}}}]}}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_response_is_a_response_error(body: bytes) -> None:
    """A typed error that repeats nothing of the body."""
    with pytest.raises(ModelResponseError) as caught:
        read_reply(parse_response(body), author="a", provider="p", model="m")
    assert "html" not in caught.value.message


SECRET = "the prompt that nobody may read"


def error(code: int, status: str, message: str = SECRET, **detail: str) -> bytes:
    inner: dict[str, Any] = {"code": code, "status": status, "message": message}
    return json.dumps({"error": inner | ({"details": [{"@type": "x"}, detail]} if detail else {})}).encode()


@pytest.mark.spec("WIR-007")
@pytest.mark.parametrize(
    ("status", "body", "kind", "billed", "retry"),
    [
        (400, error(400, "INVALID_ARGUMENT"), ModelRequestError, "no", "never"),
        (400, error(400, "FAILED_PRECONDITION"), ModelRequestError, "no", "never"),
        (400, error(400, "INVALID_ARGUMENT", reason="API_KEY_INVALID"), ModelAuthenticationError, "no", "never"),
        (
            400,
            error(400, "INVALID_ARGUMENT", "The input token count exceeds the maximum number of tokens allowed 1048576."),
            ModelContextOverflowError,
            "no",
            "never",
        ),
        (401, error(401, "UNAUTHENTICATED"), ModelAuthenticationError, "no", "never"),
        (402, b"", ModelRequestError, "no", "never"),
        (403, error(403, "PERMISSION_DENIED"), ModelAuthenticationError, "no", "never"),
        (404, error(404, "NOT_FOUND"), ModelNotFoundError, "no", "never"),
        (404, b"<html>", ModelRequestError, "no", "never"),
        (408, b"", ModelTimeoutError, "unknown", "later"),
        (413, b"", ModelRequestError, "no", "never"),
        (529, b"", ModelUnavailableError, "unknown", "later"),
        (429, error(429, "RESOURCE_EXHAUSTED"), ModelRateLimitedError, "no", "later"),
        (499, error(499, "CANCELLED"), ModelUnavailableError, "unknown", "later"),
        (500, error(500, "INTERNAL"), ModelUnavailableError, "unknown", "later"),
        (503, error(503, "UNAVAILABLE"), ModelUnavailableError, "unknown", "later"),
        (504, error(504, "DEADLINE_EXCEEDED"), ModelUnavailableError, "unknown", "later"),
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
    ("delay", "header_ms", "asked_ms"),
    [
        ("34.074824224s", None, 34_075),
        ("0s", None, 0),
        ("34s", 2_000, 2_000),
        ("999999999s", None, MAX_RETRY_AFTER_MS),
        ("soon", None, None),
        ("-1s", None, None),
        ("1e9s", None, None),
    ],
)
def test_what_the_body_asks_to_wait(delay: str, header_ms: int | None, asked_ms: int | None) -> None:
    """The vendor says it in the body where it sends no header; also in the list that a refused stream answers."""
    body = error(429, "RESOURCE_EXHAUSTED", retryDelay=delay)
    for sent in (body, b"[" + body + b"]"):
        failure = status_failure(429, sent, host="h", retry_after_ms=header_ms)
        assert (failure.retry_after_ms, failure.fields["provider_code"]) == (asked_ms, "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, ModelRateLimitedError),
        ({"code": 503, "status": "UNAVAILABLE"}, ModelUnavailableError),
        ({"code": 500, "status": "INTERNAL"}, ModelStreamBrokenError),
        ({"code": 400, "status": "INVALID_ARGUMENT"}, ModelRequestError),
        ({"code": 404, "status": "NOT_FOUND"}, ModelNotFoundError),
        ({"message": SECRET}, ModelStreamBrokenError),
        (SECRET, ModelStreamBrokenError),
    ],
    ids=str,
)
def test_an_error_under_status_200(given: object, kind: type[ModelError]) -> None:
    """Work had begun, so nobody knows what it cost; the code is kept, the text is not."""
    with pytest.raises(kind) as caught:
        parse_response(json.dumps({"error": given}).encode())
    assert type(caught.value) is kind
    assert caught.value.billed == "unknown"
    assert SECRET not in str(caught.value)
