"""``python -m tests.bench``: measure and print one table. How to read it says :mod:`tests.bench`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import redis

import tests.bench
from deuz_workers.embedded import EmbeddedPostgres, EmbeddedRedis
from deuz_workers.embedded.binaries import POSTGRES_BIN_DIR, REDIS_SERVER
from deuz_workers.store import migrate
from tests.bench.backlog_bench import BacklogBench
from tests.bench.celery_bench import CeleryBench
from tests.bench.floor_bench import FloorBench
from tests.bench.ledger_bench import admissions
from tests.bench.long_run_bench import postgres_run, sqlite_run
from tests.bench.machine import disk_of, machine, versions
from tests.bench.processes import SLOTS
from tests.bench.sqlite_bench import embedded
from tests.bench.table import derived, render
from tests.bench.windows import Figures, medians

PARTS = ("embedded", "celery", "floor")
BACKLOG = "backlog"
"""Only when it is asked for: it fills a database."""
BACKLOG_RUNS = 100_000
RESUME, DISK = "resume", "disk"
"""Only when they are asked for: they take half a minute each."""
PROGRAMS = (POSTGRES_BIN_DIR, REDIS_SERVER)
"""Environment variables that choose the servers' programs; without them those of the system come before those of wheels."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is run for one table."""

    turns: int
    """Of the run that goes alone."""
    together: int
    """Of each of eight runs."""
    repeats: int
    floor_steps: int
    ledger_s: float


QUICK = Effort(turns=1_000, together=60, repeats=1, floor_steps=300, ledger_s=1.0)
FULL = Effort(turns=1_000, together=200, repeats=3, floor_steps=500, ledger_s=4.0)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.bench", description=tests.bench.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--turns", type=int, help="length of the run that goes alone; windows beyond it are left out")
    parser.add_argument("--quick", action="store_true", help="one repeat of everything, under a minute")
    parser.add_argument(
        "--only", choices=(*PARTS, BACKLOG, RESUME, DISK), action="append", help="only this part; may be given again"
    )
    parser.add_argument("--backlog-runs", type=int, default=BACKLOG_RUNS, help="runs that wait in the part `backlog`")
    parser.add_argument("--window", type=int, default=0, help="the setting of that name, in the part `backlog` and under load")
    parser.add_argument(
        "--load-minutes", type=float, help="instead: load on a worker for so long, and what becomes of the tables"
    )
    parser.add_argument("--pool", choices=tuple(SLOTS), action="append", help="only this pool; may be given again")
    parser.add_argument("--json", action="store_true", help="print figures as JSON instead of the table")
    given = parser.parse_args(arguments)
    effort = QUICK if given.quick else FULL
    if given.turns:
        effort = replace(effort, turns=given.turns, together=min(given.turns, effort.together))
    for name in [name for name in os.environ if name.startswith("DEUZ_") and name not in PROGRAMS]:
        del os.environ[name]  # settings of the machine are none of the bench's
    os.environ["DEUZ_CONFIG"] = os.devnull
    if given.load_minutes:
        with (
            _servers() as (folder, postgres, valkey),
            closing(BacklogBench(folder, postgres.url, valkey.url, given.window)) as backlog,
        ):
            print(f"{machine()}\n{versions(_server_versions(postgres.url, valkey.url))}")
            backlog.load(given.load_minutes)
        return 0
    began = time.monotonic()
    lines, columns = measure(effort, given.only or PARTS, given.pool or tuple(SLOTS), given.backlog_runs, given.window)
    if given.json:
        print(json.dumps({"setting": lines, "figures": columns}, indent=2))
    else:
        print("\n".join([*lines, "", render(columns), "", f"measured in {time.monotonic() - began:.0f} s; {machine()}"]))
    return 0


@contextmanager
def _servers() -> Generator[tuple[Path, EmbeddedPostgres, EmbeddedRedis]]:
    """A folder, an empty database with the schema of the store, and an empty Redis."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deuz-bench-")))
        postgres, valkey = stack.enter_context(EmbeddedPostgres()), stack.enter_context(EmbeddedRedis())
        asyncio.run(migrate(postgres.url))
        yield folder, postgres, valkey


def measure(
    effort: Effort, parts: tuple[str, ...], pools: tuple[str, ...], backlog_runs: int, window: int
) -> tuple[list[str], dict[str, Figures]]:
    """Lines that say what was measured on, and figures by column."""
    columns: dict[str, Figures] = {}
    lines = [machine()]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deuz-bench-")))
        if "embedded" in parts:
            columns |= _embedded(folder, effort)
        if "celery" in parts or "floor" in parts:
            columns |= _on_servers(stack, folder, effort, parts, pools, lines)
        else:
            lines += [versions({}), f"databases in {disk_of(folder)}"]
    if BACKLOG in parts:
        _tell(BACKLOG)
        with (
            _servers() as (folder, postgres, valkey),
            closing(BacklogBench(folder, postgres.url, valkey.url, window)) as backlog,
        ):
            columns["backlog"] = backlog.measure(backlog_runs)
    if RESUME in parts or DISK in parts:
        columns |= _long_runs(parts, effort.turns)
    return lines, {title: derived(figures) for title, figures in columns.items()}


def _embedded(folder: Path, effort: Effort) -> dict[str, Figures]:
    def run(path: Path | None, synchronous: str) -> Figures:
        _tell(f"embedded, {'memory' if path is None else synchronous}")
        mode = "full" if synchronous == "full" else "normal"
        return asyncio.run(embedded(path, mode, turns=effort.turns, together=effort.together, repeats=effort.repeats))

    return {
        "memory": run(None, "normal"),
        "SQLite NORMAL": run(folder / "normal", "normal"),
        "SQLite FULL": run(folder / "full", "full"),
    }


def _long_runs(parts: tuple[str, ...], turns: int) -> dict[str, Figures]:
    """Runs that are killed in the call after their last turn: of a thousand turns, and of two thousand on both stores."""
    columns: dict[str, Figures] = {}
    if RESUME in parts:
        _tell(RESUME)
        with tempfile.TemporaryDirectory(prefix="deuz-bench-") as folder:
            columns["resumed SQLite"] = sqlite_run(Path(folder), turns)
    if DISK in parts:
        _tell(DISK)
        with _servers() as (folder, postgres, _):
            columns["long SQLite"] = sqlite_run(folder, 2 * turns)
            columns["long Postgres"] = postgres_run(folder, postgres.url, 2 * turns)
    return columns


def _on_servers(
    stack: ExitStack, folder: Path, effort: Effort, parts: tuple[str, ...], pools: tuple[str, ...], lines: list[str]
) -> dict[str, Figures]:
    postgres, valkey = stack.enter_context(EmbeddedPostgres()), stack.enter_context(EmbeddedRedis())
    asyncio.run(migrate(postgres.url))
    lines += [versions(_server_versions(postgres.url, valkey.url)), f"databases in {disk_of(postgres.data_dir)}, fsync on"]
    floor = bench = None
    if "floor" in parts:
        floor = FloorBench(folder, postgres.url, valkey.url)
        stack.callback(floor.close)
    if "celery" in parts:
        bench = CeleryBench(folder, postgres.url, valkey.url)
        stack.callback(bench.close)
    columns: dict[str, Figures] = {}
    for pool in pools:
        title = f"{pool} {SLOTS[pool]}"
        _tell(title)
        columns[title] = _on_pool(pool, effort, floor, bench)
    if "celery" in parts:
        _tell("ledger")
        columns["ledger"] = asyncio.run(admissions(postgres.url, seconds=effort.ledger_s))
    return columns


def _on_pool(pool: str, effort: Effort, floor: FloorBench | None, bench: CeleryBench | None) -> Figures:
    """Floor and product turn by turn, so that both meet the same machine."""
    floors: list[Figures] = []
    with ExitStack() as stack:
        once = None if floor is None else stack.enter_context(floor.running(pool, steps=effort.floor_steps))

        def beside() -> None:
            if once is not None:
                floors.append(once())

        figures: Figures = {}
        if bench is not None:
            figures = bench.measure(pool, turns=effort.turns, together=effort.together, repeats=effort.repeats, beside=beside)
        else:
            for _ in range(effort.repeats):
                beside()
    return {**medians(floors), **figures}


def _server_versions(database_url: str, redis_url: str) -> dict[str, str]:
    with psycopg.connect(database_url) as database, redis.Redis.from_url(redis_url, decode_responses=True) as client:
        row = database.execute("show server_version").fetchone()
        assert row is not None
        about: dict[str, str] = client.info("server")
        name = about.get("server_name", "redis")
        return {"Postgres": str(row[0]), name.capitalize(): about.get(f"{name}_version", "?")}


def _tell(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
