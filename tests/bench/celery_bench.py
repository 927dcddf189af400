"""Runs on real Celery workers with Redis and Postgres."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.leases import open_leases
from tests.bench.application import AGENT, GATES, application, gate_of_files, prompt_for
from tests.bench.processes import SLOTS, Worker, worker
from tests.bench.windows import Edge, Figures, figures_of, gates_of, medians

RUNS = 8
IDLE_S = 1.5
LEASE_TTL_S = 10
"""Shorter than in production, so that a lease provider that has just started soon trusts its memory: until then every claim
takes two calls and a look at the head. Beats come three times as often, which is one call in three seconds."""
WARM_UP_TURNS = 40

COUNTERS = """
select pg_snapshot_xmax(pg_current_snapshot())::text::bigint,           -- one id for every transaction that wrote
       pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
       (select coalesce(sum(pg_column_size(body)), 0) from message where rid = %(rid)s)
       + (select coalesce(sum(pg_column_size(body)), 0) from receipt where rid = %(rid)s)
       + (select coalesce(sum(pg_column_size(body)), 0) from journal where rid = %(rid)s),
       (select pg_column_size(body) from run_head where rid = %(rid)s)
"""
ANSWERED = """
select array_agg(extract(epoch from j.at)::float8 order by j.at)
from journal j join run_head h on h.rid = j.rid
where h.run_id = any (%s) and j.body like '%%"turn.answered"%%'
group by h.run_id
"""


class CeleryBench:
    """One database and one Redis. Workers come and go with the pools that are measured."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self._folder = folder
        self._database_url = database_url
        self._redis_url = redis_url
        self._app: Deuz = application(gate_of_files, Settings(database_url=database_url, redis_url=redis_url))
        self._database: psycopg.Connection[Any] = psycopg.connect(database_url, autocommit=True)
        self._trusted_at = time.monotonic() + LEASE_TTL_S + 1
        asyncio.run(_begin_memory(redis_url))

    def close(self) -> None:
        self._app.close()
        self._database.close()

    def measure(self, pool: str, *, turns: int, together: int, repeats: int, beside: Callable[[], None]) -> Figures:
        """One run of `turns` turns alone, `repeats` times; then eight of `together` turns at a time.

        `beside` is called before every repeat, with the worker idle: what is compared is measured in the same minute.
        """
        gates = self._folder / pool
        gates.mkdir()
        environment = {
            "DEUZ_DATABASE_URL": self._database_url,
            "DEUZ_REDIS_URL": self._redis_url,
            "DEUZ_POOL": pool,
            "DEUZ_CONCURRENCY": str(SLOTS[pool]),
            "DEUZ_LEASE_TTL_MS": str(LEASE_TTL_S * 1000),
            GATES: str(gates),
        }
        with worker(["-m", "tests.bench.worker"], environment, self._folder / f"{pool}.log") as running:
            for handle in [self._app.enqueue(AGENT, prompt_for(WARM_UP_TURNS)) for _ in range(SLOTS[pool])]:
                running.wait_until(lambda handle=handle: handle.status() == "completed", "warm-up")
            time.sleep(max(0.0, self._trusted_at - time.monotonic()))
            idle = self._idle_wal_bytes_per_s()
            alone: list[Figures] = []
            for _ in range(repeats):
                beside()
                alone.append(figures_of(self._alone(running, gates, turns), idle_wal_bytes_per_s=idle))
            return {**medians(alone), **self._together(running, together)}

    def _alone(self, running: Worker, gates: Path, turns: int) -> dict[int, Edge]:
        edges: dict[int, Edge] = {}
        for left_behind in gates.iterdir():
            left_behind.unlink()
        handle = self._app.enqueue(AGENT, prompt_for(turns, gates_of(turns)))
        found = self._database.execute("select rid from run_head where run_id = %s", [handle.run_id]).fetchone()
        assert found is not None
        for turn in gates_of(turns):
            came, went = gates / f"{turn}.came", gates / f"{turn}.went"
            running.wait_until(came.exists, f"turn {turn}")
            counters = self._database.execute(COUNTERS, {"rid": found[0]}).fetchone()
            assert counters is not None
            (gates / f"{turn}.go").touch()
            running.wait_until(went.exists, f"the gate of turn {turn}")
            commits, wal_bytes, row_bytes, head_bytes = map(int, counters)
            edges[turn] = Edge(int(came.read_text()), int(went.read_text()), commits, wal_bytes, row_bytes, head_bytes)
        running.wait_until(lambda: handle.status() == "completed", "the end of the run")
        return edges

    def _together(self, running: Worker, turns: int) -> Figures:
        """From when every run has answered a turn until one has answered its last."""
        handles = [self._app.enqueue(AGENT, prompt_for(turns)) for _ in range(RUNS)]
        for handle in handles:
            running.wait_until(lambda handle=handle: handle.status() == "completed", "eight runs")
        rows = self._database.execute(ANSWERED, [[handle.run_id for handle in handles]]).fetchall()
        times: Sequence[Sequence[float]] = [row[0] for row in rows]
        begin, end = max(answered[0] for answered in times), min(answered[-1] for answered in times)
        within = sum(begin < at <= end for answered in times for at in answered)
        return {"turns_per_s_8_runs": within / (end - begin)}

    def _idle_wal_bytes_per_s(self) -> float:
        before = self._wal_bytes()
        time.sleep(IDLE_S)
        return (self._wal_bytes() - before) / IDLE_S

    def _wal_bytes(self) -> int:
        row = self._database.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])


async def _begin_memory(redis_url: str) -> None:
    """The lease provider's memory counts from its first call."""
    leases = open_leases(redis_url)
    await leases.peek("bench")
    await leases.close()
