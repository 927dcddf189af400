"""The bare floor on the pools that are measured, in the same minutes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import psycopg
import redis

from deuz_workers.embedded import broker_url
from tests.bench.floor_app import BODY, SCHEMA, app
from tests.bench.processes import SLOTS, Worker, worker
from tests.bench.windows import Figures

RUNS = 8
WARM_UP_STEPS = 50


class FloorBench:
    """Chains of floor steps on a database and a Redis; the same that the product is measured with."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self._folder = folder
        self._environment = {
            "BENCH_DATABASE_URL": database_url,
            "BENCH_REDIS_URL": redis_url,
            "BENCH_BROKER_URL": broker_url(redis_url),
        }
        self._database: psycopg.Connection[Any] = psycopg.connect(database_url, autocommit=True)
        self._database.execute(SCHEMA)
        self._redis: redis.Redis = redis.Redis.from_url(redis_url)
        self._chains = 0
        app.conf.update(broker_url=broker_url(redis_url))

    def close(self) -> None:
        self._redis.close()
        self._database.close()

    @contextlib.contextmanager
    def running(self, pool: str, *, steps: int) -> Generator[Callable[[], Figures]]:
        """A worker, and a function that measures it once: one chain of `steps` alone, then eight at a time."""
        options = ["-P", pool, "-c", str(SLOTS[pool]), "--without-gossip", "--without-mingle", "--without-heartbeat"]
        command = ["-m", "celery", "-A", "tests.bench.floor_app", "worker", *options, "-l", "WARNING"]
        with worker(command, self._environment, self._folder / f"floor-{pool}.log") as running:
            self._chain(running, RUNS, WARM_UP_STEPS)
            yield lambda: self._once(running, steps)

    def _once(self, running: Worker, steps: int) -> Figures:
        each = max(20, steps // 4)
        return {
            "floor_ms_per_step": self._chain(running, 1, steps) * 1000 / steps,
            "floor_steps_per_s_8_runs": RUNS * each / self._chain(running, RUNS, each),
        }

    def _chain(self, running: Worker, runs: int, steps: int) -> float:
        """Seconds until `runs` chains of `steps` steps, started together, had all ended."""
        self._chains += 1
        names = [f"chain{self._chains}-{run}" for run in range(runs)]
        for name in names:
            self._database.execute("insert into floor_head (id, revision, body) values (%s, 0, %s)", [name, BODY])
        began = time.monotonic()
        for name in names:
            app.send_task("floor.step", [name, steps])
        for _ in names:
            while cast(Any, self._redis.blpop(["floor:done"], 1)) is None:
                running.check()
        return time.monotonic() - began
