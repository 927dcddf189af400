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
    soft: bool = False
    """Only its end is waited for, not its completion."""


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
    after: tuple[str, ...] = ()
    """Tasks of which it waits for any end."""
    timeout_ms: int | None = None
    depth: int = 0
    """Tasks above it, each of which created the next."""


@dataclass(frozen=True, slots=True)
class SwarmCounters:
    """Of the swarm's row: how many tasks may run, have not ended, wait for a slot, have one, were ever created."""

    slots: int
    open: int
    ready: int
    running: int
    total: int = 0
    journal_seq: int = 0
    """Of its newest event."""
    is_cancelling: bool = False
    """Somebody asked for its end: no task begins."""
    is_draining: bool = False
    """Somebody asked that no task begins."""
    is_still: bool = False
    """Its journal says that nothing can run before somebody answers."""


@dataclass(frozen=True, slots=True)
class SwarmEventRow:
    """One event of a swarm's journal; `detail` is JSON."""

    seq: int
    type: str
    task_id: str | None
    detail: str | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class SwarmSnapshot:
    """Counters and tasks of one moment."""

    rid: UUID
    slots: int
    open: int
    ready: int
    running: int
    tasks: tuple[TaskRow, ...]
    """In the order of their creation."""
    total: int = 0
    is_cancelling: bool = False
    is_draining: bool = False
    is_still: bool = False
    journal_seq: int = 0

    @property
    def revision(self) -> int:
        """Another one whenever anything of the swarm has changed: the number of its newest event."""
        return self.journal_seq

    @property
    def only_waits(self) -> bool:
        """Nothing runs or can run before somebody answers or says what became of an effect."""
        waits = any(task.status in ("suspended", "needs_reconciliation") for task in self.tasks)
        return (waits or self.is_draining) and self.open > 0 and not self.running and (self.is_draining or not self.ready)
