"""Everything at once: workers killed every second, Redis flushed and restarted, Postgres crashed, and effects counted.

``python -m tests.faults.storm --rounds 20`` ends with 0 if every promise was kept in every round:

* every run completes, or waits for a person and lists the effects that nobody knows of; none of them is in quarantine;
* an effect that must not happen twice happened at most once, an idempotent one was repeated under its key only;
* once a person has looked and said what became of the unknown effects, every run completes, and each of its effects that must
  not happen twice has happened exactly once.

The servers are its own: Postgres on disk with fsync on, Valkey in memory. What a person would look at are files that the tools
append to, beside anything that is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

import psycopg
import redis

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.handle import Handle
from deuz_workers.app.settings import Settings
from deuz_workers.embedded import EmbeddedPostgres, EmbeddedRedis
from deuz_workers.errors import ResultTimeoutError, ServerUnavailableError, StoreUnavailableError
from deuz_workers.store import migrate
from tests.faults.effect_agents import application
from tests.faults.effects import Effects, sends_of
from tests.workers.pool import Pool, Worker, wait_until

T = TypeVar("T")

KINDS = (("threads", "prefork", "threads"), ("prefork", "threads", "prefork"))
"""Of the three workers, in turn."""
CONCURRENCY = {"threads": 4, "prefork": 2}
"""Few enough that the runs of a round outlast what goes wrong in it."""
TTL_MS = 2_000
KILL_EVERY_S = 1.0
PATIENCE_S = 240.0
"""For all runs of a round; a run that has nothing to report by then stands still."""
LATE = 10
"""One in so many runs is enqueued when all of that has happened."""
TIMES = 6
"""Kills by which Redis was flushed and restarted and Postgres crashed."""


@dataclass
class Figures:
    """What one round did."""

    seconds: float = 0.0
    """Until the last run had something to report, with everything still going wrong."""
    kills: int = 0
    """Of whole workers."""
    child_kills: int = 0
    ended: list[str] = field(default_factory=list[str])
    """Workers that ended by themselves, and were started again as a supervisor would."""
    flushes: int = 0
    redis_restarts: int = 0
    postgres_crashes: int = 0
    unfinished: list[int] = field(default_factory=list[int])
    """Runs that had not ended when one of those three happened."""
    takeovers: int = 0
    completed: int = 0
    waiting: int = 0
    """Runs that waited for a person."""
    unknown: int = 0
    """Effects that they listed."""
    happened: int = 0
    """Of those, the ones that had happened."""
    sends: int = 0
    puts: int = 0
    puts_again: int = 0
    broken: list[str] = field(default_factory=list[str])
    """Promises that were not kept, in words."""

    def __str__(self) -> str:
        return "; ".join(
            (
                f"{self.seconds:5.1f} s",
                f"killed {self.kills} workers and {self.child_kills} children, {len(self.ended)} ended by themselves",
                f"{self.flushes} flush, {self.redis_restarts} Redis restart, {self.postgres_crashes} Postgres crash",
                f"with at least {min(self.unfinished, default=0)} runs unfinished, {self.takeovers} takeovers",
                f"{self.completed} runs completed, {self.waiting} waited with {self.unknown} unknown effects",
                f"of which {self.happened} had happened",
                f"{self.sends} sends, {self.puts} puts, {self.puts_again} of them again",
                f"{len(self.broken)} promises broken",
            )
        )

    def __add__(self, other: Figures) -> Figures:
        names = [each.name for each in fields(self)]
        return Figures(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass
class Storm:
    """One round: what goes wrong, by one thread, while another one waits for the runs."""

    pool: Pool
    postgres: EmbeddedPostgres
    valkey: EmbeddedRedis
    chance: random.Random
    kinds: tuple[str, ...] = KINDS[0]
    figures: Figures = field(default_factory=Figures)
    over: threading.Event = field(default_factory=threading.Event)
    calamities_done: threading.Event = field(default_factory=threading.Event)
    fault: list[BaseException] = field(default_factory=list[BaseException])

    def rage(self) -> None:
        """Until `over` is set; a fault of the storm itself is kept in `fault`."""
        try:
            self._rage()
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            self.fault.append(error)
        finally:
            self.calamities_done.set()

    def _rage(self) -> None:
        living = [(worker, kind) for worker, kind in zip(self.pool.workers, self.kinds, strict=True)]
        calamities: list[Callable[[], None]] = [self._flush, self._restart_redis, self._crash_postgres]
        self.chance.shuffle(calamities)
        planned = dict(zip(sorted(self.chance.sample(range(1, TIMES + 1), len(calamities))), calamities, strict=True))
        for number in itertools.count(1):
            if self.over.wait(KILL_EVERY_S):
                return
            if number in planned:
                time.sleep(self.chance.uniform(0, KILL_EVERY_S / 2))
                self.figures.unfinished.append(self._count_unfinished())
                planned.pop(number)()
                if not planned:
                    self.calamities_done.set()
            living = [self._kept_alive(*each) for each in living]
            # Every process is as likely a victim as any other.
            victims = [(place, pid) for place, (worker, _) in enumerate(living) for pid in (worker.pid, *worker.children)]
            place, pid = self.chance.choice(victims)
            living[place] = self._kill(*living[place], pid)

    def _kept_alive(self, worker: Worker, kind: str) -> tuple[Worker, str]:
        code = worker.process.poll()
        if code is None:
            return worker, kind
        self.figures.ended.append(f"a {kind} worker ended by itself with {code}: {worker.log.read_text()[-400:]}")
        return self._start(kind), kind

    def _kill(self, worker: Worker, kind: str, pid: int) -> tuple[Worker, str]:
        if pid != worker.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.figures.child_kills += 1
            return worker, kind
        worker.kill()
        self.figures.kills += 1
        return self._start(kind), kind

    def _start(self, kind: str) -> Worker:
        return self.pool.start(kind, concurrency=CONCURRENCY[kind], wait=False)

    def _count_unfinished(self) -> int:
        with psycopg.connect(self.pool.settings.database_url) as connection:
            sql = "SELECT count(*) FROM run_head WHERE status IN ('queued', 'running') AND parked IS NULL"
            return int(connection.execute(sql).fetchall()[0][0])

    def _flush(self) -> None:
        with redis.Redis.from_url(self.valkey.url) as client:
            client.flushall()
        self.figures.flushes += 1

    def _restart_redis(self) -> None:
        self.valkey.restart()
        self.figures.redis_restarts += 1

    def _crash_postgres(self) -> None:
        crash(self.postgres)
        self.figures.postgres_crashes += 1


def crash(server: EmbeddedPostgres) -> None:
    """As ``pg_ctl stop -m immediate`` and a start do: no checkpoint, every connection is cut, recovery from the log."""
    os.kill(server.pid, signal.SIGQUIT)
    wait_until(lambda: not _runs(server), "Postgres has ended")
    server.start()


def _runs(server: EmbeddedPostgres) -> bool:
    try:
        return bool(server.pid)
    except ServerUnavailableError:
        return False


def torment(storm: Storm, *, runs: int, turns: int) -> Figures:
    """One round: start the workers, let the runs go into the storm, settle what is unknown when it is over, count."""
    pool, figures = storm.pool, storm.figures
    pool.module = "tests.faults.effect_agents:app"
    app = application(pool.settings)
    try:
        for kind in storm.kinds:
            pool.start(kind, concurrency=CONCURRENCY[kind], wait=False)
        for worker in pool.workers:
            worker.wait_for("worker_open")
        began = time.monotonic()
        thread = threading.Thread(target=storm.rage)
        thread.start()
        handles: list[Handle] = []
        try:
            handles += [_enqueued(app, turns, number) for number in range(runs - runs // LATE)]
            storm.calamities_done.wait(PATIENCE_S)
            handles += [_enqueued(app, turns, number) for number in range(len(handles), runs)]
            waiting = _reported(handles, figures, began + PATIENCE_S)
        finally:
            storm.over.set()
            thread.join()
        figures.seconds = time.monotonic() - began
        figures.broken += [f"the storm itself failed: {error!r}" for error in storm.fault]
        for worker in pool.workers:
            worker.kill()  # what has no outcome by now will never have one
        figures.takeovers = sum(worker.log.read_text().count("run_taken_over") for worker in pool.workers)
        _count(Effects.of(pool), figures)
        _settle(pool, waiting, figures)
        sent = Effects.of(pool).sends.total()
        if figures.completed + figures.waiting == runs and sent != runs * sends_of(turns):
            figures.broken.append(f"after settling, {sent} sends instead of {runs * sends_of(turns)}")
    finally:
        app.close()
    return figures


def _enqueued(app: Deuz, turns: int, number: int) -> Handle:
    """As a producer has to do it: when nobody knows whether the run was made, ask again under the same key."""
    key = f"run {number}"
    return _insist(lambda: app.enqueue("effects", f"{turns} turns", idempotency_key=key))


def _insist(ask: Callable[[], T]) -> T:
    """What `ask` returns once the database answers; on a starved machine it may be away for longer than a client waits."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except StoreUnavailableError:
            if time.monotonic() > until:
                raise


def _reported(handles: list[Handle], figures: Figures, until: float) -> list[Handle]:
    """Wait until every run has something to report; returns those that wait for a person."""
    waiting: list[Handle] = []
    for handle in handles:
        try:
            result = _insist(lambda: handle.result(max(1.0, until - time.monotonic())))  # noqa: B023
        except ResultTimeoutError:
            figures.broken.append(f"run {handle.run_id} stands still: {handle.envelope()}")
            continue
        if result.status == "completed":
            figures.completed += 1
        elif result.reason == "tool-reconciliation-required" and result.unknown_effects:
            figures.waiting += 1
            figures.unknown += len(result.unknown_effects)
            waiting.append(handle)
        else:
            figures.broken.append(f"run {handle.run_id} is {result.status}: {result.reason or result.error}")
    return waiting


def _count(effects: Effects, figures: Figures) -> None:
    figures.sends, figures.puts = effects.sends.total(), effects.puts.total()
    figures.puts_again = figures.puts - len(effects.puts)
    figures.broken += effects.broken()


def _settle(pool: Pool, waiting: list[Handle], figures: Figures) -> None:
    """Say of every unknown effect what the files say; then all runs complete, and every send has happened once."""
    if not waiting:
        return
    before = Effects.of(pool)
    for handle in waiting:
        unknown = handle.unknown_effects()
        sent = {effect.tool_call_id: "sent" for effect in unknown if before.has_sent(handle.run_id, effect)}
        figures.happened += len(sent)
        handle.reconcile(sent, retry=[effect.tool_call_id for effect in unknown if effect.tool_call_id not in sent])
    pool.start("threads", concurrency=CONCURRENCY["threads"])
    for handle in waiting:
        result = handle.result(PATIENCE_S)
        if result.status != "completed":
            figures.broken.append(f"settled run {handle.run_id} is {result.status}: {result.reason or result.error}")
    figures.broken += [f"after settling, {text}" for text in Effects.of(pool).broken()]


@contextlib.contextmanager
def own_servers() -> Generator[tuple[EmbeddedPostgres, EmbeddedRedis]]:
    """A durable Postgres and a Valkey, both to be broken."""
    with EmbeddedPostgres() as postgres, EmbeddedRedis() as valkey:
        yield postgres, valkey


@contextlib.contextmanager
def fresh_pool(folder: Path, postgres: EmbeddedPostgres, valkey: EmbeddedRedis, name: str) -> Generator[Pool]:
    """No worker yet, over a migrated database `name` of its own and an empty Valkey."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    asyncio.run(_migrated(postgres.url_of(name)))
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    settings = Settings(database_url=postgres.url_of(name), redis_url=valkey.url, lease_ttl_ms=TTL_MS, sweep_interval_ms=500)
    pool = Pool(folder, settings)
    try:
        yield pool
    finally:
        pool.close()


async def _migrated(url: str) -> None:
    await migrate(url)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0, help="of the first round, the next has the next; 0: a new one")
    parser.add_argument("--keep", type=Path, help="folder for the logs of rounds in which a promise was broken")
    given = parser.parse_args()
    os.environ["DEUZ_CONFIG"] = os.devnull
    first = given.seed or random.SystemRandom().randrange(1, 1 << 31)
    total = Figures()
    with own_servers() as (postgres, valkey):
        for number in range(given.rounds):
            with tempfile.TemporaryDirectory() as here, fresh_pool(Path(here), postgres, valkey, f"round{number}") as pool:
                storm = Storm(pool, postgres, valkey, random.Random(first + number), KINDS[number % len(KINDS)])
                figures = torment(storm, runs=given.runs, turns=given.turns)
                if figures.broken and given.keep is not None:
                    shutil.copytree(here, given.keep / f"seed{first + number}")
            kinds = ",".join(storm.kinds)
            print(
                f"round {number + 1} (seed {first + number}, {kinds}): {figures}",
                *figures.ended,
                *figures.broken,
                sep="\n  ",
                flush=True,
            )
            total += figures
    print(f"{given.rounds} rounds of {given.runs} runs of {given.turns} turns, lease TTL {TTL_MS} ms: {total}")
    return 1 if total.broken else 0


if __name__ == "__main__":
    sys.exit(main())
