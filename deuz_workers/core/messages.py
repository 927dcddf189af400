"""Messages: what a model is sent and what it answers.

One provider-neutral shape. Content is a tuple of typed parts; a plain string is the same as one text part. Everything is
immutable: a turn makes a new history and leaves every earlier one as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, cast

from deuz_workers.core.outcomes import CallOutcome
from deuz_workers.errors import CodecError

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "error"]

NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str
    provider: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Opaque metadata of the provider that wrote the part; sent back to it unchanged."""


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image, either as `data` or by `url`."""

    media_type: str
    data: bytes | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class FilePart:
    """A document, such as a PDF: as `data`, by `url`, or by the id that a provider gave it when it was uploaded there.

    Not every wire takes all three; one that cannot say a part refuses the request before it is sent.
    """

    media_type: str
    data: bytes | None = None
    url: str | None = None
    name: str | None = None
    """What the model is told that the file is called; with `data`, wires that want a name and get none make one."""
    file_id: str | None = None
    """Means something to the provider that gave it only."""


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """What the model thought, replayed byte for byte to the provider that wrote it."""

    text: str
    provider: Mapping[str, object] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class ToolUsePart:
    """One call that the model asks for.

    `call_id` is the provider's id where that is unique within the turn, else the engine's own; `provider_call_id` is what
    the provider sent and gets echoed. `arguments` is None when the text was not a JSON object; `raw_arguments` then holds it.
    """

    call_id: str
    name: str
    arguments: Mapping[str, object] | None
    raw_arguments: str | None = None
    provider_call_id: str | None = None
    provider: Mapping[str, object] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    """The answer to one call, as the model reads it.

    `receipt_step`: the text is the plain rendering of the raw value in the call's receipt of that step and is
    stored there only.
    """

    call_id: str
    name: str
    text: str
    is_error: bool = False
    receipt_step: int | None = None
    provider_call_id: str | None = None
    outcome: CallOutcome | None = None
    """How the call ended, where it did not succeed; None in records that do not have the field."""
    reason: str | None = None
    """Of a denial, where one was given."""


Part = TextPart | ImagePart | FilePart | ReasoningPart | ToolUsePart | ToolResultPart


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All text parts joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_uses(self) -> tuple[ToolUsePart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolUsePart))

    @property
    def tool_results(self) -> tuple[ToolResultPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolResultPart))


def message(role: Role, content: str | Iterable[Part]) -> Message:
    """A message whose `content` is a string (one text part) or parts."""
    if isinstance(content, str):
        return Message(role, (TextPart(content),))
    return Message(role, tuple(content))


def system(text: str) -> Message:
    return message("system", text)


def user(content: str | Iterable[Part]) -> Message:
    return message("user", content)


def assistant(content: str | Iterable[Part]) -> Message:
    return message("assistant", content)


def message_to_record(given: Message) -> dict[str, object]:
    """Plain data for the codec: absent fields are left out, the text of a result that its receipt holds too."""
    return {"role": given.role, "parts": [_part_to_record(part) for part in given.parts]}


def message_from_record(record: object) -> Message:
    """The message that `message_to_record` wrote.

    Raises `CodecError` for anything else, since a run store fails closed.
    """
    try:
        assert isinstance(record, dict)
        role = record["role"]
        if role not in ("system", "user", "assistant", "tool"):
            raise CodecError(f"stored message has role {role!r}; known are system, user, assistant and tool")
        return Message(role, tuple(_part_from_record(part) for part in record["parts"]))
    except (AssertionError, KeyError, TypeError, AttributeError) as error:
        raise CodecError(f"stored message is not readable: {type(error).__name__} {error}") from error


def _part_to_record(part: Part) -> dict[str, object]:
    match part:
        case TextPart(text, provider):
            return {"type": "text", "text": text} | _provider(provider)
        case ImagePart(media_type, data, url):
            record: dict[str, object] = {"type": "image", "media_type": media_type}
            if data is not None:
                record["data"] = data
            if url is not None:
                record["url"] = url
            return record
        case FilePart():
            record = {"type": "file", "media_type": part.media_type}
            given = {"data": part.data, "url": part.url, "name": part.name, "file_id": part.file_id}
            return record | {name: value for name, value in given.items() if value is not None}
        case ReasoningPart(text, provider):
            return {"type": "reasoning", "text": text} | _provider(provider)
        case ToolUsePart():
            record = {"type": "tool_use", "call_id": part.call_id, "name": part.name}
            if part.arguments is not None:
                record["arguments"] = dict(part.arguments)
            if part.raw_arguments is not None:
                record["raw_arguments"] = part.raw_arguments
            if part.provider_call_id is not None:
                record["provider_call_id"] = part.provider_call_id
            return record | _provider(part.provider)
        case ToolResultPart():
            record = {"type": "tool_result", "call_id": part.call_id, "name": part.name}
            if part.receipt_step is not None:
                record["receipt_step"] = part.receipt_step
            else:
                record["text"] = part.text
            if part.is_error:
                record["is_error"] = True
            if part.provider_call_id is not None:
                record["provider_call_id"] = part.provider_call_id
            if part.outcome is not None:
                record["outcome"] = part.outcome
            if part.reason is not None:
                record["reason"] = part.reason
            return record


def _provider(provider: Mapping[str, object]) -> dict[str, object]:
    return {"provider": dict(provider)} if provider else {}


def _part_from_record(record: dict[str, object]) -> Part:
    kind = record["type"]
    provider = record.get("provider")
    if provider is None:
        provider = NOTHING
    else:
        assert isinstance(provider, Mapping)
    match kind:
        case "text":
            return TextPart(_text(record["text"]), provider)
        case "image":
            data = record.get("data")
            assert data is None or isinstance(data, bytes)
            return ImagePart(_text(record["media_type"]), data, _optional(record.get("url")))
        case "file":
            data = record.get("data")
            assert data is None or isinstance(data, bytes)
            optional = (_optional(record.get(name)) for name in ("url", "name", "file_id"))
            return FilePart(_text(record["media_type"]), data, *optional)
        case "reasoning":
            return ReasoningPart(_text(record["text"]), provider)
        case "tool_use":
            arguments = record.get("arguments")
            assert arguments is None or isinstance(arguments, Mapping)
            return ToolUsePart(
                _text(record["call_id"]),
                _text(record["name"]),
                arguments,
                _optional(record.get("raw_arguments")),
                _optional(record.get("provider_call_id")),
                provider,
            )
        case "tool_result":
            return ToolResultPart(
                _text(record["call_id"]),
                _text(record["name"]),
                _text(record.get("text", "")),
                record.get("is_error") is True,
                _count(record.get("receipt_step")),
                _optional(record.get("provider_call_id")),
                cast("CallOutcome | None", _optional(record.get("outcome"))),
                _optional(record.get("reason")),
            )
        case _:
            raise CodecError(f"stored message has a part of type {kind!r}, which this version does not know")


def _text(value: object) -> str:
    assert isinstance(value, str)
    return value


def _optional(value: object) -> str | None:
    assert value is None or isinstance(value, str)
    return value


def _count(value: object) -> int | None:
    assert value is None or isinstance(value, int)
    return value
