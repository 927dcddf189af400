"""One tenant has thousands of runs that wait, another one enqueues a single run: how long until that begins.

``python -m tests.faults.fairness`` prints it for an empty system, beside the backlog, and right after all of Redis was flushed,
as the time from the run's row to its first model call by the database's clock. It ends with 0 if no run of the second tenant
began later than one step and a second after the slowest one on the empty system.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import redis

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from tests.faults.rounds import pools
from tests.faults.slow_agents import AGENT, application, prompt_for
from tests.workers.pool import Pool, wait_until

WORKERS, SLOTS = 2, 8
LATER_MS = 1_000
ENQUEUERS = 16

BEGAN = """
select extract(epoch from min(j.at) - h.created_at) * 1000
from run_head h join journal j on j.rid = h.rid
where h.run_id = %s
group by h.rid
"""
"""The first event of a run is saved by the commit that allows its first model call."""


@dataclass
class Figures:
    """Milliseconds until the second tenant's runs began."""

    step_ms: int
    alone: list[float] = field(default_factory=list[float])
    beside: list[float] = field(default_factory=list[float])
    flushed: list[float] = field(default_factory=list[float])
    ended: int = 0
    """Runs of the first tenant that had ended when the last of the second one's began."""

    @property
    def latest_ms(self) -> float:
        """What the promise allows."""
        return max(self.alone) + self.step_ms + LATER_MS

    @property
    def is_kept(self) -> bool:
        return max(*self.beside, *self.flushed) <= self.latest_ms

    def __str__(self) -> str:
        def told(times: list[float]) -> str:
            return f"{sorted(times)[len(times) // 2]:.0f} ms, at most {max(times):.0f}"

        return (
            f"empty system: {told(self.alone)}; beside the backlog: {told(self.beside)}; after a flush: {told(self.flushed)}; "
            f"allowed: {self.latest_ms:.0f} ms (a step takes {self.step_ms}); {self.ended} runs of the backlog had ended"
        )


def measure(pool: Pool, app: Deuz, *, runs: int, newcomers: int, step_ms: int) -> Figures:
    """Workers, newcomers on an empty system, the backlog, newcomers beside it, and after flushes."""
    pool.module = "tests.faults.slow_agents:app"
    for _ in range(WORKERS):
        pool.start(concurrency=SLOTS, wait=False)
    for worker in pool.workers:
        worker.wait_for("worker_open")
    figures = Figures(step_ms)
    with psycopg.connect(pool.settings.database_url, autocommit=True) as database:

        def newcomer(number: int) -> float:
            handle = app.enqueue(AGENT, prompt_for(1, step_ms), scope=f"small-{number % 3}")
            found: Any = None

            def has_begun() -> bool:
                nonlocal found
                found = database.execute(BEGAN, [handle.run_id]).fetchone()
                return found is not None

            wait_until(has_begun, f"run {number} of a small tenant begins")
            return float(found[0])

        def count(scope: str, status: str) -> int:
            asked = "select count(*) from run_head where scope = %s and status = %s"
            row = database.execute(asked, [scope, status]).fetchone()
            assert row is not None
            return int(row[0])

        newcomer(0)  # whatever is loaded at the first call of a process is loaded now
        figures.alone = [newcomer(number) for number in range(newcomers)]
        LOOP.run(_enqueue(app, runs, step_ms))
        wait_until(lambda: count("large", "running") >= WORKERS * SLOTS // 2, "the backlog is at work")
        figures.beside = [newcomer(number) for number in range(newcomers)]
        for number in range(newcomers):
            with redis.Redis.from_url(pool.settings.redis_url or "") as client:
                client.flushall()
            figures.flushed.append(newcomer(number))
        figures.ended = count("large", "completed")
        assert count("large", "queued") > 0, "the backlog was too small: nothing of it waits any more"
    return figures


async def _enqueue(app: Deuz, runs: int, step_ms: int) -> None:
    left = iter(range(runs))

    async def some() -> None:
        for _ in left:
            await app.aio.enqueue(AGENT, prompt_for(3, step_ms), scope="large")

    await asyncio.gather(*(some() for _ in range(ENQUEUERS)))


@contextmanager
def fresh_pool() -> Generator[tuple[Pool, Deuz]]:
    """A pool over servers of its own, and an application of its slow agents."""
    with pools(1) as made:
        for pool in made:
            app = application(pool.settings)
            try:
                yield pool, app
            finally:
                app.close()


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fairness", description=__doc__)
    parser.add_argument("--runs", type=int, default=5_000, help="of the large tenant")
    parser.add_argument("--newcomers", type=int, default=10, help="of the small ones, in each of the three situations")
    parser.add_argument("--step-ms", type=int, default=300, help="that a step takes, nearly all of it waiting for the model")
    given = parser.parse_args()
    with fresh_pool() as (pool, app):
        figures = measure(pool, app, runs=given.runs, newcomers=given.newcomers, step_ms=given.step_ms)
    print(f"{given.runs} runs wait on {WORKERS} workers of {SLOTS}: {figures}", flush=True)
    return 0 if figures.is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
