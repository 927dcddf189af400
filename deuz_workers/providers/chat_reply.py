"""A chat completion as a model reply; pure. Streams are assembled to the same shape first, so that one reading serves both.

Vendor facts, read 2026-11:

* usage: `prompt_tokens` and `completion_tokens`, with `cached_tokens` and `reasoning_tokens` in their `_details`
  (https://platform.openai.com/docs/api-reference/chat/object); DeepSeek counts cached input in `prompt_cache_hit_tokens`;
* a refusal stands in `message.refusal` and the finish reason is `stop` (same page);
* thoughts come as `reasoning_content` (DeepSeek, older vLLM), as `reasoning` (vLLM since 0.11,
  https://docs.vllm.ai/en/v0.11.2/features/reasoning_outputs/), or not at all (OpenAI);
* servers answer calls with the finish reason `stop`, without ids, under one id for all, and with arguments as an object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from deuz_workers.core.lowering import MAX_DEPTH
from deuz_workers.core.messages import FinishReason, Message, Part, ReasoningPart, TextPart, ToolUsePart
from deuz_workers.core.usage import MAX_TOKENS, Usage
from deuz_workers.errors import ModelResponseError
from deuz_workers.ports.model import ModelReply
from deuz_workers.providers.chat_errors import reported_failure
from deuz_workers.providers.chat_request import arguments_text

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
    try:
        record: object = json.loads(body)
    except (ValueError, RecursionError):
        raise ModelResponseError("the reply is no JSON") from None
    if not isinstance(record, dict):
        raise ModelResponseError("the reply is no JSON object")
    completion = cast(Mapping[str, Any], record)
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
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else None
    message = _mapping(choice.get("message")) if choice is not None else None
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
    calls = message.get("tool_calls")
    uses = [read_call(call, author) for call in cast(list[Any], calls)] if isinstance(calls, list) else []
    reported = completion.get("model")
    return ModelReply(
        message=Message("assistant", (*parts, *uses)),
        finish_reason=_finish_reason(choice.get("finish_reason"), bool(uses), isinstance(refusal, str) and bool(refusal)),
        usage=read_usage(completion.get("usage")),
        model=f"{provider}:{reported if isinstance(reported, str) and reported else model}",
    )


def read_call(call: object, author: str) -> ToolUsePart:
    """One entry of `tool_calls`. Arguments that are no JSON object are kept as text; missing ones are an empty object."""
    given = _mapping(call)
    function = _mapping(given.get("function")) if given is not None else None
    name = function.get("name") if function is not None else None
    if given is None or function is None or not isinstance(name, str) or not name:
        raise ModelResponseError("the reply has a tool call without a function name")
    call_id = given.get("id")
    provider: dict[str, object] = {}
    written = function.get("arguments")
    arguments = read_arguments(written)
    if arguments is not None and isinstance(written, str) and written != arguments_text(arguments):
        provider["arguments"] = joined(written)
    if given.get("extra_content") is not None and _can_go_back(given["extra_content"]):
        provider["extra_content"] = given["extra_content"]
    return ToolUsePart(
        call_id=joined(call_id) if isinstance(call_id, str) else "",
        name=joined(name),
        arguments=arguments,
        raw_arguments=None if arguments is not None else _raw(written),
        provider={"author": author, **provider} if provider else {},
    )


def read_arguments(written: object) -> dict[str, Any] | None:
    """The arguments as an object; None where they are no JSON object, or one nested too deeply to be stored."""
    if written is None or (isinstance(written, str) and not written.strip()):
        return {}
    if isinstance(written, str):
        try:
            written = json.loads(joined(written), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return None
    if not isinstance(written, dict):
        return None
    arguments = cast(dict[str, Any], written)
    return arguments if _is_at_most(MAX_DEPTH // 2, arguments) else None


def read_usage(usage: object) -> Usage | None:
    """None where the server counted neither input nor output, or one of its counts is nonsense: what is not known must
    not pass for a small one. The cost is left open: the price table knows it."""
    given = _mapping(usage)
    if given is None:
        return None
    of_sent = _mapping(given.get("prompt_tokens_details")) or {}
    of_received = _mapping(given.get("completion_tokens_details")) or {}
    sent, received = given.get("prompt_tokens"), given.get("completion_tokens")
    cached = of_sent.get("cached_tokens")
    if cached is None:
        cached = given.get("prompt_cache_hit_tokens")
    counts = (sent, received, cached, of_received.get("reasoning_tokens"))
    if (sent is None and received is None) or not all(count is None or _is_count(count) for count in counts):
        return None
    return Usage(*(count or 0 for count in counts), cost_micros=None)


def text_of(content: object) -> str:
    """Content is a string; Mistral's reasoning models send a list of typed parts, of which the text is taken."""
    if isinstance(content, list):
        parts = [_mapping(part) or {} for part in cast(list[object], content)]
        return "".join(part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def joined(text: str) -> str:
    """The text with surrogate pairs that arrived in two pieces put together; a lone surrogate stays."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _finish_reason(given: object, has_calls: bool, has_refused: bool) -> FinishReason:
    if has_refused:
        return "content_filter"
    if not isinstance(given, str) or not given:
        return "tool_calls" if has_calls else "stop"
    reason = FINISH_REASONS.get(given, "error")
    return "tool_calls" if reason == "stop" and has_calls else reason


def _raw(written: object) -> str:
    try:
        return joined(written) if isinstance(written, str) else json.dumps(written)
    except RecursionError:
        raise ModelResponseError("the reply has arguments that are nested too deeply to be read") from None


def _is_at_most(levels: int, value: object) -> bool:
    """Whether `value` is nested that deep or less. The codec stores `MAX_DEPTH` levels, and a message has a few of its own."""
    if not isinstance(value, dict | list):
        return True
    items = cast(list[object], list(value.values()) if isinstance(value, dict) else value)
    return levels > 0 and all(_is_at_most(levels - 1, item) for item in items)


def _mapping(value: object) -> Mapping[str, Any] | None:
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKENS


def _can_go_back(extra: object) -> bool:
    """Whether metadata can be stored and sent again; the call is of use without what cannot."""
    try:
        json.dumps(extra, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return _is_at_most(MAX_DEPTH // 2, extra)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
