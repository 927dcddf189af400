"""Messages that somebody else made: whether they are messages at all, and what they are once they come back from the store.

A model and a producer are code of the user's. What they hand over is looked at here, before anything is written or paid for
again; nothing is said about content, only about places and types.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, cast

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.lowering import type_name
from deuz_workers.core.messages import (
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    message_from_record,
    message_to_record,
)
from deuz_workers.errors import CodecError

ROLES = ("system", "user", "assistant", "tool")

_FIELDS: Mapping[type, Mapping[str, tuple[type, ...]]] = {
    TextPart: {"text": (str,), "provider": (Mapping,)},
    ImagePart: {"media_type": (str,), "data": (bytes, NoneType), "url": (str, NoneType)},
    FilePart: {
        "media_type": (str,),
        "data": (bytes, NoneType),
        "url": (str, NoneType),
        "name": (str, NoneType),
        "file_id": (str, NoneType),
    },
    ReasoningPart: {"text": (str,), "provider": (Mapping,)},
    ToolUsePart: {
        "call_id": (str,),
        "name": (str,),
        "arguments": (Mapping, NoneType),
        "raw_arguments": (str, NoneType),
        "provider_call_id": (str, NoneType),
        "provider": (Mapping,),
    },
    ToolResultPart: {
        "call_id": (str,),
        "name": (str,),
        "text": (str,),
        "is_error": (bool,),
        "receipt_step": (int, NoneType),
        "provider_call_id": (str, NoneType),
        "outcome": (str, NoneType),
        "reason": (str, NoneType),
    },
}
"""By kind of part: what each field may be."""


def check_message(given: object, *, max_bytes: int | None = None) -> Message:
    """`given`, whose role, parts and fields are of the right types; cheap however long its texts are.

    Raises `CodecError` for anything else, and for texts that alone are longer than `max_bytes`.
    """
    if not isinstance(given, Message):
        raise CodecError(f"it is a {type_name(given)}, not a Message")
    if not isinstance(cast(object, given.role), str) or given.role not in ROLES:
        raise CodecError("its role is none of system, user, assistant and tool")
    parts = cast(object, given.parts)
    if not isinstance(parts, tuple | list):
        raise CodecError(f"its parts are a {type_name(parts)}, not a tuple")
    length = sum(_check_part(place, part) for place, part in enumerate(cast(tuple[object, ...], parts)))
    if max_bytes is not None and length > max_bytes:
        raise CodecError(f"its texts take at least {length} bytes, the limit is {max_bytes}", limit_bytes=max_bytes)
    return given


def stored_form(message: Message, *, max_bytes: int | None = None) -> Message:
    """`message`, which passed `check_message`, as it will be read back: plain data that nobody else holds.

    Raises `CodecError` for what cannot be stored, or takes more than `max_bytes` as text.
    """
    try:
        return message_from_record(decode(encode(message_to_record(message), max_bytes=max_bytes)))
    except CodecError:
        raise
    except Exception as error:  # noqa: BLE001 - mappings and models among the arguments are the user's code
        raise CodecError(f"it cannot be written: {type_name(error)} was raised") from None


def _check_part(place: int, part: object) -> int:
    """Length of its texts."""
    fields = next((fields for kind, fields in _FIELDS.items() if isinstance(part, kind)), None)
    if fields is None:
        raise CodecError(f"part {place} is a {type_name(part)}, which is no part of a message")
    length = 0
    for name, kinds in fields.items():
        value: object = getattr(part, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise CodecError(
                f"{name} of part {place} ({type_name(part).rpartition('.')[2]}) is a {type_name(value)}, not {wanted}"
            )
        if isinstance(value, str | bytes):
            length += len(value)
    if isinstance(part, ToolUsePart) and part.arguments is not None:
        _check_names(place, part.arguments)
    return length


def _check_names(place: int, arguments: Mapping[Any, object]) -> None:
    for name in arguments:
        if not isinstance(name, str):
            raise CodecError(f"arguments of part {place} (ToolUsePart) have a name that is a {type_name(name)}, not str")
