"""What a swarm has to report, read from its head and its tasks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deuz_workers.core.change import Head, TaskStatus
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.graph import sinks
from deuz_workers.ports.swarm_rows import SwarmSnapshot

SwarmStatus = Literal["running", "completed", "partial", "cancelled", "suspended"]


@dataclass(frozen=True, slots=True)
class SwarmResult:
    """How a swarm stands, once nothing can run any more."""

    status: SwarmStatus
    run_id: str
    scope: str
    name: str
    counts: Mapping[TaskStatus, int]
    tasks: Mapping[str, TaskStatus]
    outputs: Mapping[str, object]
    """Of the completed tasks that nothing waits for, by task id."""
    tokens: int
    cost_micros: int | None
    """None: some call had no known price."""


def swarm_status(head: Head, snapshot: SwarmSnapshot) -> SwarmStatus:
    if head.status in ("queued", "running"):
        return "suspended" if snapshot.only_waits else "running"
    if head.status != "completed":
        return "cancelled"
    return "completed" if all(task.status == "completed" for task in snapshot.tasks) else "partial"


def wanted_outputs(snapshot: SwarmSnapshot) -> tuple[str, ...]:
    """Completed tasks that nothing waits for."""
    completed = {task.task_id for task in snapshot.tasks if task.status == "completed"}
    return tuple(
        task_id
        for task_id in sinks([(task.task_id, (*task.depends_on, *task.after)) for task in snapshot.tasks])
        if task_id in completed
    )


def swarm_result(head: Head, snapshot: SwarmSnapshot, outputs: Mapping[str, object]) -> SwarmResult:
    costs = [task.cost_micros for task in snapshot.tasks]
    known = [cost for cost in costs if cost is not None]
    return SwarmResult(
        status=swarm_status(head, snapshot),
        run_id=head.run_id,
        scope=head.scope,
        name=head.agent,
        counts=Counter(task.status for task in snapshot.tasks),
        tasks={task.task_id: task.status for task in snapshot.tasks},
        outputs=outputs,
        tokens=sum(task.tokens for task in snapshot.tasks),
        cost_micros=sum(known) if len(known) == len(costs) else None,
    )


def output_of(head: Head) -> object:
    """The output that a completed task's run has stored. Raises `CheckpointVersionError` or `CodecError`."""
    return decode_envelope(head).output
