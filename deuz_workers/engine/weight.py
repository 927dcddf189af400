"""What is too much to encode on the event loop, where every other run of the process waits (architecture D8)."""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.core.messages import ImagePart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

HEAVY_SIZE = 65_536
"""Characters or bytes of one text."""
HEAVY_ENTRIES = 100
"""Of one collection; what lies deeper is not looked at."""


def is_heavy(value: object) -> bool:
    """Encoding this leaves the loop. What is neither a plain value nor a builtin collection may be of any size."""
    match value:
        case str() | bytes() | bytearray():
            return len(value) > HEAVY_SIZE
        case list() | dict() | tuple() | set() | frozenset():
            return len(value) > HEAVY_ENTRIES
        case bool() | int() | float() | None:
            return False
        case _:
            return True


def message_size(message: Message) -> int:
    """Characters and bytes of the message; of arguments and metadata only what lies on top, see `is_heavy`."""
    total = 0
    for part in message.parts:
        match part:
            case TextPart(text, provider) | ReasoningPart(text, provider):
                total += len(text) + _mapping_size(provider)
            case ToolUsePart():
                total += len(part.raw_arguments or "") + _mapping_size(part.arguments or {}) + _mapping_size(part.provider)
            case ToolResultPart():
                total += len(part.text)
            case ImagePart(_, data):
                total += len(data or b"")
    return total


def _mapping_size(mapping: Mapping[str, object]) -> int:
    if not mapping:
        return 0
    if is_heavy(dict(mapping)) or any(map(is_heavy, mapping.values())):
        return HEAVY_SIZE + 1
    return sum(len(value) for value in mapping.values() if isinstance(value, str))
