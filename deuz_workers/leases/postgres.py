"""Leases in Postgres, by the clock of the database.

Two kinds of connections: a few per process and event loop, on which a call whose answer got lost is sent once more, and one of
its own for the heartbeat thread, which never waits for a second attempt. No session state is used but prepared statements, so
a transaction pooler may stand between; so a silent server is noticed here and not by its own `statement_timeout`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import psycopg

from deuz_workers.core.marks import Marks
from deuz_workers.errors import ConfigurationError, LeaseStoreUnavailableError
from deuz_workers.leases.impatient import AsyncImpatient, Impatient
from deuz_workers.leases.sender import Sender
from deuz_workers.leases.statements import Call, LeaseStatements, Row
from deuz_workers.ports.leases import Gone, Held, Lease, LeaseRenewer, Peek, Released, Renewed, Young

SCHEMES = ("postgresql", "postgres")
MAX_CONNECTIONS = 2
"""Per process and event loop: a call takes a millisecond, and a hundred processes may share one database."""
CALL_TIMEOUT_S = 2.0
"""For every wait: for a connection, for making one, for an answer."""
PREPARE_AFTER = 2
"""Uses of a statement on one connection before it is prepared."""
SWEEP_EVERY_S = 60.0
SWEEP_LIMIT = 1_000

_NOTHING_KNOWN = (psycopg.Error, OSError, TimeoutError)
_NO_TABLES = frozenset({"42P01", "42703", "3F000"})


@dataclass(slots=True)
class _Here:
    """The connections of one process and event loop."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONNECTIONS))
    idle: list[AsyncImpatient] = field(default_factory=list[AsyncImpatient])
    swept_s: float = float("-inf")


class PostgresLeases:
    """A `LeaseProvider` in the tables of a Postgres database that `deuz db migrate` made; it may be the store's.

    `url` is what libpq reads. Nothing is connected before the first call. `secret` signs the revisions that leases carry;
    without it they carry none. `prepare`: off for poolers that do not pass prepared statements on. Every verb is one statement
    and is sent a second time when the first got no answer.
    """

    def __init__(self, url: str, *, secret: bytes | None = None, prepare: bool = True) -> None:
        """Raises ConfigurationError when `url` is of another kind."""
        if urlsplit(url).scheme not in SCHEMES:
            raise ConfigurationError(
                f"leases in Postgres need a URL that begins with postgresql://, not {urlsplit(url).scheme!r}"
            )
        self._url = url
        self._prepare_threshold = PREPARE_AFTER if prepare else None
        self._statements = LeaseStatements(Marks(secret))
        self._processes: dict[int, WeakKeyDictionary[asyncio.AbstractEventLoop, _Here]] = {}
        self._sender = Sender(self._exchange, _NOTHING_KNOWN, unavailable)

    def __repr__(self) -> str:
        return "PostgresLeases(...)"  # the URL may hold a password

    async def acquire(
        self, key: str, owner: str, ttl_ms: int, *, revision: int = 0, force: bool = False
    ) -> Lease | Held | Young:
        nonce = secrets.token_hex(8)
        row, _ = await self._sender.ask(self._statements.acquire(key, owner, ttl_ms, revision, force, nonce))
        await self._sweep_sometimes()
        return self._statements.acquired(row, key, owner, ttl_ms, revision)

    async def release(self, lease: Lease) -> Released | Gone:
        """Give the key back; an outdated lease has no effect.

        Never raises `LeaseStoreUnavailableError`: a release nobody confirmed counts as `again`, and the lease lapses.
        """
        return await self._sender.give_back(self._statements.release(lease), self._statements.released)

    async def signal(self, key: str, kind: Literal["cancel", "drain"]) -> bool:
        row, _ = await self._sender.ask(self._statements.signal(key, kind))
        return row[0]

    async def peek(self, key: str) -> Peek:
        row, _ = await self._sender.ask(self._statements.peek(key))
        return self._statements.peeked(row)

    def renewer(self, *, timeout_ms: int) -> LeaseRenewer:
        return PostgresRenewer(self._url, self._statements, timeout_ms, self._prepare_threshold)

    async def close(self) -> None:
        """The connections of the running event loop are closed; the next call would open new ones."""
        here = self._processes.get(os.getpid(), WeakKeyDictionary()).pop(asyncio.get_running_loop(), None)
        if here is not None:
            await _close_idle(here)

    async def sweep(self, limit: int = SWEEP_LIMIT) -> int:
        """Delete leases that lapsed a day ago and cancels that waited as long, at most `limit` of each; how many there were.

        Claims do it once a minute.
        """
        row, _ = await self._sender.ask(self._statements.sweep(limit))
        return row[0]

    async def _sweep_sometimes(self) -> None:
        here, now_s = self._here(), asyncio.get_running_loop().time()
        if now_s - here.swept_s >= SWEEP_EVERY_S:
            here.swept_s = now_s
            with suppress(LeaseStoreUnavailableError):
                await self.sweep()

    async def _exchange(self, call: Call) -> Row:
        """The one row of the answer."""
        return await self._fetch(self._here(), call)

    async def _fetch(self, here: _Here, call: Call) -> Row:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await here.free.acquire()
        try:
            connection = here.idle.pop() if here.idle else await self._connect()
            try:
                row: Row | None = await (await connection.execute(call.sql, call.params, binary=True)).fetchone()
            except BaseException:
                await connection.close()
                await _close_idle(here)  # whatever ended this one may have ended them too
                raise
            here.idle.append(connection)
        finally:
            here.free.release()
        assert row is not None, "every statement answers with one row"
        return row

    async def _connect(self) -> AsyncImpatient:
        connection = await AsyncImpatient.connect(
            self._url, autocommit=True, prepare_threshold=self._prepare_threshold, **_options(CALL_TIMEOUT_S)
        )
        connection.patience_s = CALL_TIMEOUT_S
        return connection

    def _here(self) -> _Here:
        # A forked child leaves its parent's connections alone and alive: closing one would end the parent's session.
        mine = self._processes.setdefault(os.getpid(), WeakKeyDictionary())
        loop = asyncio.get_running_loop()
        return mine.get(loop) or mine.setdefault(loop, _Here())


class PostgresRenewer:
    """A `LeaseRenewer` with one connection; used by one thread.

    Every wait on the network ends after `timeout_ms`; only a new connection may take two seconds, which is libpq's least.
    """

    def __init__(self, url: str, statements: LeaseStatements, timeout_ms: int, prepare_threshold: int | None) -> None:
        self._url = url
        self._statements = statements
        self._timeout_s = timeout_ms / 1000
        self._prepare_threshold = prepare_threshold
        self._connection: Impatient | None = None

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        """One statement. Raises `LeaseStoreUnavailableError`, and then nobody knows whether they were renewed."""
        if not leases:
            return ()
        call = self._statements.renew(leases)
        try:
            connection = self._connection or self._connect()
            rows: list[Row] = connection.execute(call.sql, call.params, binary=True).fetchall()
        except _NOTHING_KNOWN as error:
            self.close()  # whatever is still on its way belongs to no later call
            raise unavailable(error) from None
        return self._statements.renewed(rows, leases)

    def close(self) -> None:
        """The connection is closed; another call would open a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> Impatient:
        connection = self._connection = Impatient.connect(
            self._url, autocommit=True, prepare_threshold=self._prepare_threshold, **_options(self._timeout_s)
        )
        connection.patience_s = self._timeout_s
        return connection


def _options(timeout_s: float) -> dict[str, Any]:
    return {"connect_timeout": max(2, round(timeout_s)), "application_name": "deuz_workers leases"}


async def _close_idle(here: _Here) -> None:
    while here.idle:
        await here.idle.pop().close()


def unavailable(error: BaseException) -> LeaseStoreUnavailableError:
    """The error that says so without the URL and the values, which the driver's own texts may quote."""
    state = getattr(error, "sqlstate", None)
    if state in _NO_TABLES:
        return LeaseStoreUnavailableError(
            f"the Postgres database of the leases has no tables for them (SQLSTATE {state}); run `deuz db migrate` on it"
        )
    reason = type(error).__name__ + (f", SQLSTATE {state}" if state else "")
    return LeaseStoreUnavailableError(
        f"the Postgres database of the leases gave no answer: {reason}; is it up, and its URL right?"
    )
