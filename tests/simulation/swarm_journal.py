"""What the journal of a swarm may say: every order of its tasks that was not allowed, read from its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deuz_workers.ports.swarm_rows import SwarmEventRow, SwarmSnapshot, TaskRow

ENDS = ("completed", "failed", "blocked", "cancelled")


def journal_problems(snapshot: SwarmSnapshot, events: Sequence[SwarmEventRow]) -> Iterator[str]:
    """Of a swarm that has ended: gaps, a task that ended twice or never, one that began too early, or beside too many."""
    if [event.seq for event in events] != list(range(1, snapshot.journal_seq + 1)):
        yield f"its journal has gaps: {[event.seq for event in events]} of {snapshot.journal_seq}"
    settled = [event.seq for event in events if event.type == "run.settled"]
    if not settled or settled[-1] != len(events):
        yield f"its journal ends with {events[-1].type if events else 'nothing'}"
    for task in snapshot.tasks:
        yield from _task_problems(task, events)
    running: set[str | None] = set()
    for event in events:
        if event.type == "task.started":
            running.add(event.task_id)
            if len(running) > snapshot.slots:
                yield f"at {event.seq} {len(running)} tasks run, of {snapshot.slots}"
        else:
            running.discard(event.task_id)
    if snapshot.total != len(snapshot.tasks):
        yield f"it counts {snapshot.total} tasks and has {len(snapshot.tasks)}"


def _task_problems(task: TaskRow, events: Sequence[SwarmEventRow]) -> Iterator[str]:
    ended = [event for event in events if event.task_id == task.task_id and event.type.removeprefix("task.") in ENDS]
    if [event.type for event in ended] != [f"task.{task.status}"]:
        yield f"{task.task_id} is {task.status}, and its ends are {[event.type for event in ended]}"
    started = [event.seq for event in events if event.task_id == task.task_id and event.type == "task.started"]
    if not started:
        if task.status == "completed":
            yield f"{task.task_id} has completed and never began"
        return
    for ups, allowed in ((task.depends_on, ("completed",)), (task.after, ENDS)):
        for up in ups:
            before = {event.type.removeprefix("task.") for event in events[: started[0]] if event.task_id == up}
            if not before & set(allowed):
                yield f"{task.task_id} began at {started[0]}, before {up} had ended as it has to: {sorted(before)}"
