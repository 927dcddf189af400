"""What the store tells of a swarm: its tasks, its counters, what a task left."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from deuz_workers.core.change import RunKind, TaskStatus


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a predecessor left: its head's final body."""

    task_id: str
    status: TaskStatus
    body: str


@dataclass(frozen=True, slots=True)
class TaskRow:
    task_id: str
    run_id: str
    kind: RunKind
    agent: str
    status: TaskStatus
    waiting: int
    tokens: int
    cost_micros: int | None
    model_step: int
    started_at_ms: int | None
    ended_at_ms: int | None
    depends_on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwarmCounters:
    """Of the swarm's row: how many tasks may run, have not ended, wait for a slot, have one."""

    slots: int
    open: int
    ready: int
    running: int


@dataclass(frozen=True, slots=True)
class SwarmSnapshot:
    """Counters and tasks of one moment."""

    rid: UUID
    slots: int
    open: int
    ready: int
    running: int
    tasks: tuple[TaskRow, ...]

    @property
    def only_waits(self) -> bool:
        """Nothing runs or can run before somebody answers or says what became of an effect."""
        waits = any(task.status in ("suspended", "needs_reconciliation") for task in self.tasks)
        return waits and self.open > 0 and not self.ready and not self.running
