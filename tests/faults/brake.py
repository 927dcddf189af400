"""A brake is set while workers take turn after turn: how long until the last effect began.

``python -m tests.faults.brake`` does so several times and prints, by the database's clock, the time from the brake to the last
commit that let a model call or a tool begin, and from its end to the first one. It ends with 0 if nothing began later than a
second after the brake.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import psycopg

from tests.faults.fairness import fresh_pool
from tests.workers.pool import Pool, wait_until

WORKERS, SLOTS, RUNS = 2, 8, 16
LATEST_MS = 1_000
WATCHED_S = 3.0

BEGAN = "(j.body like '%%model.called%%' or j.body like '%%tool.started%%')"
LAST = f"select extract(epoch from max(j.at) - to_timestamp(%s / 1000.0)) * 1000 from journal j where {BEGAN}"
FIRST = f"{LAST.replace('max', 'min')} and j.at > to_timestamp(%s / 1000.0)"


def measure(pool: Pool, repeats: int) -> list[tuple[float, float]]:
    """Milliseconds from each brake to the last effect that began, and from its end to the first one."""
    for _ in range(WORKERS):
        pool.start(concurrency=SLOTS, wait=False)
    for worker in pool.workers:
        worker.wait_for("worker_open")
    handles = [pool.app.enqueue("empty", "1000000 turns") for _ in range(RUNS)]
    wait_until(lambda: all(handle.status() == "running" for handle in handles), "all runs are at work")
    figures: list[tuple[float, float]] = []
    with psycopg.connect(pool.settings.database_url, autocommit=True) as database:

        def asked(sql: str, *values: float) -> Any:
            row = database.execute(sql, values).fetchone()  # pyright: ignore[reportArgumentType]
            assert row is not None
            return row[0]

        for _ in range(repeats):
            time.sleep(1.0)
            pool.app.operator.set_brake("agent", "empty", reason="measured")
            [brake] = pool.app.operator.brakes()
            time.sleep(WATCHED_S)
            stopped_ms = float(asked(LAST, brake.at_ms))
            pool.app.operator.lift_brake("agent", "empty")
            [lifted] = pool.app.operator.brake_acts(1)
            wait_until(lambda at=lifted.at_ms: asked(FIRST, at, at) is not None, "runs go on")
            figures.append((stopped_ms, float(asked(FIRST, lifted.at_ms, lifted.at_ms))))
    for handle in handles:
        handle.cancel()
    return figures


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.brake", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with fresh_pool() as (pool, _):
        figures = measure(pool, given.repeats)
    for stopped_ms, went_on_ms in figures:
        print(f"the last effect began {stopped_ms:.0f} ms after the brake, the first one {went_on_ms:.0f} ms after its end")
    return 0 if max(stopped_ms for stopped_ms, _ in figures) <= LATEST_MS else 1


if __name__ == "__main__":
    sys.exit(main())
