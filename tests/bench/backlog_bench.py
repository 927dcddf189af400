"""A hundred thousand runs of one tenant that wait, and another tenant's run that comes; and the tables under a long load."""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis

from deuz_workers.app.bell import broker_queue
from deuz_workers.app.broker_connection import window_key
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.store import open_store
from tests.bench.application import AGENT, GATES, application, gate_of_files, prompt_for
from tests.bench.processes import SLOTS, Worker, worker
from tests.bench.windows import Figures

POOL = "threads"
NEWCOMERS = 10
"""Tenants that come while the backlog is worked off, one after the other."""
PASSES = 12
LOAD_RUNS = 16
LOOK_S = 30.0
RATE_S = 5

SEED = """
with rows as (
    insert into run_head (rid, scope, run_id, kind, agent, queue, priority, shard, input_digest, created_at, version, last_seq,
                          body, status_at, due_at, sweep_at, ripe)
    select gen_random_uuid(), h.scope, 'seed-' || n, h.kind, h.agent, h.queue, h.priority, h.shard, h.input_digest,
           now(), h.version, h.last_seq, h.body, now(), now(), now() + n * interval '1 microsecond', true
    from run_head h, generate_series(1, %(count)s) as n
    where h.run_id = %(like)s
    returning rid
)
insert into message (rid, epoch, seq, body)
select r.rid, m.epoch, m.seq, m.body
from rows r, message m join run_head h on h.rid = m.rid
where h.run_id = %(like)s
"""
STARTED = """
select extract(epoch from min(j.at) - h.created_at) * 1000
from run_head h join journal j on j.rid = h.rid
where h.run_id = %s
group by h.rid
"""
TABLES = """
select coalesce(sum(n_tup_upd), 0), coalesce(sum(n_tup_hot_upd), 0),
       pg_table_size('run_head'), pg_indexes_size('run_head'), pg_table_size('lease'), pg_table_size('budget_scope'),
       pg_total_relation_size('message') + pg_total_relation_size('receipt') + pg_total_relation_size('journal')
from pg_stat_user_tables where relname = 'run_head'
"""


class BacklogBench:
    """One database and one Redis; the worker is a real one."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, window: int = 0) -> None:
        """`window`: the setting of that name."""
        self._folder = folder
        self._window = window
        self._database_url = database_url
        self._redis_url = redis_url
        settings = Settings(database_url=database_url, redis_url=redis_url, concurrency=SLOTS[POOL], window=window)
        self._least = settings.least_window
        self._app: Deuz = application(gate_of_files, settings)
        self._database: psycopg.Connection[Any] = psycopg.connect(database_url, autocommit=True)

    def close(self) -> None:
        self._app.close()
        self._database.close()

    def measure(self, count: int) -> Figures:
        """Seed, sweep without a worker, then with one: how long the queue gets, and when newcomers begin."""
        began = time.monotonic()
        self._seed(count)
        figures: Figures = {"backlog_seed_s": time.monotonic() - began}
        figures |= asyncio.run(self._sweeps())
        with self._worker() as running, self._queue() as looks:
            running.wait_until(lambda: self._ended() >= min(40, count // 4), "the backlog is worked off")
            figures |= self._newcomers(running)
            seconds = RATE_S if count >= 10_000 else 1
            until, before = time.monotonic() + seconds, self._ended()
            running.wait_until(lambda: time.monotonic() > until, "some seconds")
            figures["backlog_runs_per_s"] = (self._ended() - before) / seconds
        with redis.Redis.from_url(self._redis_url) as client:
            most = float(client.hget(window_key(broker_queue("default")), "most") or 0)
        return {
            **figures,
            "backlog_queue_max": most,
            "backlog_queue_median": statistics.median(waiting for waiting, _ in looks),
            "backlog_window_max": max(size for _, size in looks),
            "backlog_looks_above_window": sum(waiting > size for waiting, size in looks),
        }

    def load(self, minutes: float) -> None:
        """Runs that take turn after turn; every half minute a line about the tables. Prints, and returns nothing."""
        with self._worker() as running:
            handles = [self._app.enqueue(AGENT, prompt_for(1_000_000), scope="load") for _ in range(LOAD_RUNS)]
            running.wait_until(lambda: all(handle.status() == "running" for handle in handles), "all runs have begun")
            _say("minutes  updates of heads  of them HOT  head table  head indexes  leases  scopes  append-only tables")
            began, (updates0, hot0) = time.monotonic(), self._tables()[:2]
            while (passed := time.monotonic() - began) < minutes * 60:
                next_look = time.monotonic() + min(LOOK_S, minutes * 60 - passed)
                running.wait_until(lambda until=next_look: time.monotonic() >= until, "half a minute")
                updates, hot, *sizes = self._tables()
                share = (hot - hot0) / max(1, updates - updates0)
                told = "  ".join(f"{size / 1024:,.0f} kB" for size in sizes)
                _say(f"{(time.monotonic() - began) / 60:7.1f}  {updates - updates0:9,}  {share:7.1%}  {told}")
            for handle in handles:
                handle.cancel()

    def _tables(self) -> tuple[int, ...]:
        row = self._database.execute(TABLES).fetchone()
        assert row is not None
        return tuple(int(value) for value in row)

    def _seed(self, count: int) -> None:
        template = self._app.enqueue(AGENT, prompt_for(1), scope="backlog")
        self._database.execute(SEED, {"count": count, "like": template.run_id})
        self._database.execute("vacuum analyze run_head, message")
        with redis.Redis.from_url(self._redis_url) as client:
            client.flushdb()

    async def _sweeps(self) -> Figures:
        """Milliseconds of one pass' statement: with a window of places to give, with 500, and with none."""
        store = open_store(self._database_url)
        figures: Figures = {}
        for places in (0, 64, 500):
            took: list[float] = []
            for _ in range(PASSES):
                began = time.monotonic()
                await store.sweep(limit=places, spare=16, ttl_ms=1, queues=["default", "default.quarantine"])
                took.append((time.monotonic() - began) * 1000)
            figures[f"sweep_ms_{places}_places"] = statistics.median(took[2:])  # the first two are not prepared
        await store.close()
        return figures

    @contextmanager
    def _worker(self) -> Generator[Worker]:
        gates = self._folder / "gates"
        gates.mkdir(exist_ok=True)
        environment = {
            "DEUZ_DATABASE_URL": self._database_url,
            "DEUZ_REDIS_URL": self._redis_url,
            "DEUZ_POOL": POOL,
            "DEUZ_CONCURRENCY": str(SLOTS[POOL]),
            "DEUZ_WINDOW": str(self._window),
            GATES: str(gates),
        }
        with worker(["-m", "tests.bench.worker"], environment, self._folder / "backlog.log") as running:
            yield running

    @contextmanager
    def _queue(self) -> Generator[list[tuple[int, int]]]:
        """Length of the queue and size of its window at one moment, a hundred times a second while this is open.

        The most that it ever held is written down by the broker itself, with every doorbell.
        """
        over = threading.Event()
        looks = [(0, self._least)]
        name = broker_queue("default")

        def watch() -> None:
            with redis.Redis.from_url(self._redis_url) as client:
                while not over.wait(0.01):
                    with client.pipeline(transaction=True) as pipe:
                        for suffix in ("", "\x06\x163", "\x06\x166", "\x06\x169"):
                            pipe.llen(name + suffix)
                        pipe.hget(window_key(name), "size")
                        *lengths, size = pipe.execute()
                    looks.append((sum(lengths), max(self._least, int(size or 0))))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield looks
        finally:
            over.set()
            watcher.join()

    def _newcomers(self, running: Worker) -> Figures:
        """From the row of a run to its first event, in milliseconds by the database's clock."""
        took: list[float] = []
        for number in range(NEWCOMERS):
            handle = self._app.enqueue(AGENT, prompt_for(1), scope=f"tenant {number}")
            running.wait_until(lambda handle=handle: handle.status() == "completed", f"newcomer {number}")
            row = self._database.execute(STARTED, [handle.run_id]).fetchone()
            assert row is not None
            took.append(float(row[0]))
        return {"newcomer_starts_ms_median": statistics.median(took), "newcomer_starts_ms_max": max(took)}

    def _ended(self) -> int:
        row = self._database.execute("select count(*) from run_head where status = 'completed'").fetchone()
        assert row is not None
        return int(row[0])


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
