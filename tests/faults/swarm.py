"""A graph of many tasks on three workers, of which some are killed at random, while Redis is emptied once.

``python -m tests.faults.swarm`` repeats it and ends with 0 if every promise was kept:

* every task completes, and the result is the right one;
* the journal is dense, each task ended once in it, and none began before what it waits for;
* no more tasks ran than the swarm has slots, and what a task created is there once.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from dataclasses import dataclass, field

import redis

from deuz_workers.app.handle import SwarmHandle
from deuz_workers.app.loop_thread import LOOP
from tests.faults.rounds import play
from tests.faults.swarm_agents import SPAWNED, application, graph
from tests.simulation.swarm_journal import journal_problems
from tests.workers.pool import Pool, wait_until

TTL_MS = 2_000
PATIENCE_S = 480.0
SLOTS = 16


@dataclass
class Figures:
    """What one round did."""

    tasks: int = 0
    seconds: float = 0.0
    kills: int = 0
    flushes: int = 0
    broken: list[str] = field(default_factory=list[str])
    """Promises that were not kept, in words."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:5.1f} s, {self.tasks} tasks, {self.kills} kills, {self.flushes} flushes; "
            f"{len(self.broken)} promises broken"
        )


def torment(pool: Pool, *, width: int, kills: int, seed: int) -> Figures:
    """One round: workers are killed and Redis is emptied when random shares of the tasks have ended; then all is judged."""
    chance = random.Random(seed)
    pool.module = "tests.faults.swarm_agents:app"
    figures = Figures()
    app = application(pool.settings)
    try:
        for _ in range(3):
            pool.start("threads", SLOTS, wait=False)
        for worker in pool.workers:
            worker.wait_for("worker_open")
        began = time.monotonic()
        handle = app.run_swarm(graph(width))
        killer = threading.Thread(target=_kill, args=(pool, chance, handle, kills, figures))
        killer.start()
        result = handle.result(PATIENCE_S)
        killer.join()
        figures.seconds, figures.tasks = time.monotonic() - began, len(result.tasks)
        if result.status != "completed" or dict(result.counts) != {"completed": 2 * width + 2 + SPAWNED + 1}:
            figures.broken.append(f"the swarm is {result.status}: {dict(result.counts)}")
        wanted = {"join": sum(range(width)), "grow": 0, "grow/sum": SPAWNED}
        if dict(result.outputs) != wanted:
            figures.broken.append(f"its outputs are {dict(result.outputs)}, not {wanted}")
        events = LOOP.run(app.store.swarm_events(handle.scope, handle.run_id, 0, 1_000_000))
        figures.broken += journal_problems(handle.snapshot(), events)
    finally:
        app.close()
    return figures


def _kill(pool: Pool, chance: random.Random, handle: SwarmHandle, kills: int, figures: Figures) -> None:
    """Each time when some more tasks have ended; Redis is emptied once, beside one of the kills."""
    flush_at = chance.randrange(kills)
    total = handle.snapshot().total
    for number in range(kills):
        share = (number + chance.random()) / (kills + 1)
        wait_until(lambda share=share: _ended(handle) >= share * total or handle.status() == "completed", "a kill", PATIENCE_S)
        if handle.status() == "completed":
            return
        chance.choice(pool.workers[-3:]).kill()
        figures.kills += 1
        if number == flush_at:
            assert pool.settings.redis_url is not None
            with redis.Redis.from_url(pool.settings.redis_url) as server:
                server.flushall()
            figures.flushes += 1
        alive = [worker for worker in pool.workers if worker.process.poll() is None]
        pool.workers[:] = [*(worker for worker in pool.workers if worker not in alive), *alive]
        pool.start("threads", SLOTS, wait=False)


def _ended(handle: SwarmHandle) -> int:
    snapshot = handle.snapshot()
    return len(snapshot.tasks) - snapshot.open


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.swarm", description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--width", type=int, default=1_000, help="tasks of each of the two levels")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="0: a new one")
    given = parser.parse_args()

    def round_of(pool: Pool, number: int, seed: int) -> Figures:
        return torment(pool, width=given.width, kills=given.kills, seed=seed)

    return play(given.repeats, given.seed, round_of, lease_ttl_ms=TTL_MS, sweep_interval_ms=500)


if __name__ == "__main__":
    sys.exit(main())
