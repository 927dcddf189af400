"""A parent with many children on a worker that is killed at random, and trees that are cancelled at random.

``python -m tests.faults.children`` repeats it and ends with 0 if every promise was kept:

* every child exists once, and all of them have ended when their parent has;
* the parent resumes exactly once, whatever dies, and is loaded at most three times where nothing does;
* a cancelled tree ends as a whole, and no deadlock was found by the database.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from dataclasses import dataclass, field

import psycopg

from deuz_workers.app.handle import Handle
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.settings import Settings
from deuz_workers.core.change import FINAL
from deuz_workers.ports.store import RunQuery
from tests.faults.child_agents import application
from tests.faults.rounds import play
from tests.workers.pool import Pool, wait_until

TTL_MS = 2_000
PATIENCE_S = 240.0
SLOTS = 32
MOST_LOADS = 3


@dataclass
class Figures:
    """What one round did."""

    children: int = 0
    kills: int = 0
    seconds: float = 0.0
    loads: int = 0
    talk_s: float = 0.0
    """How long another run took on the same worker meanwhile."""
    cancelled: int = 0
    deadlocks: int = 0
    broken: list[str] = field(default_factory=list[str])
    """Promises that were not kept, in words."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:5.1f} s, {self.children} children, {self.kills} kills, parent loaded {self.loads} times, another "
            f"run took {self.talk_s:.2f} s, {self.cancelled} of its trees cancelled, {self.deadlocks} deadlocks; "
            f"{len(self.broken)} promises broken"
        )


def torment(pool: Pool, *, children: int, kills: int, cancels: int, seed: int) -> Figures:
    """One round: a parent with so many children, workers killed so often meanwhile, and trees of which some are cancelled."""
    chance = random.Random(seed)
    pool.module = "tests.faults.child_agents:app"
    figures = Figures(children=children)
    os.environ.setdefault("TEST_TRACES", str(pool.traces))
    app = application(pool.settings)
    before = _deadlocks(pool.settings)
    try:
        pool.start("threads", SLOTS)
        began = time.monotonic()
        handle = app.enqueue("parent", f"{children} turns")
        killer = threading.Thread(target=_kill, args=(pool, chance, handle, kills, children, figures))
        killer.start()
        wait_until(lambda: len(pool.lines("touch")) > children // 10, "the children are at work", PATIENCE_S)
        talk_began = time.monotonic()
        assert app.enqueue("talker", "hi").result(PATIENCE_S).status == "completed"
        figures.talk_s = time.monotonic() - talk_began
        result = handle.result(PATIENCE_S)
        killer.join()
        figures.seconds = time.monotonic() - began
        if result.status != "completed" or result.output != f"{children} of {children}":
            figures.broken.append(f"the parent is {result.status}: {result.value!r} {result.error}")
        _judge_tree(app.store, handle, children, figures)
        loads = [line for line in pool.lines("loads") if line.startswith(f"{handle.run_id} ")]
        figures.loads = len(loads)
        if not figures.kills and figures.loads > MOST_LOADS + 1:  # the last one is the result's
            figures.broken.append(f"the parent was loaded {figures.loads} times: {loads}")
        resumed = [event.type for event in handle.events(follow=False)].count("run.resumed")
        if resumed != 1:
            figures.broken.append(f"the parent resumed {resumed} times")
        for _ in range(cancels):
            _cancel_one(app.enqueue("parent", f"{max(4, children // 5)} turns"), app.store, chance, figures)
    finally:
        app.close()
    figures.deadlocks = _deadlocks(pool.settings) - before
    if figures.deadlocks:
        figures.broken.append(f"the database found {figures.deadlocks} deadlocks")
    return figures


def _kill(pool: Pool, chance: random.Random, handle: Handle, kills: int, children: int, figures: Figures) -> None:
    """Kill the only worker, each time once some more children have done something, and start another."""
    for number in range(kills):
        share = (number + chance.random()) / (kills + 1)
        wait_until(lambda share=share: len(pool.lines("touch")) >= share * children, "the next kill", PATIENCE_S)
        if handle.status() in FINAL:
            return
        pool.workers[-1].kill()
        figures.kills += 1
        pool.start("threads", SLOTS)


def _cancel_one(handle: Handle, store: object, chance: random.Random, figures: Figures) -> None:
    """A tree that is cancelled at some moment ends as a whole."""
    time.sleep(chance.random() * 1.5)
    handle.cancel("no more")
    status = handle.result(PATIENCE_S).status
    figures.cancelled += status == "stopped"
    wait_until(lambda: all(found in FINAL for found in _statuses(store, handle)), "all of the tree has ended", PATIENCE_S)


def _judge_tree(store: object, handle: Handle, children: int, figures: Figures) -> None:
    statuses = _statuses(store, handle)
    if statuses != ["completed"] * (children + 1):
        figures.broken.append(f"of {children} children and their parent there are {len(statuses)}: {sorted(set(statuses))}")


def _statuses(store: object, handle: Handle) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = LOOP.run(store.list_runs(RunQuery(limit=500, cursor=cursor)))  # type: ignore[attr-defined]
        found += [head.status for head in page.heads if (head.run_id + "/").startswith(handle.run_id + "/")]
        cursor = page.cursor
        if cursor is None:
            return found


def _deadlocks(settings: Settings) -> int:
    with psycopg.connect(settings.database_url, autocommit=True) as connection:
        row = connection.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
        return 0 if row is None else int(row[0])


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.children", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--children", type=int, default=200)
    parser.add_argument("--kills", type=int, default=2, help="in every round but the first")
    parser.add_argument("--cancels", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="0: a new one")
    given = parser.parse_args()

    def round_of(pool: Pool, number: int, seed: int) -> Figures:
        os.environ["TEST_TRACES"] = str(pool.traces)
        kills = given.kills if number else 0
        return torment(pool, children=given.children, kills=kills, cancels=given.cancels, seed=seed)

    return play(given.repeats, given.seed, round_of, lease_ttl_ms=TTL_MS, sweep_interval_ms=500)


if __name__ == "__main__":
    sys.exit(main())
