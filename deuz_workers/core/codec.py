"""Values to text and back, without loss.

:func:`encode` writes JSON in plain ASCII, which any TEXT column keeps. (Postgres refuses U+0000 and lone surrogates; SQLite
turns NaN into NULL and refuses integers of 65 bits; JSONB does the former and merges keys.) What JSON cannot say is written as
a tagged object, ``{"$deuz": TAG, "v": PAYLOAD}``. A dict of the user's that has a key ``$deuz`` is itself written as tagged
pairs, so that no data can pass for a tag.

Comes back equal and of the same type: None, bool, int of any size, float with NaN, the infinities and -0.0, str with NUL and
lone surrogates, bytes, bytearray, Decimal, datetime, date, time, timedelta, UUID, list, tuple, set, frozenset, and dict with
keys of any of these that can be hashed.

Comes back as something plainer, because reading must never import or run the code of whoever wrote:

* a dataclass or pydantic model as a dict: its fields by name, or what ``model_dump()`` gives;
* an enum member as its value, a path as its string;
* an instance of a subclass as the type it derives from: a named tuple as a tuple, an OrderedDict as a dict;
* a datetime or time in a zone with the same instant and the same offset, without the zone's name and rules.

Everything else is refused with :class:`~deuz_workers.errors.CodecError`, which names the place and the type, never the value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NoReturn

from deuz_workers.core.lowering import MAX_DEPTH, Lowering, Room, is_kept_by_json, type_name
from deuz_workers.core.tagged import BIG, MARK, read_tagged
from deuz_workers.errors import CodecError

_CONSTANTS = frozenset({bool, type(None), float})


def encode(value: object, *, max_bytes: int | None = None) -> str:
    """The text of `value`: ASCII, the same for the same value. Dicts keep their order, sets are sorted.

    Args: `max_bytes`, what the text may take; None for no limit. A value far above it is refused before it is written out.

    Raises: CodecError, for a type that cannot be stored, a value that contains itself or is nested deeper than
    `MAX_DEPTH` (its `fields` are `path` and `type`), or a text above `max_bytes` (`size_bytes` and `limit_bytes`).
    """
    return _write(value, _IN_ORDER, max_bytes)


def canonical(value: object) -> str:
    """Like :func:`encode` with sorted keys: the same text for equal dicts, whatever their order. For digests.

    Raises: CodecError, as :func:`encode` does.
    """
    return _write(value, _SORTED, None)


def digest(value: object) -> str:
    """SHA-256 of :func:`canonical`, as 64 hexadecimal digits.

    Raises: CodecError, as :func:`encode` does.
    """
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


def decode(text: str) -> object:
    """The value that :func:`encode` or :func:`canonical` wrote.

    Raises: CodecError, for anything that they cannot have written.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CodecError(f"a stored value is text, not {type_name(text)}", type=type_name(text))
    try:
        return (_TAGGED if f'"{MARK}"' in text else _PLAIN).decode(text)
    except RecursionError:
        raise CodecError("the stored text is nested too deeply; no codec of this package wrote it") from None
    except ValueError as error:
        # The message of a JSON error tells the position and does not repeat the text.
        raise CodecError(f"the stored text of {len(text)} characters cannot be read: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# Both passes bound the depth themselves, so json need not look for cycles.
_IN_ORDER = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":"))
_SORTED = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
_PLAIN = json.JSONDecoder(parse_constant=_refuse_constant)
_TAGGED = json.JSONDecoder(parse_constant=_refuse_constant, object_hook=read_tagged)


def _write(value: object, encoder: json.JSONEncoder, max_bytes: int | None) -> str:
    try:
        text = _write_plain(value, encoder, Room(max_bytes))
        if text is None:
            text = encoder.encode(Lowering(encoder, Room(max_bytes)).lower(value))
    except RecursionError:
        raise CodecError("the value cannot be written from here: the stack of the caller is almost used up") from None
    except RuntimeError as error:  # "dictionary changed size during iteration"
        raise CodecError("the value changed while it was being written; pass a copy") from error
    Room(max_bytes).check(len(text))
    return text


def _write_plain(value: object, encoder: json.JSONEncoder, room: Room) -> str | None:
    """The text where JSON alone keeps the value, which is nearly always; else None."""
    if not _is_plain([value], 0, room):
        return None
    try:
        return encoder.encode(value)
    except ValueError:  # NaN or an infinity: rare, so left for json to find
        return None


def _is_plain(container: list[Any] | dict[Any, Any], depth: int, room: Room) -> bool:
    """Whether JSON keeps everything in `container`, which is `depth` levels below the whole; non-finite floats aside.

    Exact types decide, because json silently writes a tuple as a list, the key 1 as "1" and an IntEnum as a number. This is
    the cost that every stored value pays, hence one call per container and not per item.
    """
    if depth > MAX_DEPTH:
        return False
    size_bytes = len(container)
    if type(container) is dict:
        if MARK in container:
            return False
        for key in container:
            if type(key) is not str or not (key.isascii() or is_kept_by_json(key)):
                return False
        items: Iterable[Any] = container.values()
    else:
        items = container
    for item in items:
        kind = type(item)
        if kind is str:
            size_bytes += len(item)
            if not (item.isascii() or is_kept_by_json(item)):
                return False
        elif kind is dict or kind is list:
            if not _is_plain(item, depth + 1, room):
                return False
        elif kind is int:
            if not -BIG < item < BIG:
                return False
        elif kind not in _CONSTANTS:
            return False
    room.take(size_bytes)
    return True
