"""A model request as the body of a message of the Anthropic Messages API; pure.

Vendor facts, read 2026-11 from the types of the `anthropic` package 2.14.0 and https://platform.claude.com/docs/en/api/messages
unless another source stands beside them:

* API version 2026-10-21 refuses `temperature`, `top_p` and `top_k`, version 2023-06-01 takes them for models before 4.7
  (https://platform.claude.com/docs/en/api/migration-2026-10-21);
* `max_tokens` is required; `system` stands beside the messages, and models before Opus 4.8 refuse it among them
  (https://platform.claude.com/docs/en/about-claude/models/whats-new-claude-4-8): so all instructions are sent in front;
* consecutive messages of one role are read as one turn, so a question behind tool results needs no merging;
* ids of calls match `[a-zA-Z0-9_-]+` and are unique in the whole request; results stand in the next user turn;
* a text block must hold more than blanks, and a message at least one block;
* `tool_choice` is `auto`, `any`, `tool` or `none`; with thinking only `auto` and `none`
  (https://platform.claude.com/docs/en/build-with-claude/thinking): a forced call is asked for without it;
* thinking blocks go back as they came, signature included, to the model that wrote them; with `budget_tokens` the turn that
  asked for the newest calls must begin with one, else the request is refused (same page): a turn that another model began is
  finished without thinking;
* `output_config.format` takes a schema, see `schema.py`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

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
from deuz_workers.providers.anthropic.schema import strict_schema
from deuz_workers.providers.message_parts import misplaced, only_text
from deuz_workers.providers.pairing import check_pairs

REQUEST = "the Messages API"
"""As messages for people call it."""
OWN_FIELDS = frozenset(
    {"model", "messages", "system", "stream", "tools", "tool_choice", "max_tokens", "thinking", "cache_control"}
)
"""What `extra` may not set: the client's reading of the reply, or a setting of the model, depends on them."""

DEFAULT_MAX_TOKENS = 16_000
"""Sent where neither request nor model says: every model in service takes it (https://platform.claude.com/docs/en/about-claude/models/overview,
read 2026-11: 32,000 and more)."""

ApiVersion = Literal["2026-10-21", "2023-06-01"]
"""Of the header `anthropic-version`, which every request needs (https://platform.claude.com/docs/en/api/versioning)."""
NEWEST_VERSION: ApiVersion = "2026-10-21"

TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
UNREADABLE = "unreadable_arguments"
"""Name under which arguments that were no object are shown to the model that wrote them: the field takes nothing else."""
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one model wants its requests."""

    author: str
    """Who reads the request, a model or a family of them; only thoughts and metadata of that author go back."""
    model: str
    stream: bool = True
    api_version: ApiVersion = NEWEST_VERSION
    max_tokens: int = DEFAULT_MAX_TOKENS
    thinking: Mapping[str, object] | None = None
    """As the API takes it; None: the model's default."""
    cache: bool = False
    """Ask the provider to keep the prefix of the request for five minutes, which is what writing to the cache is priced for."""


def build_body(request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    """The body as plain data.

    Raises: `ModelRequestError`, for calls that are not answered one to one (see `check_pairs`), for parts that have no place in
    a message of that role, for files of a kind and settings that the API does not take, and for `extra` fields that are the
    client's own.
    """
    check_pairs(request.messages)
    if taken := sorted(OWN_FIELDS & request.extra.keys()):
        raise ModelRequestError(f"extra may not set {', '.join(taken)}; use the field of the request or of the model")
    body: dict[str, Any] = {
        "model": dialect.model,
        "max_tokens": dialect.max_tokens if request.max_output_tokens is None else request.max_output_tokens,
    }
    if instructions := "\n\n".join(_instructions(request.messages)):
        body["system"] = instructions
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = {"type": TOOL_CHOICES[request.tool_choice]}
    body["messages"] = _messages(request.messages, dialect)
    if (thinking := _thinking(request, dialect)) is not None:
        body["thinking"] = thinking
    if dialect.cache:
        body["cache_control"] = {"type": "ephemeral"}
    if request.temperature is not None:
        if dialect.api_version == NEWEST_VERSION:
            raise ModelRequestError(
                "the Messages API takes no temperature any more; set none, or api_version='2023-06-01' with a model before 4.7",
                code="unsupported_setting",
            )
        body["temperature"] = request.temperature
    if dialect.stream:
        body["stream"] = True
    body |= dict(request.extra)
    if request.output_format is not None:
        given = body.get("output_config", {})
        if not isinstance(given, Mapping) or "format" in given:
            raise ModelRequestError("extra may not set output_config.format; use the output type of the agent")
        schema = strict_schema(request.output_format.schema)
        config = dict(cast(Mapping[str, Any], given))
        body["output_config"] = config | {"format": {"type": "json_schema", "schema": schema}}
    return body


def _instructions(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.role == "system":
            text = only_text(message, REQUEST)
            if text.strip():
                yield text


def _messages(messages: Sequence[Message], dialect: Dialect) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    wire_ids: dict[str, str] = {}
    used: set[str] = set()
    for message in messages:
        match message.role:
            case "system":
                continue
            case "user":
                content = [block for part in message.parts for block in _user_blocks(part)]
                made.append({"role": "user", "content": content})
            case "assistant":
                wire_ids = _wire_ids(message, used)
                made.append({"role": "assistant", "content": _assistant_blocks(message, wire_ids, dialect)})
            case "tool":
                made.append({"role": "user", "content": [_result(part, wire_ids) for part in message.parts]})
        if not made[-1]["content"]:
            raise ModelRequestError(f"a {message.role} message says nothing, which the API refuses; give it a text")
    return made


def _wire_ids(message: Message, used: set[str]) -> dict[str, str]:
    """What each call is called on the wire: the provider's own id where it is of the right form and new in this request, else
    ours, else one that counts. `used` grows by them; a request that goes on from an earlier one repeats its ids."""
    ids: dict[str, str] = {}
    for use in message.tool_uses:
        wanted = (given for given in (use.provider_call_id, use.call_id) if given and _ID.fullmatch(given))
        chosen = next((given for given in wanted if given not in used), None)
        ids[use.call_id] = chosen or _counted(used)
        used.add(ids[use.call_id])
    return ids


def _counted(used: set[str]) -> str:
    number = len(used) + 1
    while f"call_{number}" in used:
        number += 1
    return f"call_{number}"


def _user_blocks(part: Part) -> Iterator[dict[str, Any]]:
    match part:
        case TextPart(text):
            if text.strip():
                yield {"type": "text", "text": text}
        case ImagePart(media_type):
            yield {"type": "image", "source": _source(part, _kind(media_type))}
        case FilePart():
            yield _document(part)
        case _:
            raise misplaced(part, "user", REQUEST)


def _document(part: FilePart) -> dict[str, Any]:
    """PDF in every form, plain text as data; the API takes no others."""
    kind = _kind(part.media_type)
    named = {"title": part.name} if part.name else {}
    if kind == "text/plain" and part.data is not None:
        text = {"type": "text", "media_type": kind, "data": part.data.decode("utf-8", "replace")}
        return {"type": "document", "source": text, **named}
    if kind == "application/pdf" or part.file_id is not None:
        return {"type": "document", "source": _source(part, kind), **named}
    raise ModelRequestError(
        f"the Messages API takes application/pdf, and text/plain as data; not {kind!r}", code="unsupported_media_type"
    )


def _source(part: ImagePart | FilePart, kind: str) -> dict[str, Any]:
    if part.data is not None:
        return {"type": "base64", "media_type": kind, "data": base64.b64encode(part.data).decode("ascii")}
    if isinstance(part, FilePart) and part.file_id is not None:
        return {"type": "file", "file_id": part.file_id}
    if part.url is None:
        raise ModelRequestError(f"a {type(part).__name__} has neither data nor url; give one of them")
    return {"type": "url", "url": part.url}


def _kind(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def _assistant_blocks(message: Message, wire_ids: Mapping[str, str], dialect: Dialect) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart(text):
                if text.strip():
                    blocks.append({"type": "text", "text": text})
            case ReasoningPart():
                if (block := _thought(part, dialect)) is not None:
                    blocks.append(block)
            case ToolUsePart():
                given = {UNREADABLE: part.raw_arguments or ""} if part.arguments is None else dict(part.arguments)
                blocks.append({"type": "tool_use", "id": wire_ids[part.call_id], "name": part.name, "input": given})
            case _:
                raise misplaced(part, message.role, REQUEST)
    return blocks or [{"type": "text", "text": NOTHING_SAID}]


def _thought(part: ReasoningPart, dialect: Dialect) -> dict[str, Any] | None:
    """The block as it came; None for a thought of another model, or one that nobody signed."""
    provider = part.provider
    if provider.get("author") != dialect.author:
        return None
    if isinstance(signature := provider.get("signature"), str):
        return {"type": "thinking", "thinking": part.text, "signature": signature}
    if isinstance(redacted := provider.get("redacted"), str):
        return {"type": "redacted_thinking", "data": redacted}
    block = provider.get("block")
    return dict(cast(Mapping[str, Any], block)) if isinstance(block, Mapping) else None


def _result(part: Part, wire_ids: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(part, ToolResultPart):
        raise misplaced(part, "tool", REQUEST)
    made: dict[str, Any] = {"type": "tool_result", "tool_use_id": wire_ids[part.call_id], "content": part.text}
    return made | {"is_error": True} if part.is_error else made


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "input_schema": dict(spec.parameters)}


def _thinking(request: ModelRequest, dialect: Dialect) -> Mapping[str, object] | None:
    """The setting, switched off where the API would refuse the request with it."""
    wanted = dialect.thinking
    if wanted is None or wanted.get("type") == "disabled":
        return wanted
    is_forced = bool(request.tools) and request.tool_choice == "required"
    if is_forced or (wanted.get("type") == "enabled" and not _goes_on_thinking(request.messages, dialect)):
        return {"type": "disabled"}
    return wanted


def _goes_on_thinking(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Whether the newest turn with calls, if its results are what the request ends in, begins with a thought of this model."""
    if not messages or messages[-1].role != "tool":
        return True
    turn = next(message for message in reversed(messages) if message.role == "assistant")
    first = next((part for part in turn.parts if not isinstance(part, TextPart) or part.text.strip()), None)
    return isinstance(first, ReasoningPart) and _thought(first, dialect) is not None
