"""Parameters to Postgres as text of unknown type.

Every parameter of a statement has a cast, so the server knows its type. psycopg would choose types by value (int2, int4, int8,
none for an empty list), and prepare one statement for every combination.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg.adapt import AdaptersMap, Dumper


class _Untyped(Dumper):
    oid = 0


class _Int(_Untyped):
    def dump(self, obj: int) -> bytes:
        return str(obj).encode()


class _Bool(_Untyped):
    def dump(self, obj: bool) -> bytes:
        return b"t" if obj else b"f"


class _Text(_Untyped):
    def dump(self, obj: str) -> bytes:
        return _text(obj).encode()


class _Uuid(_Untyped):
    def dump(self, obj: UUID) -> bytes:
        return obj.hex.encode()


class _List(_Untyped):
    def dump(self, obj: list[Any]) -> bytes:
        return ("{" + ",".join(map(_element, obj)) + "}").encode()


class _Nul(ValueError):
    pass


def _text(value: str) -> str:
    if "\x00" in value:
        raise _Nul  # the server would end the text there
    return value


def unstorable(error: ValueError) -> str:
    """What was in the text that could not be written."""
    return "U+0000" if isinstance(error, _Nul) else "a lone surrogate"


def _element(value: object) -> str:
    if isinstance(value, str):
        return '"' + _text(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    if value is None:
        return "NULL"
    return value.hex if isinstance(value, UUID) else str(value)


def register_dumpers(adapters: AdaptersMap) -> None:
    """Make `adapters`, a connection's or a cursor's, write neutral values this way."""
    for kind, dumper in ((int, _Int), (bool, _Bool), (str, _Text), (UUID, _Uuid), (list, _List)):
        adapters.register_dumper(kind, dumper)
