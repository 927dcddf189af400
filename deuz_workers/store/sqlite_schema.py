"""The schema of a SQLite file: which migrations it has, and applying the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from sqlite3 import complete_statement
from typing import Any

from deuz_workers.store.migrations import Migration
from deuz_workers.store.sqlite_connection import SqliteConnection
from deuz_workers.store.sqlite_transaction import Transaction, Values

_TABLE = """
create table if not exists deuz_schema (
    version       integer not null primary key,
    name          text    not null,
    applied_at_ms integer not null
) strict
"""


def stored_version(connection: SqliteConnection) -> int:
    """Number of the newest applied migration, 0 for a file without our tables."""

    def body(tx: Transaction, params: Values) -> list[dict[str, Any]]:
        return [{"version": _version(tx)}]

    return connection.transact("begin", body, {}, None)[0]["version"]


def apply(connection: SqliteConnection, migrations: Sequence[Migration]) -> tuple[int, ...]:
    """Apply those that are missing in one transaction; another process that comes meanwhile finds the lock taken."""

    def body(tx: Transaction, params: Values) -> list[dict[str, Any]]:
        tx.execute(_TABLE)
        missing = [migration for migration in migrations if migration.number > _version(tx)]
        for migration in missing:
            for statement in _statements(migration.sql):
                tx.execute(statement)
            tx.execute(
                "insert into deuz_schema (version, name, applied_at_ms) values (?, ?, ?)",
                (migration.number, migration.name, tx.now_ms),
            )
        return [{"version": migration.number} for migration in missing]

    return tuple(row["version"] for row in connection.transact("begin immediate", body, {}, None))


def _version(tx: Transaction) -> int:
    if not tx.execute("select 1 from sqlite_master where type = 'table' and name = 'deuz_schema'"):
        return 0
    return tx.execute("select coalesce(max(version), 0) from deuz_schema")[0][0]


def _statements(script: str) -> Iterator[str]:
    """One after the other, since `executescript` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if complete_statement(statement):
            yield statement
            statement = ""
