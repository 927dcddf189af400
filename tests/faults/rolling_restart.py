"""Workers are replaced one after the other while a hundred model calls are in flight.

``python -m tests.faults.rolling_restart`` does it twice. With a grace period of two minutes every call ends and is saved, and
nothing is held that nobody knows. With one of a second the calls that were in flight are ended with their workers: exactly
these are listed as unknown, and every run completes all the same. Prints both, and ends with 0 if it was so.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from deuz_workers.app import ledger
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from tests.faults.fairness import fresh_pool
from tests.faults.slow_agents import AGENT, prompt_for
from tests.workers.pool import Pool

WORKERS = 4
TURNS = 2
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Restarted:
    """What one rolling restart left."""

    seconds: float
    completed: int
    calls: int
    cut_off: frozenset[str]
    """Request ids of model calls that began and whose answer was not saved."""
    unknown: frozenset[str]
    """Request ids of holds that nobody can settle, as operators see them listed."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:.0f} s, {self.calls} calls began, {self.completed} runs completed, {len(self.cut_off)} calls cut "
            f"off, {len(self.unknown)} holds unknown"
            + ("" if self.cut_off == self.unknown else f", NOT the same: {sorted(self.cut_off ^ self.unknown)[:5]}")
        )


def restart(pool: Pool, app: Deuz, *, runs: int, call_ms: int, grace_ms: int) -> Restarted:
    """Every run has a call in flight; one worker after the other ends as its successor is there; the runs are waited for."""
    pool.module = "tests.faults.slow_agents:app"
    slots = -(-runs // WORKERS)
    old = [pool.start(concurrency=slots, wait=False, drain_grace_ms=grace_ms) for _ in range(WORKERS)]
    for worker in old:
        worker.wait_for("worker_open")
    began = time.monotonic()
    handles = [app.enqueue(AGENT, prompt_for(TURNS, call_ms)) for _ in range(runs)]
    new = [pool.start(concurrency=slots, wait=False, drain_grace_ms=grace_ms) for _ in range(WORKERS)]
    pool.wait_for_lines("asked", runs)
    for worker, successor in zip(old, new, strict=True):
        successor.wait_for("worker_open")
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE_S) == 0
    completed = sum(handle.result(PATIENCE_S).status == "completed" for handle in handles)
    asked, answered = pool.lines("asked"), pool.lines("answered")
    unknown = frozenset(hold.request_id for hold in LOOP.run(ledger.holds(app.store, limit=10_000)))
    return Restarted(time.monotonic() - began, completed, len(asked), cut_off(asked, answered), unknown)


def cut_off(asked: Sequence[str], answered: Sequence[str]) -> frozenset[str]:
    """Calls that never had their answer, and those that were made again: theirs came in the very moment in which they ended."""
    again = {before(request_id) for request_id in asked}
    return (frozenset(asked) - frozenset(answered)) | (frozenset(asked) & again)


def before(request_id: str) -> str:
    """Of the attempt before this one."""
    call, _, attempt = request_id.rpartition(":")
    return f"{call}:{int(attempt) - 1}"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.rolling_restart", description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--call-ms", type=int, default=10_000)
    given = parser.parse_args()
    broken = 0
    for grace_ms in (120_000, 1_000):
        with fresh_pool() as (pool, app):
            after = restart(pool, app, runs=given.runs, call_ms=given.call_ms, grace_ms=grace_ms)
        print(f"grace {grace_ms / 1000:.0f} s: {after}", flush=True)
        kept = after.completed == given.runs and after.unknown == after.cut_off
        broken += not (kept and bool(after.unknown) is (grace_ms < given.call_ms))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
