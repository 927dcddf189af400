"""One transaction on a SQLite connection: named statements with values that SQLite knows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

Values = Mapping[str, Any]
"""Parameters of a statement by name; ids are 16 bytes, True and False are 1 and 0."""


class Refused(Exception):
    """Ends an operation that must write nothing; its transaction is rolled back and `rows` are the answer."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows


class Transaction:
    """Runs statements between BEGIN and COMMIT; whoever made it ends it."""

    __slots__ = ("_execute", "_execute_many", "_statements", "now_ms")

    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, str], now_ms: int | None) -> None:
        """`now_ms`: Unix milliseconds instead of SQLite's clock. The time is read once, here; of a write, under the lock."""
        self._execute = connection.execute
        self._execute_many = connection.executemany
        self._statements = statements
        self.now_ms: int = self._execute(statements["now"], {"now_ms": now_ms}).fetchone()[0]

    def rows(self, name: str, values: Values) -> list[dict[str, Any]]:
        """All rows of a statement, by column; none of one that returns nothing."""
        cursor = self._execute(self._statements[name], values)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def first(self, name: str, values: Values) -> dict[str, Any] | None:
        rows = self.rows(name, values)
        return rows[0] if rows else None

    def columns(self, name: str, values: Values, names: tuple[str, ...]) -> dict[str, list[Any]]:
        """The rows of a statement as one list per column, under these names."""
        rows = self._execute(self._statements[name], values).fetchall()
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in names}

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """A statement that is not a named one."""
        return self._execute(sql, values).fetchall()

    def run(self, name: str, values: Values) -> None:
        self._execute(self._statements[name], values)

    def run_each(self, name: str, many: Iterable[Values]) -> None:
        """Run a statement that returns nothing for every set of values."""
        self._execute_many(self._statements[name], many)


def to_sqlite(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an operation with ids as bytes, also in lists."""
    return {
        name: value.bytes
        if type(value) is UUID
        else [item.bytes for item in value]
        if type(value) is list and value and type(value[0]) is UUID
        else value
        for name, value in params.items()
    }


def from_sqlite(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with ids made of bytes; nothing else is stored as bytes."""
    return {name: UUID(bytes=value) if type(value) is bytes else value for name, value in row.items()}
