"""A response of Gemini's `generateContent` as a model reply; pure. Streams are assembled to the same shape first, so that one
reading serves both.

Vendor facts, read 2026-11 from the types of the `google-genai` package 3.6.1 and https://ai.google.dev/api/generate-content:

* content is a list of parts: `text`, with `thought` for a summary of a thought; `functionCall` with its arguments as an object,
  and with an `id` from some models only; each may have a `thoughtSignature`; and parts of tools that run at the provider;
* usage: `promptTokenCount` includes what came from the cache (`cachedContentTokenCount`), `candidatesTokenCount` leaves out
  thoughts (`thoughtsTokenCount`) and `toolUsePromptTokenCount` stands beside the prompt;
* calls end with the finish reason `STOP`; a prompt that was refused has no candidate, and `promptFeedback.blockReason` says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deuz_workers.core.messages import FinishReason, Message, Part, ReasoningPart, TextPart, ToolUsePart
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelResponseError
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.gemini.errors import reported_failure
from deuz_workers.providers.json_body import (
    can_go_back,
    is_count,
    joined,
    listed,
    mapping,
    parse_object,
    raw_arguments,
    read_arguments,
    text_or_none,
)

FINISH_REASONS: Mapping[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "ESCALATION": "content_filter",
    "PUP_LIMITED_DISABLED": "content_filter",
    "MODEL_ARMOR": "content_filter",
}
"""Others (`MALFORMED_FUNCTION_CALL`, `UNEXPECTED_TOOL_CALL`, `OTHER`) mean that the generation broke off: `error`."""

SAYS_NOTHING = frozenset({"text", "thought", "thoughtSignature"})
"""Fields of a part that is no more than a text or a thought, though it may have none."""


def parse_response(body: bytes) -> Mapping[str, Any]:
    """The response in a body that came whole.

    Raises: `ModelResponseError`, for a body that is no JSON object; what the provider reports, for one that is an error.
    """
    response = parse_object(body)
    if response.get("error"):
        raise reported_failure(response)
    return response


def read_reply(response: Mapping[str, Any], *, author: str, provider: str, model: str) -> ModelReply:
    """The reply in a response.

    Args: `author`, identity of the model, kept beside its thoughts and signatures. `provider`, prefix of the name that prices
    are looked up by. `model`, the name that was asked for, in case the server names none.

    Raises: `ModelResponseError`, for anything that has neither a candidate nor a reason why; nothing of the body is repeated.
    """
    candidate = first_candidate(response)
    blocked = text_or_none((mapping(response.get("promptFeedback")) or {}).get("blockReason"))
    if candidate is None and blocked is None:
        raise ModelResponseError("the reply has no candidate; is this an endpoint of generateContent?")
    given = listed((mapping((candidate or {}).get("content")) or {}).get("parts"))
    parts = [part for one in given if (part := read_part(one, author)) is not None]
    has_calls = any(isinstance(part, ToolUsePart) for part in parts)
    reason = "content_filter" if candidate is None else _finish_reason(candidate.get("finishReason"), has_calls)
    return ModelReply(
        message=Message("assistant", tuple(parts)),
        finish_reason=reason,
        usage=read_usage(response.get("usageMetadata")),
        model=f"{provider}:{text_or_none(response.get('modelVersion')) or model}",
    )


def first_candidate(response: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The only one that is asked for."""
    candidates = listed(response.get("candidates"))
    return mapping(candidates[0]) if candidates else None


def read_part(part: object, author: str) -> Part | None:
    """One part of the content; None for an empty one. A part of a kind unknown here is kept as it came, to go back alike."""
    given = mapping(part)
    if given is None:
        raise ModelResponseError("the reply has a part that is no object")
    signature = text_or_none(given.get("thoughtSignature"))
    signed: dict[str, object] = {} if signature is None else {"author": author, "signature": signature}
    if (call := mapping(given.get("functionCall"))) is not None:
        return _call(call, {"author": author, **signed})
    if is_text(given):
        text = joined(text_or_none(given.get("text")) or "")
        if not text and not signed:
            return None
        return ReasoningPart(text, {"author": author, **signed}) if given.get("thought") is True else TextPart(text, signed)
    return ReasoningPart("", {"author": author, "part": dict(given)}) if can_go_back(given) else None


def is_text(part: Mapping[str, Any]) -> bool:
    """A text or a thought, maybe an empty one that carries a signature."""
    return (isinstance(part.get("text"), str) and "functionCall" not in part) or part.keys() <= SAYS_NOTHING


def read_usage(usage: object) -> Usage | None:
    """None where the server did not count the prompt, or one of its counts is nonsense: what is not known must not pass for a
    small one. The cost is left open: the price table knows it."""
    given = mapping(usage)
    if given is None:
        return None
    names = (
        "promptTokenCount",
        "toolUsePromptTokenCount",
        "candidatesTokenCount",
        "thoughtsTokenCount",
        "cachedContentTokenCount",
    )
    counts = [given.get(name) for name in names]
    if counts[0] is None or not all(count is None or is_count(count) for count in counts):
        return None
    prompt, tools, answer, thoughts, cached = (count or 0 for count in counts)
    return Usage(prompt + tools, answer + thoughts, cached_tokens=cached, reasoning_tokens=thoughts, cost_micros=None)


def _call(call: Mapping[str, Any], provider: dict[str, object]) -> ToolUsePart:
    name, written = text_or_none(call.get("name")), call.get("args")
    if name is None:
        raise ModelResponseError("the reply has a function call without a name")
    if call.get("willContinue") or call.get("partialArgs"):
        raise ModelResponseError("the reply has a part of a function call; arguments are wanted whole")
    call_id = text_or_none(call.get("id"))
    arguments = read_arguments(written)
    return ToolUsePart(
        call_id=joined(call_id or ""),
        name=joined(name),
        arguments=arguments,
        raw_arguments=None if arguments is not None else raw_arguments(written),
        provider=provider if call_id is None else {**provider, "id": call_id},
    )


def _finish_reason(given: object, has_calls: bool) -> FinishReason:
    named = text_or_none(given)
    reason = "stop" if named is None else FINISH_REASONS.get(named, "error")
    return "tool_calls" if reason == "stop" and has_calls else reason
