"""What the conformance tests build on: a corner of a store of their own, runs in it, commits made from a head.

Every bench has a scope and a queue that nobody else uses, so the tests may share one database, also in parallel.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from deuz_workers.core.change import (
    Applied,
    Change,
    Head,
    ItemRow,
    MessageRow,
    Outcome,
    ReceiptRow,
    RunStatus,
    SpawnedTask,
    Spawning,
    TaskEnding,
    Waits,
)
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.ports.store import Created, NewRun, NewSwarm, NewTask, RunStore

HOUR_MS = 3_600_000
ODD_TEXT = (
    r'{"nul":"\u0000","surrogate":"\ud800","big":123456789012345678901234567890,"nan":NaN}',
    "naïve — 日本語 🐘 'quotes' \"double\" \\ back %s %(name)s :name ? $1",
    "",
    "null",
    "x" * 200_000,
)
"""Texts that drivers and databases like to change: each must come back as it went in."""


def new_rid() -> UUID:
    """A UUIDv7: 48 bits of milliseconds, then chance."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    number = number & ~(0xF << 76) | 0x7 << 76
    return UUID(int=number & ~(0x3 << 62) | 0x2 << 62)


def message(seq: int, body: str | None = None) -> MessageRow:
    return MessageRow(seq, body if body is not None else f'{{"text":"message {seq}"}}')


def receipt(step: int, call_id: str, seq: int = 0, body: str = "{}") -> ReceiptRow:
    return ReceiptRow(step, call_id, seq, "executing" if seq == 0 else "completed", body)


def item(item_id: str, **given: Any) -> ItemRow:
    return ItemRow(item_id, given.pop("kind", "approval"), given.pop("body", "{}"), **given)


def change_from(head: Head, **given: Any) -> Change:
    """A commit made from `head` as it was loaded, with the fields that are given; the run stays at work."""
    messages: tuple[MessageRow, ...] = given.get("messages", ())
    started: RunStatus = "running" if head.status == "queued" else head.status
    change = Change(
        rid=head.rid,
        expected=head.revision,
        commit_id=uuid4(),
        status=started,
        phase=head.phase,
        version=head.version,
        epoch=head.epoch,
        last_seq=messages[-1].seq if messages else head.last_seq,
        seen_seq=head.seen_seq,
        body=head.body,
        due_in_ms=0,
        tokens=head.tokens,
        cost_micros=head.cost_micros,
        journal_seq=head.journal_seq,
    )
    return replace(change, **given)


class Bench:
    """One scope and one queue in a store."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        mark = secrets.token_hex(6)
        self.scope = f"tenant/{mark}"
        self.queue = f"queue-{mark}"
        self._made = 0

    def name(self) -> str:
        """A run id that no other bench makes."""
        self._made += 1
        return f"{self.queue}-run-{self._made}"

    def run(self, **given: Any) -> NewRun:
        run = NewRun(
            rid=new_rid(), scope=self.scope, run_id=self.name(), kind="agent", agent="writer", body="{}", queue=self.queue
        )
        return replace(run, **given)

    async def start(self, **given: Any) -> Head:
        """Create a run and read its head."""
        run = self.run(**given)
        created = await self.store.create(run)
        assert created.created, created
        return await self.head(run.run_id)

    async def head(self, run_id: str) -> Head:
        head = await self.store.head(self.scope, run_id)
        assert head is not None, run_id
        return head

    async def again(self, head: Head) -> Head:
        """The same run's head as it is now."""
        return await self.head(head.run_id)

    async def commit(self, head: Head, **given: Any) -> Outcome:
        return await self.store.commit(change_from(head, **given))

    async def applied(self, head: Head, **given: Any) -> Applied:
        """Commit, and insist that it was applied."""
        outcome = await self.commit(head, **given)
        assert isinstance(outcome, Applied), outcome
        return outcome

    async def suspended(self, head: Head, *items: ItemRow, **given: Any) -> Head:
        """Suspend the run on `items`, which nothing but an input wakes; its head afterwards."""
        await self.applied(head, status="suspended", due_in_ms=None, items=items, **given)
        return await self.again(head)

    async def swept(self, *, limit: int = 1_000, ttl_ms: int = HOUR_MS) -> list[str]:
        """Run ids that one pass of the sweep takes from this bench's queue."""
        bells = await self.store.sweep(limit=limit, ttl_ms=ttl_ms, queues=[self.queue])
        assert {bell.scope for bell in bells} <= {self.scope}
        return [bell.run_id for bell in bells]

    async def swarm(
        self,
        edges: Mapping[str, Sequence[str]],
        *,
        slots: int = 2,
        dynamic: DynamicLimits | None = None,
        timeout_ms: int | None = None,
        **given: Any,
    ) -> SwarmBench:
        """Create a swarm; `edges` gives the predecessors of every task, those that only have to end as `?name`.

        Ranks follow its order. `timeout_ms`: of every task.
        """
        run = self.run(kind="swarm", agent="", **given)
        swarm = self.new_swarm(edges, slots, dynamic, timeout_ms)
        created = await self.store.create(run, swarm)
        assert created.created, created
        return SwarmBench(self, run, swarm)

    def new_swarm(
        self,
        edges: Mapping[str, Sequence[str]],
        slots: int,
        dynamic: DynamicLimits | None = None,
        timeout_ms: int | None = None,
    ) -> NewSwarm:
        tasks = tuple(
            NewTask(
                task_id,
                self.run(agent=f"agent-{task_id}", body=f'{{"task":"{task_id}"}}'),
                tuple(up for up in before if not up.startswith("?")),
                rank,
                tuple(up[1:] for up in before if up.startswith("?")),
                timeout_ms,
            )
            for rank, (task_id, before) in enumerate(edges.items())
        )
        return NewSwarm(slots, tasks, dynamic)

    async def create(self, run: NewRun, swarm: NewSwarm | None = None) -> Created:
        return await self.store.create(run, swarm)


class SwarmBench:
    """One swarm on a bench: its tasks by name."""

    def __init__(self, bench: Bench, run: NewRun, swarm: NewSwarm) -> None:
        self.bench = bench
        self.store = bench.store
        self.rid = run.rid
        self.run_id = run.run_id
        self.slots = swarm.slots
        self.runs = {task.task_id: task.run for task in swarm.tasks}
        self._names = {task.run.run_id: task.task_id for task in swarm.tasks}

    async def fill(self) -> list[str]:
        """Fill slots; task ids in the order in which their runs were rung."""
        return [self._names[bell.run_id] for bell in await self.store.fill_slots(self.rid)]

    async def own_head(self) -> Head:
        return await self.bench.head(self.run_id)

    async def head(self, task_id: str) -> Head:
        return await self.bench.head(self.runs[task_id].run_id)

    async def change(self, task_id: str, status: RunStatus, ending: str, **given: Any) -> Change:
        """A commit that changes the task's status, made from its run's head of now."""
        task = TaskEnding(self.rid, task_id, ending)  # type: ignore[arg-type]
        final = {"completed": None, "failed": None, "stopped": None, "suspended": None}[status]
        return change_from(await self.head(task_id), **{"status": status, "task": task, "due_in_ms": final, **given})

    async def end(self, task_id: str, ending: str = "completed", **given: Any) -> Applied:
        """End the task with its run."""
        status: RunStatus = {"completed": "completed", "failed": "failed", "cancelled": "stopped"}[ending]  # type: ignore[assignment]
        outcome = await self.store.commit(await self.change(task_id, status, ending, **given))
        assert isinstance(outcome, Applied), outcome
        return outcome

    def spawning(self, edges: Mapping[str, Sequence[str]], *, depth: int = 1) -> Spawning:
        """New tasks with what they wait for, as `Bench.swarm` takes it; from here on the bench knows them."""
        tasks: list[SpawnedTask] = []
        for rank, task_id in enumerate(edges):
            run = self.bench.run(agent=f"agent-{task_id}")
            self.runs[task_id] = run
            self._names[run.run_id] = task_id
            tasks.append(
                SpawnedTask(task_id, run.rid, run.run_id, "agent", run.agent, run.body, (), self.bench.queue, rank, depth)
            )
        waits = [Waits(up.removeprefix("?"), down, up.startswith("?")) for down, ups in edges.items() for up in ups]
        return Spawning(tuple(tasks), tuple(waits))

    async def told(self, after: int = 0) -> list[str]:
        """Events of the swarm after `after`: what, and of which task; after checking that their numbers have no gap."""
        rows = await self.store.swarm_events(self.bench.scope, self.run_id, after, 1_000)
        assert [row.seq for row in rows] == list(range(after + 1, after + 1 + len(rows)))
        return [row.type if row.task_id is None else f"{row.type} {row.task_id}" for row in rows]

    async def suspend(self, task_id: str, *items: ItemRow) -> Applied:
        outcome = await self.store.commit(await self.change(task_id, "suspended", "suspended", items=items))
        assert isinstance(outcome, Applied), outcome
        return outcome

    async def statuses(self) -> dict[str, str]:
        """Status of every task, after checking that the counters equal a count."""
        snapshot = await self.store.swarm_snapshot(self.rid)
        assert snapshot is not None
        statuses = {task.task_id: task.status for task in snapshot.tasks}
        ended = ("completed", "failed", "blocked", "cancelled")
        counted = {
            "open": sum(status not in ended for status in statuses.values()),
            "ready": sum(status == "ready" for status in statuses.values()),
            "running": sum(status == "running" for status in statuses.values()),
        }
        assert counted == {"open": snapshot.open, "ready": snapshot.ready, "running": snapshot.running}, statuses
        assert snapshot.running <= snapshot.slots
        return statuses
