"""A chat completion as a model reply; pure. Streams are assembled to the same shape first, so that one reading serves both.

Vendor facts, read 2026-11:

* usage: `prompt_tokens` and `completion_tokens`, with `cached_tokens`, `cache_write_tokens` (openai-python 3.57,
  `completion_usage.py`) and `reasoning_tokens` in their `_details`
  (https://platform.openai.com/docs/api-reference/chat/object); DeepSeek counts cached input in `prompt_cache_hit_tokens`;
* a refusal stands in `message.refusal` and the finish reason is `stop` (same page);
* thoughts come as `reasoning_content` (DeepSeek, older vLLM), as `reasoning` (vLLM since 0.11,
  https://docs.vllm.ai/en/v0.11.2/features/reasoning_outputs/), or not at all (OpenAI);
* servers answer calls with the finish reason `stop`, without ids, under one id for all, and with arguments as an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from deuz_workers.core.messages import FinishReason, Message, Part, ReasoningPart, TextPart, ToolUsePart
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ModelResponseError
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.json_body import (
    arguments_text,
    can_go_back,
    is_count,
    joined,
    listed,
    mapping,
    parse_object,
    raw_arguments,
    read_arguments,
)
from deuz_workers.providers.openai_errors import reported_failure

REASONING_FIELDS = ("reasoning_content", "reasoning")

FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
"""Others (`error`, DeepSeek's `insufficient_system_resource`) mean that the generation broke off: `error`."""


def parse_completion(body: bytes) -> Mapping[str, Any]:
    """The completion in a body that came whole.

    Raises: `ModelResponseError`, for a body that is no JSON object; what the provider reports, for one that is an error.
    """
    completion = parse_object(body)
    if completion.get("error"):
        raise reported_failure(completion)
    return completion


def read_reply(completion: Mapping[str, Any], *, author: str, provider: str, model: str) -> ModelReply:
    """The reply in a completion.

    Args: `author`, identity of the model, kept beside its private metadata. `provider`, prefix of the name that prices are
    looked up by. `model`, the name that was asked for, in case the server names none.

    Raises: `ModelResponseError`, for anything that is not a completion with one message; nothing of the body is repeated.
    """
    choices = completion.get("choices")
    choice = mapping(choices[0]) if isinstance(choices, list) and choices else None
    message = mapping(choice.get("message")) if choice is not None else None
    if choice is None or message is None:
        raise ModelResponseError("the reply has no choice with a message; is this a chat completions endpoint?")
    parts: list[Part] = []
    for field in REASONING_FIELDS:
        thought = message.get(field)
        if isinstance(thought, str) and thought:
            parts.append(ReasoningPart(joined(thought), {"author": author, "field": field}))
            break
    refusal = message.get("refusal")
    for said in (text_of(message.get("content")), refusal):
        if isinstance(said, str) and said:
            parts.append(TextPart(joined(said)))
    uses = [read_call(call, author) for call in listed(message.get("tool_calls"))]
    reported = completion.get("model")
    return ModelReply(
        message=Message("assistant", (*parts, *uses)),
        finish_reason=_finish_reason(choice.get("finish_reason"), bool(uses), isinstance(refusal, str) and bool(refusal)),
        usage=read_usage(completion.get("usage")),
        model=f"{provider}:{reported if isinstance(reported, str) and reported else model}",
    )


def read_call(call: object, author: str) -> ToolUsePart:
    """One entry of `tool_calls`. Arguments that are no JSON object are kept as text; missing ones are an empty object."""
    given = mapping(call)
    function = mapping(given.get("function")) if given is not None else None
    name = function.get("name") if function is not None else None
    if given is None or function is None or not isinstance(name, str) or not name:
        raise ModelResponseError("the reply has a tool call without a function name")
    call_id = given.get("id")
    provider: dict[str, object] = {}
    written = function.get("arguments")
    arguments = read_arguments(written)
    if arguments is not None and isinstance(written, str) and written != arguments_text(arguments):
        provider["arguments"] = joined(written)
    if given.get("extra_content") is not None and can_go_back(given["extra_content"]):
        provider["extra_content"] = given["extra_content"]
    return ToolUsePart(
        call_id=joined(call_id) if isinstance(call_id, str) else "",
        name=joined(name),
        arguments=arguments,
        raw_arguments=None if arguments is not None else raw_arguments(written),
        provider={"author": author, **provider} if provider else {},
    )


def read_usage(usage: object) -> Usage | None:
    """None where the server counted neither input nor output, or one of its counts is nonsense: what is not known must
    not pass for a small one. The cost is left open: the price table knows it."""
    given = mapping(usage)
    if given is None:
        return None
    of_sent = mapping(given.get("prompt_tokens_details")) or {}
    of_received = mapping(given.get("completion_tokens_details")) or {}
    sent, received = given.get("prompt_tokens"), given.get("completion_tokens")
    cached = of_sent.get("cached_tokens")
    if cached is None:
        cached = given.get("prompt_cache_hit_tokens")
    counts = (sent, received, cached, of_received.get("reasoning_tokens"), of_sent.get("cache_write_tokens"))
    if (sent is None and received is None) or not all(count is None or is_count(count) for count in counts):
        return None
    *counted, written = (count or 0 for count in counts)
    return Usage(*counted, cost_micros=None, cache_write_tokens=written)


def text_of(content: object) -> str:
    """Content is a string; Mistral's reasoning models send a list of typed parts, of which the text is taken."""
    if isinstance(content, list):
        parts = [mapping(part) or {} for part in cast(list[object], content)]
        return "".join(part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def _finish_reason(given: object, has_calls: bool, has_refused: bool) -> FinishReason:
    if has_refused:
        return "content_filter"
    if not isinstance(given, str) or not given:
        return "tool_calls" if has_calls else "stop"
    reason = FINISH_REASONS.get(given, "error")
    return "tool_calls" if reason == "stop" and has_calls else reason
