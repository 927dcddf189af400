"""The one connection that a process has to a SQLite database, and how its transactions begin, end and wait."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

from deuz_workers.errors import StoreError, StoreRefusedError, StoreUnavailableError
from deuz_workers.store.dialect import AnswerLost, Clash
from deuz_workers.store.sqlite_transaction import Refused, Transaction, Values

OLDEST = (3, 37, 0)
"""Strict tables are as old as this."""

BUSY_MS = 5_000
"""How long an operation waits for the write lock of another process before it is given up."""

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.000_2, 0.002
"""SQLite grants its write lock to whoever asks at the right moment, and its own busy handler soon asks every 100 ms only: eight
writers without a pause starve one for seconds. Asking often, at random moments, is fair enough."""

T = TypeVar("T")
Begin = Literal["begin", "begin immediate"]
Body = Callable[[Transaction, Values], list[dict[str, Any]]]


class Busy(Exception):
    """Another process has the lock; nothing was written."""


class SqliteConnection:
    """A guarded connection: any thread may use it, one at a time."""

    def __init__(self, path: str, statements: Mapping[str, str], *, synchronous: Literal["normal", "full"]) -> None:
        """Opens the file, which may have to be made; its folder must exist. `path` may be ``:memory:``. Waits for no lock."""
        self.path = path
        self.guard = threading.Lock()
        self._statements = statements
        if sqlite3.sqlite_version_info < OLDEST:
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; this store needs {'.'.join(map(str, OLDEST))}")
        try:
            self._connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
            )
        except sqlite3.Error as error:
            raise self._translated(error) from None
        self._synchronous = synchronous

    def configure(self) -> None:
        """From here on readers and the one writer do not wait for each other, and commits wait for the disk as asked.

        Reads the file, so that it may raise `Busy`; comes before the first transaction.
        """
        try:
            for pragma in ("journal_mode = wal", f"synchronous = {self._synchronous}"):
                self._connection.execute(f"pragma {pragma}").fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def copy(self, source: SqliteConnection) -> None:
        """Holds what `source` held at this moment, and nothing else. No transaction may be open on either."""
        source._connection.backup(self._connection)

    def transact(self, begin: Begin, body: Body, params: Values, now_ms: int | None) -> list[dict[str, Any]]:
        """Run `body` in a transaction of its own; the caller holds `guard`. Raises `Busy` if the lock is another process's."""
        execute = self._connection.execute
        sent = False
        try:
            execute(begin)
            try:
                tx = Transaction(self._connection, self._statements, now_ms)
                rows = body(tx, {**params, "now_ms": tx.now_ms})
                sent = True
                execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    with suppress(sqlite3.Error):
                        execute("rollback")
                raise
        except Refused as refused:
            return refused.rows
        except sqlite3.Error as error:
            if sent and begin == "begin immediate":
                raise AnswerLost(f"the commit ended with {_name(error)}") from None
            raise self._translated(error) from None
        except UnicodeEncodeError:
            raise StoreError("an operation was given text with a lone surrogate, which SQLite cannot store") from None
        except OverflowError:
            raise StoreError("an operation was given a number of more than 64 bits, which SQLite cannot store") from None
        return rows

    def patient(self, attempt: Callable[[], T], busy_ms: int) -> Callable[[], T]:
        """`attempt` for a thread: under the guard, again and again while it is `Busy`, up to `busy_ms` from now.

        What it returns blocks its thread and raises `StoreUnavailableError` in the end.
        """
        give_up = time.monotonic() + busy_ms / 1_000

        def insist() -> T:
            while True:
                try:
                    with self.guard:
                        return attempt()
                except Busy:
                    if time.monotonic() >= give_up:
                        raise StoreUnavailableError(
                            f"'{self.path}' stayed locked by another process for {busy_ms} ms; end what holds a transaction "
                            "on it, or use Postgres for more writers",
                            path=self.path,
                        ) from None
                time.sleep(random.uniform(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S))  # noqa: S311

        return insist

    def close(self) -> None:
        with self.guard:
            self._connection.close()

    def _translated(self, error: sqlite3.Error) -> Exception:
        """SQLite's code as an error of ours, with nothing of the values. The text of its message decides nothing."""
        if isinstance(error, sqlite3.ProgrammingError):
            return error  # a fault of ours
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy()
        if code in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
            return Clash(f"a row with that key is there already ({_name(error)})")
        way_out = _UNAVAILABLE.get(code & 0xFF)
        if way_out is not None:
            kind = StoreRefusedError if code in _LASTING else StoreUnavailableError
            return kind(f"'{self.path}' cannot be used ({_name(error)}); {way_out}", path=self.path)
        return StoreError(f"SQLite refused the operation on '{self.path}' ({_name(error)})", path=self.path)


_UNAVAILABLE = {
    sqlite3.SQLITE_CANTOPEN: "make its folder and let this user write there",
    sqlite3.SQLITE_IOERR: "look at the disk",
    sqlite3.SQLITE_FULL: "free some space on its disk",
    sqlite3.SQLITE_READONLY: "let this user write to the file and its folder",
    sqlite3.SQLITE_PERM: "let this user write to the file and its folder",
    sqlite3.SQLITE_CORRUPT: "restore it from a copy",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; name another file",
}
"""What a person can do about a primary result code."""
_LASTING = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
"""Somebody has to mend the set-up: who asks again in a second is told the same."""


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", type(error).__name__)
