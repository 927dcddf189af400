"""What is too much to encode on the event loop, where every other run of the process waits (architecture D8)."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from types import NoneType
from typing import cast

from deuz_workers.core.messages import FilePart, ImagePart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

HEAVY_SIZE = 65_536
"""Characters or bytes of one text."""
HEAVY_ENTRIES = 100
"""Of one collection; what lies deeper is not looked at."""


_TEXTS = (str, bytes, bytearray)
_COLLECTIONS = (list, dict, tuple, set, frozenset)
_SMALL = (bool, int, float, NoneType)


def is_heavy(value: object) -> bool:
    """Encoding this leaves the loop. What is neither a plain value nor a builtin collection may be of any size, and so may
    what only descends from one: its length is code of the user's."""
    kind = type(value)
    if kind in _TEXTS:
        return len(cast(Sized, value)) > HEAVY_SIZE
    if kind in _COLLECTIONS:
        return len(cast(Sized, value)) > HEAVY_ENTRIES
    return kind not in _SMALL


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
            case ImagePart(_, data) | FilePart(_, data):
                total += len(data or b"")
    return total


def _mapping_size(mapping: Mapping[str, object]) -> int:
    if not mapping:
        return 0
    if is_heavy(dict(mapping)) or any(map(is_heavy, mapping.values())):
        return HEAVY_SIZE + 1
    return sum(len(value) for value in mapping.values() if isinstance(value, str))
