"""Three workers, one of which is killed every second at random, and runs whose effects are counted.

``python -m tests.faults.kill_workers`` repeats it five times and ends with 0 if every promise was kept:

* every run completes, or waits for a person and lists the effects that nobody knows of;
* an effect that must not happen twice happened at most once, and exactly once in a run that completed;
* an idempotent effect was repeated under one and the same key only.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from dataclasses import dataclass, field

from deuz_workers.app.handle import Handle
from tests.faults.effect_agents import application
from tests.faults.effects import Effects, sends_of
from tests.faults.rounds import play
from tests.workers.pool import Pool

POOLS = ("threads", "threads", "prefork")
TTL_MS = 2_000
PATIENCE_S = 180.0


@dataclass
class Figures:
    """What one round did."""

    seconds: float = 0.0
    kills: int = 0
    completed: int = 0
    parked: int = 0
    sent: int = 0
    put: int = 0
    put_again: int = 0
    broken: list[str] = field(default_factory=list[str])
    """Promises that were not kept, in words."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:5.1f} s, {self.kills} kills: {self.completed} runs completed, {self.parked} wait for a person; "
            f"{self.sent} sends, {self.put} puts of which {self.put_again} repeated; {len(self.broken)} promises broken"
        )


def torment(pool: Pool, *, runs: int, turns: int, seed: int, every_s: float = 1.0) -> Figures:
    """One round: start the workers, let the runs go, kill until all of them have something to report, count."""
    chance = random.Random(seed)
    pool.module = "tests.faults.effect_agents:app"
    figures = Figures()
    app = application(pool.settings)
    try:
        for kind in POOLS:
            pool.start(kind, concurrency=4, wait=False)
        for worker in pool.workers:
            worker.wait_for("worker_open")
        began = time.monotonic()
        handles = [app.enqueue("effects", f"{turns} turns") for _ in range(runs)]
        done = threading.Event()
        killer = threading.Thread(target=_kill, args=(pool, chance, every_s, done, figures))
        killer.start()
        try:
            for handle in handles:
                _judge(handle, figures)
        finally:
            done.set()
            killer.join()
        figures.seconds = time.monotonic() - began
    finally:
        app.close()
    _count(pool, runs, turns, figures)
    return figures


def _kill(pool: Pool, chance: random.Random, every_s: float, done: threading.Event, figures: Figures) -> None:
    living = list(zip(pool.workers, POOLS, strict=True))
    while not done.wait(every_s):
        worker, kind = victim = chance.choice(living)
        worker.kill()
        figures.kills += 1
        living.remove(victim)
        living.append((pool.start(kind, concurrency=4, wait=False), kind))


def _judge(handle: Handle, figures: Figures) -> None:
    result = handle.result(PATIENCE_S)
    if result.status == "completed":
        figures.completed += 1
    elif result.reason == "tool-reconciliation-required" and result.unknown_effects:
        figures.parked += 1
    else:
        figures.broken.append(f"run {handle.run_id} is {result.status}: {result.reason or result.error}")


def _count(pool: Pool, runs: int, turns: int, figures: Figures) -> None:
    effects = Effects.of(pool)
    figures.sent, figures.put = effects.sends.total(), effects.puts.total()
    figures.put_again = figures.put - len(effects.puts)
    figures.broken += effects.broken()
    expected = runs * sends_of(turns)
    if figures.completed == runs and figures.sent != expected:
        figures.broken.append(f"all runs completed with {figures.sent} sends instead of {expected}")


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kill_workers", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0, help="0: a new one")
    given = parser.parse_args()

    def round_of(pool: Pool, number: int, seed: int) -> Figures:
        return torment(pool, runs=given.runs, turns=given.turns, seed=seed)

    return play(given.repeats, given.seed, round_of, lease_ttl_ms=TTL_MS, sweep_interval_ms=500)


if __name__ == "__main__":
    sys.exit(main())
