"""A model request as the body of Gemini's `generateContent`; pure.

Vendor facts, read 2026-11 from the types of the `google-genai` package 3.6.1 (API version v1) and
https://ai.google.dev/api/generate-content unless another source stands beside them:

* roles are `user` and `model`; instructions stand in `systemInstruction`;
* results of calls are `functionResponse` parts of a `user` content, all those of a turn in one, in the order of the calls
  (https://ai.google.dev/gemini-api/docs/thought-signatures): any other number or order is refused;
* a call has an `id` only if the model sent one, and its result then carries it; without ids, order and name tell them apart;
* `parametersJsonSchema` and `responseJsonSchema` take JSON Schema as it is;
* `functionCallingConfig.mode` is `AUTO`, `ANY` or `NONE`;
* a format together with function declarations is refused by models in service, so a request with one declares no function;
* a `thoughtSignature` goes back in the very part that it came with. Models from Gemini 3 on refuse the request if the first
  call of a turn has none (same page); for calls of another model the documented stand-in is sent.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

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
from deuz_workers.core.pairing import NOTHING_SAID
from deuz_workers.errors import ModelRequestError
from deuz_workers.ports.model import ModelRequest, ToolSpec
from deuz_workers.providers.message_parts import misplaced, only_text
from deuz_workers.providers.pairing import check_pairs

REQUEST = "generateContent"
"""As messages for people call it."""
OWN_FIELDS = frozenset({"contents", "systemInstruction", "tools", "toolConfig"})
OWN_SETTINGS = frozenset({"candidateCount", "responseMimeType", "responseSchema", "responseJsonSchema", "responseFormat"})
"""Of `generationConfig`."""

MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
FOREIGN_SIGNATURE = "skip_thought_signature_validator"
"""In place of the signature of a call that another model made."""

UNREADABLE = "unreadable_arguments"
"""Name under which arguments that were no object are shown to the model that wrote them: the field takes nothing else."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one model wants its requests."""

    author: str
    """Identity of the model that reads the request; only thoughts and signatures that it wrote itself go back to it."""
    model: str
    stream: bool = True
    thinking: Mapping[str, object] | None = None
    """As the API takes it in `thinkingConfig`; None: the model's default."""


def build_body(request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    """The body as plain data.

    Raises: `ModelRequestError`, for calls that are not answered one to one (see `check_pairs`), for parts that have no place in
    a message of that role, and for `extra` fields that are the client's own.
    """
    check_pairs(request.messages)
    extra = dict(request.extra)
    given = extra.pop("generationConfig", {})
    settings = dict(cast(Mapping[str, Any], given)) if isinstance(given, Mapping) else {}
    if taken := sorted((OWN_FIELDS & extra.keys()) | (OWN_SETTINGS & settings.keys())):
        raise ModelRequestError(f"extra may not set {', '.join(taken)}; use the field of the request")
    body: dict[str, Any] = {}
    if instructions := [{"text": text} for text in _instructions(request.messages)]:
        body["systemInstruction"] = {"parts": instructions}
    if request.tools and request.output_format is None:
        body["tools"] = [{"functionDeclarations": [_tool(spec) for spec in request.tools]}]
        if request.tool_choice != "auto":
            body["toolConfig"] = {"functionCallingConfig": {"mode": MODES[request.tool_choice]}}
    body["contents"] = _contents(request.messages, dialect)
    if settings := _settings(request, dialect) | settings:
        body["generationConfig"] = settings
    return body | extra


def _settings(request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if request.max_output_tokens is not None:
        settings["maxOutputTokens"] = request.max_output_tokens
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if dialect.thinking is not None:
        settings["thinkingConfig"] = dict(dialect.thinking)
    if request.output_format is not None:
        settings["responseMimeType"] = "application/json"
        settings["responseJsonSchema"] = dict(request.output_format.schema)
    return settings


def _instructions(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.role == "system" and (text := only_text(message, REQUEST)):
            yield text


def _contents(messages: Sequence[Message], dialect: Dialect) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    calls: dict[str, _Call] = {}
    results: list[ToolResultPart] = []
    for message in messages:
        match message.role:
            case "system":
                continue
            case "user":
                contents.append({"role": "user", "parts": [made for part in message.parts for made in _user_parts(part)]})
            case "assistant":
                calls = _calls(message, dialect)
                contents.append({"role": "model", "parts": _model_parts(message, calls, dialect)})
                results = []
            case "tool":
                results += _results(message)
                # Several messages may answer one turn; what they say stands in one content.
                if len(results) == len(calls):
                    given = {result.call_id: result for result in results}
                    contents.append(
                        {"role": "user", "parts": [_response(call, given[call_id]) for call_id, call in calls.items()]}
                    )
                continue
        if not contents[-1]["parts"]:
            raise ModelRequestError(f"a {message.role} message says nothing, which the API refuses; give it a text")
    return contents


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    wire_id: str | None
    signature: str | None


def _calls(message: Message, dialect: Dialect) -> dict[str, _Call]:
    """By our own id, in order. Ids and signatures are those that the model itself sent; an id that it gave to two calls of the
    turn would let neither be told, so there both go without."""
    own = {use.call_id: use.provider if use.provider.get("author") == dialect.author else None for use in message.tool_uses}
    sent = [provider.get("id") for provider in own.values() if provider is not None]
    calls: dict[str, _Call] = {}
    for place, use in enumerate(message.tool_uses):
        provider = own[use.call_id]
        if provider is None:
            calls[use.call_id] = _Call(use.name, None, FOREIGN_SIGNATURE if place == 0 else None)
            continue
        given, signature = provider.get("id"), provider.get("signature")
        wire_id = given if isinstance(given, str) and sent.count(given) == 1 else None
        calls[use.call_id] = _Call(use.name, wire_id, signature if isinstance(signature, str) else None)
    return calls


def _user_parts(part: Part) -> Iterator[dict[str, Any]]:
    match part:
        case TextPart(text):
            if text:
                yield {"text": text}
        case ImagePart() | FilePart():
            yield _media(part)
        case _:
            raise misplaced(part, "user", REQUEST)


def _media(part: ImagePart | FilePart) -> dict[str, Any]:
    """Bytes in the request, or the address of a file: of one uploaded to the Files API, or of a public one."""
    if part.data is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": base64.b64encode(part.data).decode("ascii")}}
    uri = part.url or (part.file_id if isinstance(part, FilePart) else None)
    if uri is None:
        raise ModelRequestError(f"a {type(part).__name__} has neither data nor url; give one of them")
    return {"fileData": {"mimeType": part.media_type, "fileUri": uri}}


def _model_parts(message: Message, calls: Mapping[str, _Call], dialect: Dialect) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart(text, provider):
                signed = _signed(provider, dialect)
                if text or signed:
                    parts.append({"text": text, **signed})
            case ReasoningPart():
                if (thought := _thought(part, dialect)) is not None:
                    parts.append(thought)
            case ToolUsePart():
                parts.append(_call(part, calls[part.call_id]))
            case _:
                raise misplaced(part, message.role, REQUEST)
    return parts or [{"text": NOTHING_SAID}]


def _thought(part: ReasoningPart, dialect: Dialect) -> dict[str, Any] | None:
    """The part as it came; None for a thought of another model."""
    if part.provider.get("author") != dialect.author:
        return None
    kept = part.provider.get("part")
    if isinstance(kept, Mapping):
        return dict(cast(Mapping[str, Any], kept))
    return {"text": part.text, "thought": True, **_signed(part.provider, dialect)}


def _call(part: ToolUsePart, call: _Call) -> dict[str, Any]:
    made: dict[str, Any] = {} if call.wire_id is None else {"id": call.wire_id}
    made["name"] = part.name
    made["args"] = {UNREADABLE: part.raw_arguments or ""} if part.arguments is None else dict(part.arguments)
    return {"functionCall": made} | ({} if call.signature is None else {"thoughtSignature": call.signature})


def _signed(provider: Mapping[str, object], dialect: Dialect) -> dict[str, str]:
    signature = provider.get("signature") if provider.get("author") == dialect.author else None
    return {"thoughtSignature": signature} if isinstance(signature, str) else {}


def _results(message: Message) -> Iterator[ToolResultPart]:
    for part in message.parts:
        if not isinstance(part, ToolResultPart):
            raise misplaced(part, "tool", REQUEST)
        yield part


def _response(call: _Call, result: ToolResultPart) -> dict[str, Any]:
    made: dict[str, Any] = {} if call.wire_id is None else {"id": call.wire_id}
    return {"functionResponse": made | {"name": call.name, "response": {"error" if result.is_error else "output": result.text}}}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "parametersJsonSchema": dict(spec.parameters)}
