"""What a long run costs that was killed: the time until the next process calls the model, and the room on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from tests.bench.long_run import LEASE_TTL_MS, RESULT_BYTES
from tests.bench.processes import DEADLINE_S, ROOT, worker
from tests.bench.windows import Figures

LAPSE_S = LEASE_TTL_MS / 1000 + 0.5
"""After it the lease of the dead is nobody's; it is waited for before the clock starts."""
PROGRAM = ("-m", "tests.bench.long_run")
TABLES = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = current_schema() and c.relkind = 'r'
"""
"""Of partitions, not of the tables that have them, which hold nothing; with indexes and what rows overflow into."""


def sqlite_run(folder: Path, turns: int) -> Figures:
    """On the embedded store, with its log emptied at the end."""
    path = folder / f"long{turns}.db"
    figures = _killed_and_resumed(f"sqlite:///{path}", turns, folder)
    return {**figures, "disk_times_payload": _times(sum(part.stat().st_size for part in folder.glob(f"{path.name}*")), turns)}


def postgres_run(folder: Path, url: str, turns: int) -> Figures:
    """On a database that has the schema of the store; vacuumed plainly at the end."""
    with psycopg.connect(url, autocommit=True) as connection:
        before = _size(connection)
        figures = _killed_and_resumed(url, turns, folder)
        connection.execute("vacuum")
        return {**figures, "disk_times_payload": _times(_size(connection) - before, turns)}


def _times(taken_bytes: int, turns: int) -> float:
    """As a multiple of the results alone, what the messages say beside them not counted."""
    return taken_bytes / (turns * RESULT_BYTES)


def _size(connection: psycopg.Connection) -> int:
    row = connection.execute(TABLES).fetchone()
    assert row is not None
    return int(row[0])


def _killed_and_resumed(url: str, turns: int, folder: Path) -> Figures:
    """The process that works on the run is killed in the model call after `turns` turns; another one brings it to its end."""
    log = folder / f"long{turns}.log"
    with worker((*PROGRAM, "begin", url, str(turns)), {}, log) as began:
        began.wait_until(lambda: "there" in log.read_text().splitlines(), f"{turns} turns")
        os.killpg(began.process.pid, signal.SIGKILL)
        began.process.wait()
    time.sleep(LAPSE_S)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")}
    environment = {**inherited, "PYTHONPATH": str(ROOT), "DEUZ_CONFIG": os.devnull}
    done = subprocess.run(
        [sys.executable, *PROGRAM, "resume", url],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode:
        raise RuntimeError(f"the process that resumes ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
