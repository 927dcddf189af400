"""Values as a model, a person or a log reads them.

A value is rendered from its stored form, so that a live result and the same result read back from its receipt give the same
text, and a value that cannot be stored cannot be shown either. Nothing is cut off here.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from deuz_workers.core.codec import encode
from deuz_workers.core.tagged import MARK, PAYLOAD

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def render(value: object) -> str:
    """Text of `value`: what :func:`readable` makes a string stands as it is, anything else is JSON in one line.

    JSON keeps every character readable except control characters and lone surrogates, which it escapes, and may contain NaN
    and Infinity. The same value always gives the same text.

    Raises: CodecError, when the value cannot be stored.
    """
    plain = readable(value)
    return plain if isinstance(plain, str) else _json(plain)


def readable(value: object) -> object:
    """`value` in JSON's own types.

    Decimals, UUIDs, dates, times and datetimes (ISO 8601), durations (ISO 8601) and paths become strings; bytes their text
    where they are UTF-8, else a data URL; tuples and sets lists, sets sorted; dataclasses and pydantic models objects; enum
    members their values; integers of more than 616 digits hexadecimal. A dict whose keys would fall together becomes a list
    of pairs.

    Raises: CodecError, when the value cannot be stored.
    """
    if type(value) is str:  # most results, and some of them long
        return value
    text = encode(value)
    return json.loads(text, object_hook=_untag if f'"{MARK}"' in text else None)


def _json(plain: object) -> str:
    text = json.dumps(plain, ensure_ascii=False, separators=(", ", ": "))
    if text.isascii():
        return text
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _untag(found: dict[str, Any]) -> object:
    """Called for inner objects first, so a payload is readable already."""
    return READABLE[found[MARK]](found[PAYLOAD]) if MARK in found else found


def _bytes(payload: str) -> str:
    try:
        return base64.b64decode(payload).decode()
    except UnicodeDecodeError:
        return f"data:application/octet-stream;base64,{payload}"


def _moment(payload: str | list[Any]) -> str:
    return payload if isinstance(payload, str) else cast(str, payload[0])  # [text, fold]


def _duration(payload: list[int]) -> str:
    days, seconds, micros = payload
    total_micros = (days * 86_400 + seconds) * 1_000_000 + micros
    days, rest = divmod(abs(total_micros), 86_400_000_000)
    hours, rest = divmod(rest, 3_600_000_000)
    minutes, rest = divmod(rest, 60_000_000)
    seconds, micros = divmod(rest, 1_000_000)
    fraction = f".{micros:06}".rstrip("0") if micros else ""
    date = f"{days}D" if days else ""
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    time += f"{seconds}{fraction}S" if seconds or micros or not (date or time) else ""
    return ("-" if total_micros < 0 else "") + "P" + date + ("T" + time if time else "")


def _sorted(members: list[Any]) -> list[Any]:
    """Numbers by size and strings by code point; of mixed members the order of their stored text is as good as any."""
    if all(isinstance(member, str) for member in members):
        return sorted(members)
    if all(isinstance(member, int | float) and not math.isnan(member) for member in members):
        return sorted(members)
    return members


def _pairs(pairs: list[list[Any]]) -> object:
    named = {_key(key): item for key, item in pairs}
    return named if len(named) == len(pairs) else pairs


def _key(key: object) -> str:
    return key if isinstance(key, str) else _json(key)


READABLE: Mapping[str, Callable[[Any], object]] = {
    "int": lambda payload: f"-0x{payload[1:]}" if payload.startswith("-") else f"0x{payload}",
    "float": float,
    "str": "".join,
    "bytes": _bytes,
    "bytearray": _bytes,
    "decimal": str,
    "datetime": _moment,
    "date": str,
    "time": _moment,
    "timedelta": _duration,
    "uuid": str,
    "tuple": list,
    "set": _sorted,
    "frozenset": _sorted,
    "dict": _pairs,
}
"""By the codec's tag: the readable form of a payload."""
