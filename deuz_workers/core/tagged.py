"""How the codec writes one scalar that JSON does not have, and how it reads tagged objects back.

A tagged object is ``{"$deuz": TAG, "v": PAYLOAD}``. The tags are part of every stored row: one may be added, none may change.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

MARK = "$deuz"
PAYLOAD = "v"

BIG = 1 << 2048
"""Integers from here on, in either direction, are written in hexadecimal. Python refuses decimal conversions above a limit of
digits that anybody may lower to 640; this number has 617, and hexadecimal has no limit."""


def tagged(tag: str, payload: object) -> dict[str, object]:
    return {MARK: tag, PAYLOAD: payload}


def _write_int(value: int) -> object:
    number = int.__index__(value)
    return number if -BIG < number < BIG else tagged("int", format(number, "x"))


def _write_float(value: float) -> object:
    number = float.__float__(value)
    return number if math.isfinite(number) else tagged("float", repr(number))


def _write_bytes(tag: str) -> Callable[[bytes | bytearray], object]:
    return lambda value: tagged(tag, base64.b64encode(value).decode("ascii"))


def _write_decimal(value: Decimal) -> object:
    return tagged("decimal", Decimal.__str__(value))


def _check_offset(offset: timedelta | None) -> None:
    if offset is None:
        raise ValueError("its zone gives no offset for it; use a datetime in UTC")
    if offset.microseconds:  # which datetime.fromisoformat does not always read
        raise ValueError("its offset has a fraction of a second; use a datetime in UTC")


def _write_datetime(value: datetime) -> object:
    if value.tzinfo is not None:
        _check_offset(value.utcoffset())
    text = datetime.isoformat(value)
    # Of a datetime in a zone `fold` lives on in the offset.
    lowered = tagged("datetime", text if value.tzinfo is not None or not value.fold else [text, 1])
    if type(value) is not datetime and read_tagged(lowered) != value:
        raise ValueError("it is finer than a microsecond or no moment at all; convert it to a datetime or a string")
    return lowered


def _write_time(value: time) -> object:
    if value.tzinfo is not None:  # of most zones the offset depends on the day, which a time of day does not have
        _check_offset(value.utcoffset())
    text = time.isoformat(value)
    return tagged("time", [text, 1] if value.fold else text)


def _write_date(value: date) -> object:
    return tagged("date", date.isoformat(value))


def _write_timedelta(value: timedelta) -> object:
    return tagged("timedelta", [value.days, value.seconds, value.microseconds])


def _write_uuid(value: UUID) -> object:
    return tagged("uuid", str(value))


WRITERS: Mapping[type, Callable[[Any], object]] = {
    int: _write_int,
    float: _write_float,
    bytes: _write_bytes("bytes"),
    bytearray: _write_bytes("bytearray"),
    Decimal: _write_decimal,
    datetime: _write_datetime,
    date: _write_date,
    time: _write_time,
    timedelta: _write_timedelta,
    UUID: _write_uuid,
}
"""By exact type. A writer also takes instances of subclasses and writes them as its own type; it raises ValueError, saying
what to do instead, where that would lose something."""


def read_tagged(found: dict[str, Any]) -> object:
    """What `found`, an object just read from JSON, stands for: itself unless it carries the mark.

    Raises: ValueError, when it carries the mark and no codec wrote it.
    """
    if MARK not in found:
        return found
    tag = found[MARK]
    reader = READERS.get(tag) if isinstance(tag, str) else None
    if reader is None:
        raise ValueError("unknown tag; a newer deuz_workers wrote it (upgrade), or somebody edited the row")
    try:
        if len(found) != 2:
            raise ValueError("a tagged object has two keys")
        return reader(found[PAYLOAD])
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        raise ValueError(f"what is tagged '{tag}' cannot be read") from None


def _texts(payload: object) -> str:
    """Pieces between which json would have merged two surrogates."""
    return "".join(cast(list[str], payload))


def _float(payload: object) -> float:
    number = float(_str(payload))
    if math.isfinite(number):
        raise ValueError
    return number


def _str(payload: object) -> str:
    if not isinstance(payload, str):
        raise TypeError
    return payload


def _list(payload: object) -> list[Any]:
    if not isinstance(payload, list):
        raise TypeError
    return cast(list[Any], payload)


def _b64(payload: object) -> bytes:
    return base64.b64decode(_str(payload), validate=True)


def _datetime(payload: object) -> datetime:
    if isinstance(payload, str):
        return datetime.fromisoformat(payload)
    text, fold = _list(payload)
    return datetime.fromisoformat(text).replace(fold=fold)


def _time(payload: object) -> time:
    if isinstance(payload, str):
        return time.fromisoformat(payload)
    text, fold = _list(payload)
    return time.fromisoformat(text).replace(fold=fold)


def _timedelta(payload: object) -> timedelta:
    days, seconds, microseconds = _list(payload)
    return timedelta(days, seconds, microseconds)


READERS: Mapping[str, Callable[[object], object]] = {
    "int": lambda payload: int(_str(payload), 16),
    "float": _float,
    "str": _texts,
    "bytes": _b64,
    "bytearray": lambda payload: bytearray(_b64(payload)),
    "decimal": lambda payload: Decimal(_str(payload)),
    "datetime": _datetime,
    "date": lambda payload: date.fromisoformat(_str(payload)),
    "time": _time,
    "timedelta": _timedelta,
    "uuid": lambda payload: UUID(_str(payload)),
    "tuple": lambda payload: tuple(_list(payload)),
    "set": lambda payload: set(_list(payload)),
    "frozenset": lambda payload: frozenset(_list(payload)),
    "dict": lambda payload: dict(_list(payload)),
}
