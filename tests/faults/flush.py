"""A flush of Redis between the death of one worker and the tool of another one.

``python -m tests.faults.flush`` repeats it five times and prints how long after the flush the dead worker's run went on. It
ends with 0 if that was within the lease TTL and two seconds each time, and no tool that was running was declared unknown.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.results import AgentResult
from deuz_workers.ports.store import UncleanEnd
from tests.faults.rounds import pools
from tests.workers.pool import Pool

TTL_MS = 2_000
LATEST_S = TTL_MS / 1000 + 2.0


@dataclass(frozen=True)
class AfterFlush:
    """What became of two runs: one whose worker died, one whose tool was running elsewhere."""

    taken_over_s: float
    """After the flush: the second start of the dead worker's tool."""
    dead: AgentResult[object]
    dead_starts: Sequence[str]
    """Idempotency keys, one per start."""
    living: AgentResult[object]
    living_starts: Sequence[str]
    living_ends: Sequence[UncleanEnd]
    """Unclean ends that were held against the run whose worker never died."""


def flush_between(pool: Pool) -> AfterFlush:
    """A worker dies in an idempotent tool, Redis is flushed at once, and a third worker is there to take over."""
    pool.start(concurrency=1)
    living = pool.app.enqueue("holder", "long")
    [living_start] = [line.split() for line in pool.wait_for_lines("hold")]
    victim = pool.start(concurrency=1)  # the other one's only slot is taken
    dead = pool.app.enqueue("again", "gate")
    dead_start = pool.wait_for_lines("hold", 2)[1].split()
    assert int(dead_start[1]) == victim.pid
    pool.start(concurrency=2)
    victim.kill()
    with redis.Redis.from_url(pool.settings.redis_url or "") as client:
        client.flushall()
    flushed = time.monotonic()
    pool.wait_for_lines("hold", 3)
    taken_over_s = time.monotonic() - flushed
    pool.go("gate")
    dead_result = dead.result(60)
    pool.go("long")
    living_result = living.result(60)
    starts = [line.split()[0] for line in pool.lines("hold")]
    return AfterFlush(
        taken_over_s,
        dead_result,
        [key for key in starts if key == dead_start[0]],
        living_result,
        [key for key in starts if key == living_start[0]],
        LOOP.run(pool.app.store.unclean_ends("default", living.run_id)),
    )


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.flush", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    broken = 0
    with pools(given.repeats, lease_ttl_ms=TTL_MS) as made:
        for number, pool in enumerate(made):
            after = flush_between(pool)
            known = after.living.status == "completed" and len(after.living_starts) == 1 and not after.living_ends
            went_on = after.dead.status == "completed" and len(after.dead_starts) == 2
            print(
                f"{number + 1}: the dead worker's run went on {after.taken_over_s:.2f} s after the flush "
                f"(at most {LATEST_S:.1f}) and is {after.dead.status}; "
                f"the tool that was running is {'known' if known else 'NOT known'}, "
                f"started {len(after.living_starts)} time",
                flush=True,
            )
            broken += not (known and went_on and after.taken_over_s <= LATEST_S)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
