"""A model request as the body of an OpenAI-compatible chat completion; pure.

Vendor facts, read 2026-11 from https://platform.openai.com/docs/api-reference/chat/create unless another source stands beside
them:

* `max_completion_tokens` replaced `max_tokens`, which OpenAI's reasoning models refuse and which most other servers know alone;
* `stream_options.include_usage` asks for a last chunk with the usage; OpenAI sends none without it;
* `response_format` of type `json_schema` asks for the format; without `strict` any JSON Schema is taken;
* a file is a content part of type `file`, with `file_data` and `filename`, or with the `file_id` of an upload; none by URL
  (openai-python 3.57, `openai/types/chat/chat_completion_content_part_param.py`);
* DeepSeek's thinking mode refuses (400) a later turn whose assistant messages with calls lack their `reasoning_content`
  (https://api-docs.deepseek.com/guides/thinking_mode), while its older models refuse turns that carry one: hence a setting;
* Gemini's OpenAI surface wants `extra_content` of a call (its thought signature) back unchanged
  (https://ai.google.dev/gemini-api/docs/thought-signatures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deuz_workers.core.messages import (
    FilePart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from deuz_workers.errors import ModelRequestError
from deuz_workers.ports.model import ModelRequest, ToolSpec
from deuz_workers.providers.call_ids import wire_ids
from deuz_workers.providers.inline_data import data_url, file_name
from deuz_workers.providers.message_parts import image_url, misplaced, only_text, written_arguments
from deuz_workers.providers.pairing import check_pairs

REQUEST = "a chat completion"
"""As messages for people call it."""
MaxTokensField = Literal["max_completion_tokens", "max_tokens"]

OWN_FIELDS = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice", "n"})
"""What `extra` may not set: the client's reading of the reply depends on them."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server wants its requests."""

    author: str
    """Identity of the model that reads the request; only metadata that it wrote itself goes back to it."""
    model: str
    max_tokens_field: MaxTokensField = "max_completion_tokens"
    stream: bool = True
    stream_usage: bool = True
    replay_reasoning: bool = False
    """Send earlier thoughts back, in the field that they came in."""

    @property
    def asks_for_usage(self) -> bool:
        return self.stream and self.stream_usage


def build_body(request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    """The body as plain data.

    Raises: `ModelRequestError`, for calls that are not answered one to one (see `check_pairs`), for parts that have no place in
    a message of that role, and for `extra` fields that are the client's own.
    """
    check_pairs(request.messages)
    body: dict[str, Any] = {"model": dialect.model, "messages": _messages(request.messages, dialect)}
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = request.tool_choice
    own_fields = OWN_FIELDS
    if request.output_format is not None:
        own_fields |= {"response_format"}
        named = {"name": request.output_format.name, "schema": dict(request.output_format.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if request.max_output_tokens is not None:
        body[dialect.max_tokens_field] = request.max_output_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if dialect.stream:
        body["stream"] = True
        if dialect.asks_for_usage:
            body["stream_options"] = {"include_usage": True}
    if taken := sorted(own_fields & request.extra.keys()):
        raise ModelRequestError(f"extra may not set {', '.join(taken)}; use the field of the request")
    return body | dict(request.extra)


def _messages(messages: Sequence[Message], dialect: Dialect) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    ids: Mapping[str, str] = {}
    for message in messages:
        match message.role:
            case "system":
                made.append({"role": "system", "content": only_text(message, REQUEST)})
            case "user":
                made.append({"role": "user", "content": _user_content(message)})
            case "assistant":
                ids = wire_ids(message)
                made.append(_assistant(message, ids, dialect))
            case "tool":
                made.extend(_result(part, ids) for part in message.parts)
    return made


def _user_content(message: Message) -> str | list[dict[str, Any]]:
    if len(message.parts) == 1 and isinstance(message.parts[0], TextPart):
        return message.parts[0].text
    content: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart(text):
                content.append({"type": "text", "text": text})
            case ImagePart():
                content.append({"type": "image_url", "image_url": {"url": image_url(part)}})
            case FilePart():
                content.append({"type": "file", "file": _file(part)})
            case _:
                raise misplaced(part, message.role, REQUEST)
    return content


def _file(part: FilePart) -> dict[str, Any]:
    if part.file_id is not None:
        return {"file_id": part.file_id}
    if part.data is None:
        raise ModelRequestError("a chat completion takes no file by URL; give its data, or the file_id of an upload")
    return {"filename": file_name(part), "file_data": data_url(part.media_type, part.data)}


def _assistant(message: Message, ids: Mapping[str, str], dialect: Dialect) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": message.text}
    calls: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart():
                pass
            case ReasoningPart(text, provider):
                field = provider.get("field")
                if dialect.replay_reasoning and provider.get("author") == dialect.author and isinstance(field, str):
                    made[field] = made.get(field, "") + text
            case ToolUsePart():
                calls.append(_call(part, ids[part.call_id], dialect))
            case _:
                raise misplaced(part, message.role, REQUEST)
    if calls:
        made["tool_calls"] = calls
        # The API documents null beside calls; an empty string there is refused by some servers.
        made["content"] = message.text or None
    return made


def _call(part: ToolUsePart, wire_id: str, dialect: Dialect) -> dict[str, Any]:
    own = part.provider if part.provider.get("author") == dialect.author else {}
    written = written_arguments(part, own)
    made: dict[str, Any] = {"id": wire_id, "type": "function", "function": {"name": part.name, "arguments": written}}
    if "extra_content" in own:
        made["extra_content"] = own["extra_content"]
    return made


def _result(part: Part, ids: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(part, ToolResultPart):
        raise misplaced(part, "tool", REQUEST)
    return {"role": "tool", "tool_call_id": ids[part.call_id], "content": part.text}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)},
    }
