"""The lease tables of SQLite and the verbs on them, synchronous: one connection, one transaction per call."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

from deuz_workers.errors import LeaseStoreUnavailableError
from deuz_workers.ports.leases import Gone, Held, Lease, Peek, Released, Renewed, Young
from deuz_workers.ports.runtime import Clock

KEEP_MS = 86_400_000
"""Lapsed leases and queued cancels are kept for a day: a claim looks at its row anyway."""
CLEANUP_EVERY_MS = 60_000
MEMORY = ":memory:"

SCHEMA = """
create table if not exists lease (         -- a row is a lease that is held, or has lapsed without a release
    key         text    not null primary key,
    owner       text    not null,
    token       integer not null,
    until_ms    integer not null,
    revision    integer not null,          -- highest that any holder reported
    nonce       text    not null,          -- of the call that claimed it
    predecessor text    not null,          -- what that call was told
    again       integer not null default 0,
    drain       integer not null default 0
) without rowid;
create index if not exists lease_lapse on lease (until_ms);
create table if not exists lease_cancel (  -- waits for a renewal, through releases and new holders
    key         text    not null primary key,
    at_ms       integer not null
) without rowid;
create table if not exists lease_memory (  -- one row: this uninterrupted memory
    only_row    integer not null primary key check (only_row = 1),
    epoch       text    not null,
    born_ms     integer not null,
    last_token  integer not null
);
"""
NOW = "select cast(round((julianday('now') - 2440587.5) * 86400000) as integer)"
REMEMBER = "insert into lease_memory (only_row, epoch, born_ms, last_token) values (1, ?, ?, 0)"


@dataclass(frozen=True, slots=True)
class Moment:
    """An open transaction: the time at which it got its lock, and the memory that it found."""

    sql: sqlite3.Connection
    now_ms: int
    epoch: str
    born_ms: int
    last_token: int


class LeaseTable:
    """Usable from any thread, one call at a time. Every verb is one transaction.

    Raises `LeaseStoreUnavailableError` when the file cannot be used or its write lock was not free within `busy_timeout_ms`.
    """

    def __init__(self, path: str, clock: Clock | None, busy_timeout_ms: int) -> None:
        self._path = path
        self._clock = clock
        self._busy_timeout_ms = busy_timeout_ms
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._cleaned_ms = 0

    def acquire(self, key: str, owner: str, ttl_ms: int, revision: int, force: bool, nonce: str) -> Lease | Held | Young:
        with self._transaction() as at:
            self._clean_up(at)
            found = at.sql.execute(
                "select owner, token, until_ms, revision, nonce, predecessor from lease where key = ?", (key,)
            ).fetchone()
            predecessor: Literal["none", "lapsed", "mine"] = "none"
            if found is not None:
                holder, token, until_ms, seen, claimed_by, told = found
                revision = max(revision, seen)
                if holder == owner:
                    self._prolong(at, key, ttl_ms, revision)
                    return Lease(key, owner, token, at.epoch, ttl_ms, told if claimed_by == nonce else "mine", revision)
                if until_ms > at.now_ms:
                    at.sql.execute("update lease set again = 1 where key = ?", (key,))
                    return Held(until_ms - at.now_ms, holder)
                predecessor = "lapsed"
            elif not force and at.now_ms - at.born_ms < ttl_ms:
                return Young(ttl_ms - (at.now_ms - at.born_ms), at.epoch)
            lease = Lease(key, owner, at.last_token + 1, at.epoch, ttl_ms, predecessor, revision)
            self._grant(at, lease, nonce)
            return lease

    def renew(self, leases: Sequence[Lease]) -> list[Renewed | Gone]:
        with self._transaction() as at:
            return [self._renew(at, lease) for lease in leases]

    def release(self, lease: Lease) -> Released | Gone:
        with self._transaction() as at:
            found = at.sql.execute("select owner, token, again from lease where key = ?", (lease.key,)).fetchone()
            if found is not None and found[:2] == (lease.owner, lease.token):
                at.sql.execute("delete from lease where key = ?", (lease.key,))
                return Released(again=bool(found[2]))
            # forgotten, and with it whether somebody rang
            return Released(again=True) if found is None and lease.epoch != at.epoch else Gone()

    def signal(self, key: str, kind: Literal["cancel", "drain"]) -> bool:
        with self._transaction() as at:
            if kind == "cancel":
                at.sql.execute("insert or replace into lease_cancel (key, at_ms) values (?, ?)", (key, at.now_ms))
            else:
                at.sql.execute("update lease set drain = 1 where key = ?", (key,))
            return at.sql.execute("select 1 from lease where key = ? and until_ms > ?", (key, at.now_ms)).fetchone() is not None

    def peek(self, key: str) -> Peek:
        with self._transaction() as at:
            found = at.sql.execute("select until_ms, owner from lease where key = ?", (key,)).fetchone()
            if found is None or found[0] <= at.now_ms:
                return Peek(None, at.now_ms - at.born_ms)
            return Peek(found[0] - at.now_ms, at.now_ms - at.born_ms, found[1])

    def forget(self) -> None:
        with self._transaction() as at:
            for table in ("lease", "lease_cancel", "lease_memory"):
                at.sql.execute(f"delete from {table}")  # noqa: S608 - names of our own

    def close(self) -> None:
        """The connection is closed; the next call would open a new one."""
        with self._lock:
            self._disconnect()

    def _renew(self, at: Moment, lease: Lease) -> Renewed | Gone:
        found = at.sql.execute("select owner, token from lease where key = ?", (lease.key,)).fetchone()
        if found is None:
            if lease.epoch == at.epoch:
                return Gone()  # memory is whole: it was taken over and given back
            self._grant(at, lease, nonce="")
        elif found == (lease.owner, lease.token):
            self._prolong(at, lease.key, lease.ttl_ms, lease.revision_seen)
        else:
            return Gone()
        signal: Literal["", "cancel", "drain"] = ""
        if at.sql.execute("delete from lease_cancel where key = ?", (lease.key,)).rowcount:
            signal = "cancel"
        elif at.sql.execute("update lease set drain = 0 where key = ? and drain", (lease.key,)).rowcount:
            signal = "drain"
        return Renewed(replace(lease, epoch=at.epoch), signal)

    @staticmethod
    def _grant(at: Moment, lease: Lease, nonce: str) -> None:
        """Replaces the row, and so drops the predecessor's marks; no later claim gets this token or a lower one."""
        at.sql.execute(
            "insert or replace into lease (key, owner, token, until_ms, revision, nonce, predecessor)"
            " values (:key, :owner, :token, :until_ms, :revision, :nonce, :predecessor)",
            {
                "key": lease.key,
                "owner": lease.owner,
                "token": lease.token,
                "until_ms": at.now_ms + lease.ttl_ms,
                "revision": lease.revision_seen,
                "nonce": nonce,
                "predecessor": lease.predecessor,
            },
        )
        at.sql.execute("update lease_memory set last_token = max(last_token, ?)", (lease.token,))

    @staticmethod
    def _prolong(at: Moment, key: str, ttl_ms: int, revision: int) -> None:
        at.sql.execute("update lease set until_ms = ?, revision = ? where key = ?", (at.now_ms + ttl_ms, revision, key))

    def _clean_up(self, at: Moment) -> None:
        if at.now_ms - self._cleaned_ms >= CLEANUP_EVERY_MS:
            self._cleaned_ms = at.now_ms
            at.sql.execute("delete from lease where until_ms < ?", (at.now_ms - KEEP_MS,))
            at.sql.execute("delete from lease_cancel where at_ms < ?", (at.now_ms - KEEP_MS,))

    @contextmanager
    def _transaction(self) -> Generator[Moment]:
        with self._lock:
            try:
                sql = self._connection or self._connect()
                sql.execute("begin immediate")  # the time below is read while nobody else can write
                yield self._moment(sql)
                sql.execute("commit")
            except sqlite3.Error as error:
                self._roll_back()
                if self._path != MEMORY:
                    self._disconnect()
                reason = getattr(error, "sqlite_errorname", type(error).__name__)
                raise LeaseStoreUnavailableError(
                    f"the SQLite file of the leases cannot be used: {reason}; is it writable, and its disk not full?"
                ) from None
            except BaseException:
                self._roll_back()
                raise

    def _moment(self, sql: sqlite3.Connection) -> Moment:
        now_ms: int = self._clock.unix_ms() if self._clock else sql.execute(NOW).fetchone()[0]
        memory: tuple[str, int, int] | None = sql.execute("select epoch, born_ms, last_token from lease_memory").fetchone()
        if memory is None:
            memory = (f"{now_ms}:{secrets.token_hex(8)}", now_ms, 0)
            sql.execute(REMEMBER, memory[:2])
        return Moment(sql, now_ms, *memory)

    def _connect(self) -> sqlite3.Connection:
        sql = sqlite3.connect(self._path, timeout=self._busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False)
        self._connection = sql
        sql.execute("pragma journal_mode = wal")
        sql.execute("pragma synchronous = normal")
        sql.executescript(SCHEMA)
        if self._path == MEMORY:  # nobody can have held a lease before this memory existed: it is not young
            sql.execute(REMEMBER, (f"0:{secrets.token_hex(8)}", 0))
        return sql

    def _roll_back(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.rollback()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
