"""A model request as the body of an OpenAI response; pure.

Vendor facts, read 2026-11 from the request types of openai-python 3.57 (`openai/types/responses/`, generated from OpenAI's
OpenAPI document; https://platform.openai.com/docs/api-reference/responses/create):

* a conversation is a flat list of items, `input`: messages, `reasoning`, `function_call` and `function_call_output`, the last
  two paired by `call_id` over the whole list (`response_input_item_param.py`);
* `store` defaults to true, which keeps every reply at OpenAI for 30 days; false is sent unless `extra` says otherwise, and
  `include: ["reasoning.encrypted_content"]` asks for thoughts that can be sent back all the same (`response_create_params.py`).
  Models that do not reason used to refuse that include, and other servers do not know it: hence a setting;
* reasoning items belong into later requests as they came (`response_reasoning_item_param.py`); one that nothing of its turn
  follows is refused with a 400 ("provided without its required following item"), so it is left out;
* `phase` of an assistant message is to be sent back (`response_output_message_param.py`);
* functions are strict unless `strict` is false, which takes any JSON Schema (`function_tool_param.py`);
* `text.format` of type `json_schema` asks for the format (`response_format_text_json_schema_config_param.py`);
* images and files are `input_image` and `input_file`, by URL, as a data URL, or by the id of an upload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from deuz_workers.providers.call_ids import ConversationIds
from deuz_workers.providers.inline_data import data_url, file_name
from deuz_workers.providers.json_body import mapping
from deuz_workers.providers.message_parts import image_url, misplaced, only_text, written_arguments
from deuz_workers.providers.pairing import check_pairs

REQUEST = "a response"
"""As messages for people call it."""
OWN_FIELDS = frozenset(
    {"model", "input", "stream", "tools", "tool_choice", "background", "conversation", "previous_response_id"}
)
"""What `extra` may not set: the client's reading of the reply, or the meaning of the history, depends on them."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server wants its requests."""

    author: str
    """Identity of the model that reads the request; only items that it wrote itself go back to it as they came."""
    model: str
    stream: bool = True
    encrypted_reasoning: bool = True
    """Ask for thoughts in a form that can be sent back without their being stored at the provider."""


def build_body(request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    """The body as plain data.

    Raises: `ModelRequestError`, for calls that are not answered one to one (see `check_pairs`), for parts that have no place in
    a message of that role, and for `extra` fields that are the client's own.
    """
    check_pairs(request.messages)
    if taken := sorted(OWN_FIELDS & request.extra.keys()):
        raise ModelRequestError(f"extra may not set {', '.join(taken)}; use the field of the request")
    body: dict[str, Any] = {"model": dialect.model, "input": _items(request.messages, dialect.author), "store": False}
    if dialect.encrypted_reasoning:
        body["include"] = ["reasoning.encrypted_content"]
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = request.tool_choice
    if request.max_output_tokens is not None:
        body["max_output_tokens"] = request.max_output_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if dialect.stream:
        body["stream"] = True
    body |= dict(request.extra)
    if request.output_format is not None:
        # `text` has other settings too, such as `verbosity`.
        given = mapping(body.get("text")) or {}
        if "format" in given:
            raise ModelRequestError("extra may not set text.format of a typed answer; the agent's output type does")
        asked = {"name": request.output_format.name, "schema": dict(request.output_format.schema), "strict": False}
        body["text"] = {**given, "format": {"type": "json_schema", **asked}}
    return body


def _items(messages: Sequence[Message], author: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    ids = ConversationIds()
    for message in messages:
        match message.role:
            case "system":
                items.append({"role": "system", "content": only_text(message, REQUEST)})
            case "user":
                items.append({"role": "user", "content": _user_content(message)})
            case "assistant":
                ids.next_turn(message)
                items.extend(_assistant(message, ids, author))
            case "tool":
                items.extend(_result(part, ids) for part in message.parts)
    return items


def _user_content(message: Message) -> str | list[dict[str, Any]]:
    if len(message.parts) == 1 and isinstance(message.parts[0], TextPart):
        return message.parts[0].text
    content: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart(text):
                content.append({"type": "input_text", "text": text})
            case ImagePart():
                content.append({"type": "input_image", "detail": "auto", "image_url": image_url(part)})
            case FilePart():
                content.append({"type": "input_file", **_file(part)})
            case _:
                raise misplaced(part, message.role, REQUEST)
    return content


def _file(part: FilePart) -> dict[str, Any]:
    if part.file_id is not None:
        return {"file_id": part.file_id}
    named = {} if part.name is None else {"filename": part.name}
    if part.data is not None:
        return {"filename": file_name(part), "file_data": data_url(part.media_type, part.data)}
    if part.url is None:
        raise ModelRequestError("a file has neither data nor url nor file_id; give one of them")
    return {**named, "file_url": part.url}


def _assistant(message: Message, ids: ConversationIds, author: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    kept = 0
    """Items up to the last one that is no thought."""
    for part in message.parts:
        match part:
            case ReasoningPart(_, provider):
                item = mapping(provider.get("item"))
                if item is not None and provider.get("author") == author:
                    items.append(dict(item))
                continue
            case TextPart(text, provider):
                items.append(_said(text, provider if provider.get("author") == author else {}))
            case ToolUsePart():
                items.append(_call(part, ids[part.call_id], author))
            case _:
                raise misplaced(part, message.role, REQUEST)
        kept = len(items)
    # A turn that said nothing took place all the same.
    return items[:kept] or [{"role": "assistant", "content": ""}]


def _said(text: str, own: Mapping[str, object]) -> dict[str, Any]:
    """Text of this model's goes back as the item that it came in, with id and phase; any other is told as a message."""
    item = mapping(own.get("item"))
    if item is None:
        return {"role": "assistant", "content": text}
    content = {"type": "refusal", "refusal": text} if own.get("is_refusal") is True else _output_text(text)
    return {**item, "content": [content]}


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _call(part: ToolUsePart, wire_id: str, author: str) -> dict[str, Any]:
    own = part.provider if part.provider.get("author") == author else {}
    written = written_arguments(part, own)
    item = mapping(own.get("item")) or {}
    return {**item, "type": "function_call", "call_id": wire_id, "name": part.name, "arguments": written}


def _result(part: Part, ids: ConversationIds) -> dict[str, Any]:
    if not isinstance(part, ToolResultPart):
        raise misplaced(part, "tool", REQUEST)
    return {"type": "function_call_output", "call_id": ids[part.call_id], "output": part.text}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    described = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", **described, "strict": False}
