"""An OpenAI response as a model reply; pure. Streams are assembled to the same shape first, so that one reading serves both.

Vendor facts, read 2026-11 from openai-python 3.57 (`openai/types/responses/response.py` and `response_output_item.py`):

* `output` is a list of items: `reasoning`, `message`, `function_call`, and those of tools and features that a caller has to
  turn on. A message has content of type `output_text` or `refusal`;
* `status` is `completed`, `incomplete` with a reason in `incomplete_details`, or `failed` with an `error`; `cancelled`,
  `queued` and `in_progress` belong to responses in the background, which are not asked for;
* usage: `input_tokens` with `cached_tokens` and `cache_write_tokens` in `input_tokens_details`, `output_tokens` with
  `reasoning_tokens` in `output_tokens_details` (`response_usage.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    text_or_none,
)
from deuz_workers.providers.openai_errors import reported_failure

CUT_OFF: Mapping[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""By the reason of an incomplete response. Others (`max_messages`, `steered`) mean that the generation broke off: `error`."""


def parse_response(body: bytes) -> Mapping[str, Any]:
    """The response in a body that came whole.

    Raises: `ModelResponseError`, for a body that is no JSON object; what the provider reports, for one that is an error.
    """
    return checked(parse_object(body))


def checked(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """A response that did not fail. Raises: what the provider reports, with nothing known of what was billed."""
    if response.get("error") or response.get("status") == "failed":
        raise reported_failure(response)
    return response


def read_reply(response: Mapping[str, Any], *, author: str, provider: str, model: str) -> ModelReply:
    """The reply in a response.

    Args: `author`, identity of the model, kept beside its private metadata. `provider`, prefix of the name that prices are
    looked up by. `model`, the name that was asked for, in case the server names none.

    Raises: `ModelResponseError`, for anything that is no response that has ended; nothing of the body is repeated.
    """
    if not isinstance(response.get("output"), list) or response.get("status") not in ("completed", "incomplete", None):
        raise ModelResponseError("the reply has no output of a response that ended; is this a responses endpoint?")
    parts: list[Part] = []
    has_refused = has_cut_call = False
    for item in (found for given in listed(response["output"]) if (found := mapping(given)) is not None):
        match item.get("type"):
            case "message":
                said = _said(item, author)
                has_refused = has_refused or any("is_refusal" in part.provider for part in said)
                parts.extend(said)
            case "function_call":
                has_cut_call = has_cut_call or item.get("status") not in ("completed", None)
                parts.append(_call(item, author))
            case _:
                parts.extend(_kept(item, author))
    has_calls = any(isinstance(part, ToolUsePart) for part in parts)
    reported = text_or_none(response.get("model"))
    return ModelReply(
        message=Message("assistant", tuple(parts)),
        finish_reason=_finish_reason(response, has_calls, has_refused, has_cut_call),
        usage=read_usage(response.get("usage")),
        model=f"{provider}:{reported or model}",
    )


def read_usage(usage: object) -> Usage | None:
    """None where the server counted neither input nor output, or one of its counts is nonsense: what is not known must
    not pass for a small one. The cost is left open: the price table knows it."""
    given = mapping(usage)
    if given is None:
        return None
    of_sent = mapping(given.get("input_tokens_details")) or {}
    of_received = mapping(given.get("output_tokens_details")) or {}
    sent, received = given.get("input_tokens"), given.get("output_tokens")
    cached, written = of_sent.get("cached_tokens"), of_sent.get("cache_write_tokens")
    counts = (sent, received, cached, of_received.get("reasoning_tokens"), written)
    if (sent is None and received is None) or not all(count is None or is_count(count) for count in counts):
        return None
    *counted, written = (count or 0 for count in counts)
    return Usage(*counted, cost_micros=None, cache_write_tokens=written)


def _said(item: Mapping[str, Any], author: str) -> list[TextPart]:
    """A part for each content of the message. What else the item says goes back with the first of them."""
    own: dict[str, object] = {}
    rest = {name: value for name, value in item.items() if name != "content"}
    if can_go_back(rest):
        own = {"author": author, "item": rest}
    parts: list[TextPart] = []
    for content in (found for given in listed(item.get("content")) if (found := mapping(given)) is not None):
        text, refusal = text_or_none(content.get("text")), text_or_none(content.get("refusal"))
        if content.get("type") == "refusal" and refusal is not None:
            parts.append(TextPart(joined(refusal), {**own, "author": author, "is_refusal": True}))
        elif content.get("type") == "output_text" and text is not None:
            parts.append(TextPart(joined(text), own))
        else:
            continue
        own = {}  # an id stands for one item
    return parts


def _call(item: Mapping[str, Any], author: str) -> ToolUsePart:
    """Arguments that are no JSON object are kept as text; missing ones are an empty object."""
    name, call_id, written = text_or_none(item.get("name")), item.get("call_id"), item.get("arguments")
    if name is None:
        raise ModelResponseError("the reply has a tool call without a function name")
    arguments = read_arguments(written)
    own: dict[str, object] = {"author": author}
    rest = {key: value for key, value in item.items() if key not in ("type", "call_id", "name", "arguments")}
    if rest and can_go_back(rest):
        own["item"] = rest
    if arguments is not None and isinstance(written, str) and written != arguments_text(arguments):
        own["arguments"] = joined(written)
    return ToolUsePart(
        call_id=joined(call_id) if isinstance(call_id, str) else "",
        name=joined(name),
        arguments=arguments,
        raw_arguments=None if arguments is not None else raw_arguments(written),
        provider=own if len(own) > 1 else {},
    )


def _kept(item: Mapping[str, Any], author: str) -> list[Part]:
    """A thought, or an item of a feature that this client knows nothing of: it goes back as it came, where it stood."""
    texts = [
        found
        for field in ("summary", "content")
        for piece in listed(item.get(field))
        if (found := text_or_none((mapping(piece) or {}).get("text"))) is not None
    ]
    thought = joined("\n\n".join(texts)) if item.get("type") == "reasoning" else ""
    if can_go_back(item):
        return [ReasoningPart(thought, {"author": author, "item": dict(item)})]
    return [ReasoningPart(thought, {"author": author})] if thought else []


def _finish_reason(response: Mapping[str, Any], has_calls: bool, has_refused: bool, has_cut_call: bool) -> FinishReason:
    if has_refused:
        return "content_filter"
    if response.get("status") == "incomplete":
        reason = (mapping(response.get("incomplete_details")) or {}).get("reason")
        return CUT_OFF.get(reason, "error") if isinstance(reason, str) else "error"
    if has_cut_call:
        return "length"
    return "tool_calls" if has_calls else "stop"
