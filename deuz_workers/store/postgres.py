"""The Postgres dialect: one statement is one operation, in autocommit and read committed.

Connections are made at the first use in a process and event loop, so after a fork, at most four of them, and none is held
between operations. No session state is used but prepared statements, so a transaction pooler may stand between;
``DEUZ_DB_PREPARE=off`` is for poolers that do not pass prepared statements on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, LiteralString, NoReturn, cast

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from deuz_workers.errors import ConfigurationError, MigrationMissingError, StoreError, StoreRefusedError, StoreUnavailableError
from deuz_workers.store.dialect import AnswerLost, Clash, Contended, Outrun, Row
from deuz_workers.store.migrations import Migration, check_known
from deuz_workers.store.postgres_errors import place_of, unreachable
from deuz_workers.store.postgres_statements import Statement, postgres_statements
from deuz_workers.store.postgres_values import register_dumpers, unstorable

MAX_CONNECTIONS = 4
"""Per process: operations are short, and a hundred processes share the database."""

CONNECT_TIMEOUT_S = 2.0
"""For a connection of the pool, and for one attempt to make it. An operation is offered again by the store."""

PREPARE_AFTER = 2
"""Uses of a statement on one connection before it is prepared."""

MIGRATION_LOCK = 0x6465757A
"""Key of the advisory lock of a migrating transaction ("deuz")."""

_MISSING = frozenset({"42P01", "42703", "3F000"})
_CONTENDED = frozenset({"55P03", "57014"})
_OUTRUN = frozenset({"40001", "40P01"})
_AWAY = frozenset({"57P03", "25006", "53300"})

_Loop = asyncio.AbstractEventLoop


class _Connection(psycopg.AsyncConnection[Any]):
    """Keeps a cursor for every statement: how parameters are written and what columns are called is found out once.

    A cursor holds its last result until the statement is used again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cursors: dict[bytes, psycopg.AsyncCursor[Row]] = {}

    async def fetch(self, statement: Statement, params: Mapping[str, object]) -> Sequence[Row]:
        cursor = self._cursors.get(statement.sql)
        if cursor is None:
            cursor = self._cursors[statement.sql] = psycopg.AsyncRawCursor(self, row_factory=_same_columns())
        return await _execute(cursor, statement, params)


_Pool = AsyncConnectionPool[_Connection]


class PostgresDialect:
    """Named statements of `sql/postgres` on a pool."""

    name = "postgres"

    def __init__(self, url: str, *, max_connections: int | None = None, prepare: bool | None = None) -> None:
        """`max_connections`: per process and event loop; None: `MAX_CONNECTIONS`. `prepare` None reads ``DEUZ_DB_PREPARE``."""
        self._url = url
        self.place = place_of(url)
        """Database and server, without account and options."""
        self._max_connections = max_connections or MAX_CONNECTIONS
        if prepare is None:
            prepare = os.environ.get("DEUZ_DB_PREPARE", "on").lower() not in ("off", "0", "false", "no")
        self._prepare_threshold = PREPARE_AFTER if prepare else None
        self._statements = postgres_statements()
        self._pools: dict[tuple[int, _Loop], _Pool] = {}

    @property
    def lease_url(self) -> str:
        """The same database."""
        return self._url

    async def fetch(self, operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Row]:
        statement = self._statements[operation]
        try:
            if connection is not None:
                return await _fetch_on(connection, statement, params)
            pool = await self._pool()
            task = asyncio.current_task()
            cancels = task.cancelling() if task is not None else 0
            pooled = await pool.getconn()
            try:
                if task is not None and task.cancelling() > cancels:
                    # Before Python 3.12 `asyncio.wait_for`, by which the pool hands out connections, loses a cancellation that
                    # comes together with the connection: a step that was told to end would go on.
                    raise asyncio.CancelledError
                return await pooled.fetch(statement, params)
            finally:
                await pool.putconn(pooled)
        except PoolTimeout:
            raise await self._why_not() from None
        except psycopg.Error as error:
            _translate(operation, error)
        except ValueError as error:
            raise StoreError(f"'{operation}' was given text with {unstorable(error)}, which Postgres cannot store") from None

    async def schema_version(self) -> int:
        try:
            async with await self._direct() as connection:
                return await _version(connection)
        except psycopg.Error as error:
            self._translate_direct(error)

    async def migrate(self, migrations: Sequence[Migration]) -> tuple[int, ...]:
        try:
            async with await self._direct() as connection, connection.transaction():
                await connection.execute("select pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
                await connection.execute(_SCHEMA_TABLE)
                version = await _version(connection)
                check_known(version, migrations)
                missing = migrations[version:]
                for migration in missing:
                    await connection.execute(cast(LiteralString, migration.sql))
                    await connection.execute(
                        "insert into deuz_schema (version, name) values (%s, %s)", [migration.number, migration.name]
                    )
                await connection.execute(_GENERIC_PLANS)
                return tuple(migration.number for migration in missing)
        except psycopg.Error as error:
            self._translate_direct(error)

    async def close(self) -> None:
        """Closes the connections of this process and event loop; others belong to whoever made them."""
        pool = self._pools.pop((os.getpid(), asyncio.get_running_loop()), None)
        if pool is not None:
            await pool.close()

    async def _pool(self) -> _Pool:
        key = (os.getpid(), asyncio.get_running_loop())
        pool = self._pools.get(key)
        if pool is None:
            # A pool that a fork inherited stays where it is: closing it would end the parent's sessions.
            pool = self._pools[key] = _Pool(
                self._url,
                connection_class=_Connection,
                kwargs={
                    "autocommit": True,
                    "prepare_threshold": self._prepare_threshold,
                    "connect_timeout": round(CONNECT_TIMEOUT_S),
                    "application_name": "deuz_workers",
                },
                min_size=0,
                max_size=self._max_connections,
                timeout=CONNECT_TIMEOUT_S,
                reconnect_timeout=CONNECT_TIMEOUT_S,
                configure=_configure,
                name="deuz_workers",
                open=False,
            )
            await pool.open()
        return pool

    async def _direct(self) -> psycopg.AsyncConnection[Any]:
        try:
            return await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, connect_timeout=round(CONNECT_TIMEOUT_S), prepare_threshold=None
            )
        except UnicodeError:  # of the resolver, for a name with an empty or a very long part
            raise StoreRefusedError(
                f"no connection to {self.place}: that is no name of a host; correct database_url (DEUZ_DATABASE_URL)"
            ) from None

    def _translate_direct(self, error: psycopg.Error) -> NoReturn:
        if error.sqlstate is None:
            raise unreachable(error, self.place) from None
        _translate("migrate", error)

    async def _why_not(self) -> StoreUnavailableError:
        """Why the pool could make no connection, which it does not tell."""
        try:
            await (await self._direct()).close()
        except psycopg.OperationalError as error:
            return unreachable(error, self.place)
        return StoreUnavailableError(f"no connection to {self.place} was free within {CONNECT_TIMEOUT_S:g} s")


async def _configure(connection: psycopg.AsyncConnection[Any]) -> None:
    register_dumpers(connection.adapters)


def _same_columns() -> Callable[[psycopg.AsyncCursor[Any]], Callable[[Sequence[Any]], Row]]:
    """`dict_row` for a cursor of one statement, whose columns have the same names every time."""
    make: list[Callable[[Sequence[Any]], Row]] = []

    def row_factory(cursor: psycopg.AsyncCursor[Any]) -> Callable[[Sequence[Any]], Row]:
        if not make:
            make.append(dict_row(cursor))
        return make[0]

    return row_factory


async def _execute(cursor: psycopg.AsyncCursor[Row], statement: Statement, params: Mapping[str, object]) -> Sequence[Row]:
    await cursor.execute(statement.sql, statement.values(params), binary=True)
    return await cursor.fetchall()


async def _fetch_on(connection: Any, statement: Statement, params: Mapping[str, object]) -> Sequence[Row]:
    """On the caller's connection, in the caller's transaction; its adapters and row factory stay as they are."""
    if isinstance(connection, psycopg.AsyncConnection):
        async with psycopg.AsyncRawCursor(cast("psycopg.AsyncConnection[Any]", connection), row_factory=dict_row) as cursor:
            register_dumpers(cursor.adapters)
            return await _execute(cursor, statement, params)
    if isinstance(connection, psycopg.Connection):
        return await asyncio.to_thread(_fetch_blocking, cast("psycopg.Connection[Any]", connection), statement, params)
    raise ConfigurationError(f"`connection` is an open psycopg connection, sync or async, not {type(connection).__name__}")


def _fetch_blocking(connection: psycopg.Connection[Any], statement: Statement, params: Mapping[str, object]) -> Sequence[Row]:
    with psycopg.RawCursor(connection, row_factory=dict_row) as cursor:
        register_dumpers(cursor.adapters)
        cursor.execute(statement.sql, statement.values(params), binary=True)
        return cursor.fetchall()


def _translate(operation: str, error: psycopg.Error) -> NoReturn:
    """Our error for a driver's. By SQLSTATE; the driver's text and DETAIL, which quote values, are dropped."""
    state = error.sqlstate
    if state is None:
        if isinstance(error, psycopg.OperationalError):
            raise AnswerLost(f"the connection was cut during '{operation}'") from None
        raise StoreError(f"'{operation}' was given a value that Postgres cannot store ({type(error).__name__})") from None
    if state in _AWAY:
        raise StoreUnavailableError(f"the database refused '{operation}' for now, SQLSTATE {state}", sqlstate=state) from None
    if state.startswith("08") or state in ("57P01", "57P02"):
        raise AnswerLost(f"the session ended during '{operation}', SQLSTATE {state}") from None
    if state in _OUTRUN:
        raise Outrun(f"'{operation}', SQLSTATE {state}") from None
    if state in _CONTENDED:
        raise Contended(f"'{operation}', SQLSTATE {state}") from None
    if state == "23505":
        raise Clash(error.diag.constraint_name or "a unique key is taken") from None
    if state in _MISSING:
        raise MigrationMissingError(
            f"the database schema does not fit '{operation}' (SQLSTATE {state}); run `deuz db migrate`", sqlstate=state
        ) from None
    raise StoreError(
        f"the database refused '{operation}', SQLSTATE {state}{_constraint(error)}", sqlstate=state, operation=operation
    ) from None


def _constraint(error: psycopg.Error) -> str:
    name = error.diag.constraint_name
    return f", constraint {name}" if name else ""


async def _version(connection: psycopg.AsyncConnection[Any]) -> int:
    found = await (await connection.execute("select to_regclass('deuz_schema') is not null")).fetchone()
    if not found or not found[0]:
        return 0
    row = await (await connection.execute("select coalesce(max(version), 0) from deuz_schema")).fetchone()
    assert row is not None
    return row[0]


_SCHEMA_TABLE = """
create table if not exists deuz_schema (
    version     integer     not null primary key,
    name        text        not null,
    applied_at  timestamptz not null default now()
)
"""

# The planner of Postgres 18 keeps making custom plans for `commit` by itself: 1.25 ms a commit against 0.75 ms. A role that may
# not change itself goes without.
_GENERIC_PLANS = """
do $$ begin
    execute format('alter role current_user in database %I set plan_cache_mode = force_generic_plan', current_database());
exception when insufficient_privilege then
    null;
end $$
"""
