"""How the swarm stands: what the picture shows and the story decides by."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.handle import SwarmHandle
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.core.change import TaskStatus
from deuz_workers.core.names import run_lease_key, run_scope_key
from deuz_workers.ports.budgets import ScopeBalance
from deuz_workers.ports.swarm_rows import SwarmSnapshot, TaskRow

OVER: frozenset[TaskStatus] = frozenset(("completed", "failed", "blocked", "cancelled"))


@dataclass(frozen=True, slots=True)
class View:
    """Of one moment, apart from the holders, which are asked for after the tasks."""

    snapshot: SwarmSnapshot
    balance: ScopeBalance | None
    holders: Mapping[str, int]
    """Process id by task, of tasks that somebody works on."""

    @property
    def tasks(self) -> tuple[TaskRow, ...]:
        return self.snapshot.tasks

    @property
    def reviews(self) -> tuple[TaskRow, ...]:
        """One per file."""
        return tuple(task for task in self.tasks if task.agent == "reviewer")

    @property
    def reviewed(self) -> int:
        return sum(task.status in OVER for task in self.reviews)

    @property
    def is_over(self) -> bool:
        return all(task.status in OVER for task in self.tasks)

    @property
    def is_waiting(self) -> bool:
        """Nothing can go on before somebody answers."""
        return self.snapshot.only_waits

    def count(self, status: TaskStatus) -> int:
        return sum(task.status == status for task in self.tasks)


class Watch:
    """Looks at one swarm through the application's own store and leases."""

    def __init__(self, app: Deuz, handle: SwarmHandle) -> None:
        self.app = app
        self.handle = handle

    def look(self) -> View:
        return LOOP.run(self._look())

    def holder(self, task: TaskRow) -> int | None:
        """Process id of the worker that holds the task's lease now; None: nobody does."""
        return LOOP.run(self._holder(task))

    async def _look(self) -> View:
        head = await self.app.store.head(self.handle.scope, self.handle.run_id)
        assert head is not None, "the swarm was stored before it was looked at"
        snapshot = await self.app.store.swarm_snapshot(head.rid)
        assert snapshot is not None
        running = [task for task in snapshot.tasks if task.status == "running"]
        holders = await asyncio.gather(*map(self._holder, running))
        return View(
            snapshot,
            await self.app.store.balance(run_scope_key(head.rid)),
            {task.task_id: pid for task, pid in zip(running, holders, strict=True) if pid is not None},
        )

    async def _holder(self, task: TaskRow) -> int | None:
        peek = await self.app.leases.peek(run_lease_key(self.handle.scope, task.run_id))
        process = peek.owner.partition("#")[0]
        pid = process.rpartition(":")[2]
        return int(pid) if pid.isdigit() else None
