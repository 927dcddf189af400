"""A message of the Anthropic Messages API as a model reply; pure. Streams are assembled to the same shape first, so that one
reading serves both.

Vendor facts, read 2026-11 from the types of the `anthropic` package 2.14.0 and https://platform.claude.com/docs/en/api/messages:

* content is a list of blocks: `text`, `thinking` with a signature, `redacted_thinking`, `tool_use` with its input as an object,
  and blocks of tools that run at the provider;
* usage: `input_tokens` counts what was neither read from the cache nor written to it; the request was the sum of the three.
  Thoughts are part of `output_tokens`, `output_tokens_details.thinking_tokens` says how many they were;
* a refusal is the stop reason `refusal`, with what was written until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deuz_workers.core.messages import FinishReason, Message, Part, ReasoningPart, TextPart, ToolUsePart
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelResponseError
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.anthropic.errors import reported_failure
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
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
"""Others mean that the turn broke off: `pause_turn`, of tools that run at the provider, asks for a continuation."""


def parse_message(body: bytes) -> Mapping[str, Any]:
    """The message in a body that came whole.

    Raises: `ModelResponseError`, for a body that is no JSON object; what the provider reports, for one that is an error.
    """
    message = parse_object(body)
    if message.get("error") or message.get("type") == "error":
        raise reported_failure(message)
    return message


def read_reply(message: Mapping[str, Any], *, author: str, provider: str, model: str) -> ModelReply:
    """The reply in a message.

    Args: `author`, identity of the model, kept beside its thoughts and signatures. `provider`, prefix of the name that prices
    are looked up by. `model`, the name that was asked for, in case the server names none.

    Raises: `ModelResponseError`, for anything that is not a message with content; nothing of the body is repeated.
    """
    content = message.get("content")
    if not isinstance(content, list):
        raise ModelResponseError("the reply has no content; is this an endpoint of the Messages API?")
    parts = [part for block in listed(content) if (part := read_block(block, author)) is not None]
    has_calls = any(isinstance(part, ToolUsePart) for part in parts)
    return ModelReply(
        message=Message("assistant", tuple(parts)),
        finish_reason=_finish_reason(message.get("stop_reason"), has_calls),
        usage=read_usage(message.get("usage")),
        model=f"{provider}:{text_or_none(message.get('model')) or model}",
    )


def read_block(block: object, author: str) -> Part | None:
    """One block of the content; None for an empty one. A block of a kind unknown here is kept as it came, to go back alike."""
    given = mapping(block)
    if given is None:
        raise ModelResponseError("the reply has a content block that is no object")
    match given.get("type"):
        case "text":
            text = text_or_none(given.get("text"))
            return None if text is None else TextPart(joined(text))
        case "thinking":
            thought, signature = text_or_none(given.get("thinking")), text_or_none(given.get("signature"))
            if thought is None and signature is None:
                return None
            signed = {} if signature is None else {"signature": signature}
            return ReasoningPart(joined(thought or ""), {"author": author, **signed})
        case "redacted_thinking":
            data = text_or_none(given.get("data"))
            return None if data is None else ReasoningPart("", {"author": author, "redacted": data})
        case "tool_use":
            return _call(given)
        case _:
            return ReasoningPart("", {"author": author, "block": dict(given)}) if can_go_back(given) else None


def read_usage(usage: object) -> Usage | None:
    """None where the server did not count both input and output, or one of its counts is nonsense: what is not known must not
    pass for a small one. The cost is left open: the price table knows it."""
    given = mapping(usage)
    if given is None:
        return None
    fresh, received = given.get("input_tokens"), given.get("output_tokens")
    read, written = given.get("cache_read_input_tokens"), given.get("cache_creation_input_tokens")
    thought = (mapping(given.get("output_tokens_details")) or {}).get("thinking_tokens")
    if fresh is None or received is None or not (is_count(fresh) and is_count(received)):
        return None
    if not all(count is None or is_count(count) for count in (read, written, thought)):
        return None
    return Usage(
        fresh + (read or 0) + (written or 0),
        received,
        cached_tokens=read or 0,
        reasoning_tokens=thought or 0,
        cost_micros=None,
        cache_write_tokens=written or 0,
    )


def _call(block: Mapping[str, Any]) -> ToolUsePart:
    name, written = text_or_none(block.get("name")), block.get("input")
    if name is None:
        raise ModelResponseError("the reply has a tool call without a name")
    arguments = read_arguments(written)
    return ToolUsePart(
        call_id=joined(text_or_none(block.get("id")) or ""),
        name=joined(name),
        arguments=arguments,
        raw_arguments=None if arguments is not None else raw_arguments(written),
    )


def _finish_reason(given: object, has_calls: bool) -> FinishReason:
    named = text_or_none(given)
    reason = "stop" if named is None else FINISH_REASONS.get(named, "error")
    return "tool_calls" if reason == "stop" and has_calls else reason
