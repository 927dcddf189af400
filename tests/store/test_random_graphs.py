"""Random swarms on 16 connections to Postgres: none stands still, and the counters equal counts at every moment.

An ending, the filling of slots, blocking, cancelling and answers meet in all orders here. Deciding any of them in the wrong
statement lets single graphs stand still (three of four, when an ending fills slots itself).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import pytest

from deuz_workers.core.change import Applied, Bell, CancelPending, Head, TaskEnding
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance_bench import Bench, SwarmBench, change_from, item

GRAPHS, AT_A_TIME, STORES = 200, 8, 4
DEADLINE_S = 30.0

MISCOUNTED = """
    select s.rid, s.open, s.ready, s.running, s.slots, t.*
    from swarm s, lateral (
        select count(*) filter (where status not in ('completed', 'failed', 'blocked', 'cancelled')) as now_open,
               count(*) filter (where status = 'ready') as now_ready,
               count(*) filter (where status = 'running') as now_running
        from swarm_task where swarm_rid = s.rid
    ) t
    where (s.open, s.ready, s.running) is distinct from (t.now_open, t.now_ready, t.now_running) or s.running > s.slots
"""


@dataclass(frozen=True)
class Odds:
    """How often a step of a task does something else than complete it."""

    fails: float = 0.0
    suspends: float = 0.0
    cancelled: float = 0.0
    """Of swarms, after about half of their tasks."""


@pytest.fixture
async def stores(migrated_postgres_dsn: str) -> AsyncIterator[list[SqlStore]]:
    """Four stores of four connections each."""
    stores = [open_store(migrated_postgres_dsn) for _ in range(STORES)]
    yield stores
    await asyncio.gather(*(store.close() for store in stores))


class Crew:
    """What executors and the swarm's own steps would do, for one swarm."""

    def __init__(self, pick: random.Random, stores: list[SqlStore], swarm: SwarmBench, odds: Odds) -> None:
        self.pick, self.stores, self.swarm, self.odds = pick, stores, swarm, odds
        self.tasks = {run.run_id: task_id for task_id, run in swarm.runs.items()}
        self.bells: asyncio.Queue[Bell | None] = asyncio.Queue()
        self.leases: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.ended = asyncio.Event()
        self.cancel_at = len(self.tasks) // 2 if pick.random() < odds.cancelled else -1
        self.endings = 0

    @property
    def store(self) -> SqlStore:
        return self.pick.choice(self.stores)

    async def run(self, workers: int) -> bool:
        """True if the swarm ended in time.

        Nobody is cancelled: in Python 3.11 `wait_for`, by which psycopg's pool hands out connections, may lose a cancellation.
        """
        await self.fill()
        crew = [asyncio.ensure_future(self.work()) for _ in range(workers)]
        ended = asyncio.ensure_future(self.ended.wait())
        await asyncio.wait([ended, *crew], timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        for _ in crew:
            self.bells.put_nowait(None)
        ended.cancel()
        for worker in crew:
            await worker
        return self.ended.is_set()

    async def fill(self) -> None:
        self.ring(await self.store.fill_slots(self.swarm.rid))

    def ring(self, bells: tuple[Bell, ...]) -> None:
        for bell in bells:
            self.bells.put_nowait(bell)

    async def work(self) -> None:
        while (bell := await self.bells.get()) is not None and not self.ended.is_set():
            async with self.leases[bell.run_id]:
                if bell.run_id == self.swarm.run_id:
                    await self.step_of_the_swarm()
                else:
                    await self.step(bell)

    async def step(self, bell: Bell) -> None:
        head = await self.store.head(bell.scope, bell.run_id)
        assert head is not None
        if not head.has_work or head.status in ("completed", "stopped", "failed"):
            return
        task_id = self.tasks[bell.run_id]
        if head.cancel_seq > head.seen_seq:
            change = change_from(
                head, status="stopped", seen_seq=head.wake_seq, due_in_ms=None, task=self.ending(task_id, "cancelled")
            )
        elif head.status != "suspended" and self.pick.random() < self.odds.suspends:
            change = change_from(
                head, status="suspended", due_in_ms=None, items=(item("q"),), task=self.ending(task_id, "suspended")
            )
        elif self.pick.random() < self.odds.fails:
            change = change_from(head, status="failed", due_in_ms=None, task=self.ending(task_id, "failed"))
        else:
            change = change_from(head, status="completed", due_in_ms=None, task=self.ending(task_id, "completed"))
        outcome = await self.store.commit(change)
        if not isinstance(outcome, Applied):
            assert isinstance(outcome, CancelPending), outcome
            self.ring((bell,))
            return
        self.ring(outcome.woken)
        if change.status == "suspended":
            await self.fill()
            answered = await self.store.answer_item(head.scope, head.run_id, "q", '"yes"')
            assert answered is not None
            assert answered.bell is None, "a task that was answered waits for a slot"
            assert answered.swarm_rid == self.swarm.rid
            await self.fill()
            return
        await self.after_an_ending(head, outcome.swarm_open)

    async def after_an_ending(self, head: Head, still_open: int | None) -> None:
        self.endings += 1
        await self.fill()
        if self.endings == self.cancel_at:
            noted = await self.store.add_note(head.scope, self.swarm.run_id, "cancel", "{}")
            if noted is not None:  # None: the swarm has ended meanwhile
                self.ring((noted.bell,))
        if still_open == 0:
            settled = await self.store.settle_swarm(self.swarm.rid)
            if settled is not None:
                self.ring((settled,))

    async def step_of_the_swarm(self) -> None:
        """One step of the swarm's head, as an engine would make it: fold the notes, cascade, end if nothing is open."""
        bench = self.swarm.bench
        due = True
        while due:
            head = await self.store.head(bench.scope, self.swarm.run_id)
            assert head is not None
            if not head.has_work or head.status == "completed":
                return
            await self.cascade(cancelling=head.cancel_seq > 0)
            snapshot = await self.store.swarm_snapshot(self.swarm.rid)
            assert snapshot is not None
            status = "completed" if snapshot.open == 0 else "running"
            outcome = await self.store.commit(change_from(head, status=status, seen_seq=head.wake_seq, due_in_ms=None))
            due = not isinstance(outcome, Applied) or outcome.due
            if isinstance(outcome, Applied) and status == "completed":
                self.ended.set()

    async def cascade(self, *, cancelling: bool) -> None:
        more = True
        while more:
            batch = await self.store.block_downstream(self.swarm.rid, 3)
            more = batch.more
        while cancelling:
            batch = await self.store.cancel_tasks(self.swarm.rid, 3)
            self.ring(batch.bells)
            cancelling = batch.more

    def ending(self, task_id: str, status: str) -> TaskEnding:
        return TaskEnding(self.swarm.rid, task_id, cast(Any, status))


def random_graph(pick: random.Random) -> dict[str, list[str]]:
    """Of 5 to 25 tasks, each upstream of a quarter of the later ones; the order of their names, by which they are locked, is
    another."""
    names = [f"{place:02d}" for place in range(pick.randint(5, 25))]
    pick.shuffle(names)
    return {name: [up for up in names[:place] if pick.random() < 0.25] for place, name in enumerate(names)}


async def watch(url: str, over: asyncio.Event) -> None:
    """Compares the counters of every swarm with a count of its tasks, in snapshot after snapshot."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while not over.is_set():
            wrong = await (await connection.execute(MISCOUNTED)).fetchall()
            assert not wrong, wrong
            await asyncio.sleep(0.02)  # two cores: the watcher must not be all that runs


async def deadlocks(url: str) -> int:
    """That Postgres has ended in this database."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        query = "select deadlocks from pg_stat_database where datname = current_database()"
        found = await (await connection.execute(query)).fetchone()
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    "odds",
    [
        pytest.param(Odds(), id="all-complete"),
        pytest.param(Odds(fails=0.1, suspends=0.2), id="failures-and-answers"),
        pytest.param(Odds(fails=0.03, suspends=0.2, cancelled=1.0), id="cancels"),
    ],
)
async def test_no_random_graph_stands_still(migrated_postgres_dsn: str, stores: list[SqlStore], odds: Odds) -> None:
    """200 graphs, eight at a time: every task ends, every swarm's head learns of it, and no slot or count is lost.

    No two statements ever wait for each other.
    """
    pick, graphs = random.Random(7), asyncio.Semaphore(AT_A_TIME)

    async def graph(number: int) -> None:
        async with graphs:
            bench = Bench(stores[number % STORES])
            swarm = await bench.swarm(random_graph(pick), slots=pick.randint(1, 4))
            crew = Crew(pick, stores, swarm, odds)
            if not await crew.run(workers=4):
                pytest.fail(f"graph {number} stands still: {await swarm.statuses()}")
            assert set((await swarm.statuses()).values()) <= {"completed", "failed", "blocked", "cancelled"}

    over = asyncio.Event()
    watcher = asyncio.ensure_future(watch(migrated_postgres_dsn, over))
    try:
        await asyncio.gather(*(graph(number) for number in range(GRAPHS)))
        assert not watcher.done(), watcher.exception()
        assert await stores[0].swarms_needing_attention(10) == ()
        assert await deadlocks(migrated_postgres_dsn) == 0
    finally:
        over.set()
        await watcher
