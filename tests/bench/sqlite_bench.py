"""The embedded mode: runs in the process that starts them, on SQLite in memory and in a file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.store.dialect import Row
from deuz_workers.store.sql_store import SqlStore
from deuz_workers.store.sqlite import SqliteDialect
from deuz_workers.store.sqlite_operations import OPERATIONS
from tests.bench.application import AGENT, Gate, application, prompt_for
from tests.bench.windows import Edge, Figures, figures_of, gates_of, medians

RUNS = 8
FRAME_HEADER_BYTES = 24
MAX_FRAME_AT, PAGE_SIZE_AT = 16, 14
"""In the index of the log, the file `-shm`. Source: SQLite, walformat.html, "The WAL-Index Header"."""
BODIES = """
select (select coalesce(sum(length(body)), 0) from message) + (select coalesce(sum(length(body)), 0) from receipt)
       + (select coalesce(sum(length(body)), 0) from journal), (select length(body) from run_head)
"""


class CountingDialect(SqliteDialect):
    """Counts transactions that write, and the bytes that they add to the log."""

    def __init__(self, path: Path | None, synchronous: Literal["normal", "full"]) -> None:
        super().__init__(path, synchronous=synchronous)
        self.commits = 0
        self.wal_bytes = 0
        self._index_path = None if path is None else Path(f"{path}-shm")
        self._index = -1
        self._frames = 0

    async def fetch(self, operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Row]:
        rows = await super().fetch(operation, params, connection=connection)
        if OPERATIONS[operation].begin == "begin immediate":
            self.commits += 1
            self._count_frames()
        return rows

    async def close(self) -> None:
        await super().close()
        if self._index >= 0:  # not before: closing any descriptor of the file would drop the locks that SQLite has on it
            os.close(self._index)

    def _count_frames(self) -> None:
        if self._index_path is None:
            return
        if self._index < 0:
            self._index = os.open(self._index_path, os.O_RDONLY)
        header = os.pread(self._index, 48, 0)
        (frames,) = struct.unpack_from("=I", header, MAX_FRAME_AT)
        (page_bytes,) = struct.unpack_from("=H", header, PAGE_SIZE_AT)
        fresh = frames - self._frames if frames >= self._frames else frames  # it starts again after a checkpoint
        self.wal_bytes += fresh * (page_bytes + FRAME_HEADER_BYTES)
        self._frames = frames


async def embedded(
    path: Path | None, synchronous: Literal["normal", "full"], *, turns: int, together: int, repeats: int
) -> Figures:
    """One run of `turns` turns alone, `repeats` times; then eight of `together` turns at a time.

    `path`: of databases to be made, each with a suffix; None: in memory.
    """
    alone: list[Figures] = []
    for repeat in range(-1, repeats):  # the first warms the process up
        figures = await _alone(_numbered(path, repeat), synchronous, turns if repeat >= 0 else 30)
        alone += [figures] if repeat >= 0 else []
    return {**medians(alone), **await _together(_numbered(path, repeats), synchronous, together)}


async def _alone(path: Path | None, synchronous: Literal["normal", "full"], turns: int) -> Figures:
    dialect = CountingDialect(path, synchronous)
    edges: dict[int, Edge] = {}

    async def gate(turn: int) -> None:
        came_ns = time.monotonic_ns()
        row_bytes, head_bytes = _bodies(path)
        edges[turn] = Edge(came_ns, time.monotonic_ns(), dialect.commits, dialect.wal_bytes, row_bytes, head_bytes)

    app = _application(path, dialect, gate)
    try:
        await app.aio.run_embedded(AGENT, prompt_for(turns, gates_of(turns)))
    finally:
        await app.aclose()
    figures = figures_of(edges)
    if path is None:
        return {name: value for name, value in figures.items() if "bytes" not in name}
    return figures


async def _together(path: Path | None, synchronous: Literal["normal", "full"], turns: int) -> Figures:
    async def no_gate(turn: int) -> None:
        """None of these runs stops."""

    app = _application(path, SqliteDialect(path, synchronous=synchronous), no_gate)
    try:
        began = time.monotonic()
        await asyncio.gather(*(app.aio.run_embedded(AGENT, prompt_for(turns)) for _ in range(RUNS)))
        return {"turns_per_s_8_runs": RUNS * turns / (time.monotonic() - began)}
    finally:
        await app.aclose()


def _application(path: Path | None, dialect: SqliteDialect, gate: Gate) -> Deuz:
    url = "sqlite://:memory:" if path is None else f"sqlite:///{path}"
    return application(gate, Settings(database_url=url), SqlStore(dialect))


def _bodies(path: Path | None) -> tuple[int, int]:
    if path is None:
        return 0, 0
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(BODIES).fetchone()
    finally:
        connection.close()


def _numbered(path: Path | None, number: int) -> Path | None:
    return None if path is None else path.with_name(f"{path.name}{number}.db")
