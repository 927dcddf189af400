"""Leases in SQLite: a file shared by the processes of one machine, or the memory of one process.

The rules are those of `lease.lua`, and one conformance suite holds both to them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from deuz_workers.errors import LeaseStoreUnavailableError
from deuz_workers.leases.table import MEMORY, LeaseTable
from deuz_workers.ports.leases import Gone, Held, Lease, LeaseRenewer, Peek, Released, Renewed, Young
from deuz_workers.ports.runtime import Clock

BUSY_TIMEOUT_MS = 5_000
"""SQLite's write lock is unfair: a call may lose to others for seconds, and is given up after this long."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Process:
    """What one process uses: a connection, and the thread that waits for the write lock in place of the event loop."""

    table: LeaseTable
    thread: ThreadPoolExecutor | None
    """None: memory has no other writers, so its calls run at once and in order, also under a virtual clock."""


class SqliteLeases:
    """A `LeaseProvider` in the SQLite file `path`, which may be the store's; its tables are made at the first call.

    `clock`: its `unix_ms` is the time; None is SQLite's own, which is the machine's. Processes that share a file need clocks
    that agree. Every verb is one transaction.
    """

    def __init__(self, path: str | Path, *, clock: Clock | None = None) -> None:
        self._path = MEMORY if path == MEMORY else str(Path(path).absolute())
        self._clock = clock
        self._processes: dict[int, _Process] = {}

    async def acquire(
        self, key: str, owner: str, ttl_ms: int, *, revision: int = 0, force: bool = False
    ) -> Lease | Held | Young:
        nonce = secrets.token_hex(8)
        return await self._run(lambda table: table.acquire(key, owner, ttl_ms, revision, force, nonce))

    async def release(self, lease: Lease) -> Released | Gone:
        """Give the key back; an outdated lease has no effect.

        Never raises `LeaseStoreUnavailableError`: a release nobody confirmed counts as `again`, and the lease lapses.
        """
        try:
            return await self._run(lambda table: table.release(lease))
        except LeaseStoreUnavailableError:
            return Released(again=True)

    async def signal(self, key: str, kind: Literal["cancel", "drain"]) -> bool:
        return await self._run(lambda table: table.signal(key, kind))

    async def peek(self, key: str) -> Peek:
        return await self._run(lambda table: table.peek(key))

    def renewer(self, *, timeout_ms: int) -> LeaseRenewer:
        if self._path == MEMORY:
            return SqliteRenewer(self._process().table, shared=True)
        return SqliteRenewer(LeaseTable(self._path, self._clock, timeout_ms), shared=False)

    async def forget(self) -> None:
        """Everything is forgotten, as by a flush of Redis, and the memory is young: for simulations of just that."""
        await self._run(LeaseTable.forget)

    async def close(self) -> None:
        """Connection and thread of this process are gone, and with them what was in memory."""
        process = self._processes.pop(os.getpid(), None)
        if process is None:
            return
        if process.thread is not None:
            await asyncio.get_running_loop().run_in_executor(process.thread, process.table.close)
            process.thread.shutdown()
        process.table.close()

    async def _run(self, verb: Callable[[LeaseTable], T]) -> T:
        process = self._process()
        if process.thread is None:
            return verb(process.table)
        return await asyncio.get_running_loop().run_in_executor(process.thread, verb, process.table)

    def _process(self) -> _Process:
        # A forked child leaves its parent's connection alone and alive: SQLite forbids to use or close it there.
        mine = self._processes.get(os.getpid())
        if mine is None:
            thread = None if self._path == MEMORY else ThreadPoolExecutor(1, "deuz-leases")
            made = _Process(LeaseTable(self._path, self._clock, BUSY_TIMEOUT_MS), thread)
            mine = self._processes.setdefault(os.getpid(), made)
        return mine


class SqliteRenewer:
    """A `LeaseRenewer`: with a connection of its own on a file, on the one connection there is in memory."""

    def __init__(self, table: LeaseTable, *, shared: bool) -> None:
        self._table = table
        self._shared = shared

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        """One transaction. Raises `LeaseStoreUnavailableError`, and then none of them was renewed."""
        return self._table.renew(leases)

    def close(self) -> None:
        """The connection of its own, if it has one, is closed."""
        if not self._shared:
            self._table.close()


def memory_leases(*, clock: Clock | None = None) -> SqliteLeases:
    """Leases of this process alone, forgotten when it ends. They begin with an old memory: nobody can have held any before."""
    return SqliteLeases(MEMORY, clock=clock)
