"""Databases in memory that need no migration."""

from __future__ import annotations

from functools import cache

from deuz_workers.ports.runtime import Clock
from deuz_workers.store.migrations import load_migrations
from deuz_workers.store.sqlite import SqliteDialect
from deuz_workers.store.sqlite_connection import SqliteConnection
from deuz_workers.store.sqlite_schema import apply
from deuz_workers.store.statements import load_statements


@cache
def _migrated() -> SqliteConnection:
    """A database without a row; migrating one takes as long as a tenth of a schedule."""
    connection = SqliteConnection(":memory:", load_statements("sqlite"), synchronous="normal")
    apply(connection, load_migrations("sqlite"))
    return connection


class MigratedSqlite(SqliteDialect):
    """In memory, and with the schema from the beginning. Made on the thread that made the first one of the process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(None, clock=clock)
        self._of_this_process().connection.copy(_migrated())
