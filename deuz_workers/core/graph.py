"""Task graphs: what makes one valid, and in which order ready tasks are started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from deuz_workers.errors import SwarmDefinitionError

Edges = Sequence[tuple[str, Sequence[str]]]
"""Tasks in the order of their definition, each with the tasks it waits for."""


def check_graph(swarm: str, tasks: Edges) -> None:
    """Raises `SwarmDefinitionError`, which names the tasks concerned, unless `tasks` is an acyclic graph of its own tasks."""
    if not tasks:
        raise SwarmDefinitionError(f"swarm {swarm!r} has no tasks; give it at least one")
    names = Counter(task_id for task_id, _ in tasks)
    for task_id, count in names.items():
        if count > 1:
            raise SwarmDefinitionError(f"swarm {swarm!r} has {count} tasks {task_id!r}; every task has an id of its own")
    for task_id, depends_on in tasks:
        for up in depends_on:
            if up not in names:
                raise SwarmDefinitionError(
                    f"task {task_id!r} of swarm {swarm!r} depends on {up!r}, which is none of its tasks: {', '.join(names)}"
                )
    if cycle := find_cycle(tasks):
        path = " -> ".join((*cycle, cycle[0]))
        raise SwarmDefinitionError(f"the tasks of swarm {swarm!r} wait for each other: {path}; take one dependency out")


def find_cycle(tasks: Edges) -> tuple[str, ...]:
    """Tasks that wait for each other, each for the next and the last for the first; empty if there are none."""
    waits = dict(tasks)
    left = _left_waiting(tasks)
    if not left:
        return ()
    path: dict[str, int] = {}
    at = min(left, key=list(waits).index)
    while at not in path:  # every task that is left waits for another one that is left, so this runs into itself
        path[at] = len(path)
        at = next(up for up in waits[at] if up in left)
    return tuple(path)[path[at] :]


def ranks(tasks: Edges) -> Mapping[str, int]:
    """Order in which ready tasks get a slot, lowest first.

    The longest chain of tasks behind it decides, since that is what the end of the swarm waits for; then the order of
    definition. A task comes before everything that waits for it. `tasks` is acyclic.
    """
    behind = _chain_behind(tasks)
    order = sorted(range(len(tasks)), key=lambda place: (-behind[tasks[place][0]], place))
    return {tasks[place][0]: rank for rank, place in enumerate(order)}


def sinks(tasks: Edges) -> tuple[str, ...]:
    """Tasks that nothing waits for: what a swarm is for."""
    waited_for = {up for _, depends_on in tasks for up in depends_on}
    return tuple(task_id for task_id, _ in tasks if task_id not in waited_for)


def _left_waiting(tasks: Edges) -> frozenset[str]:
    """Tasks that never become ready: those in a cycle and all behind it."""
    return frozenset(task_id for task_id, _ in tasks) - frozenset(_in_order(tasks))


def _chain_behind(tasks: Edges) -> Mapping[str, int]:
    """Length of the longest chain of tasks that wait for a task, directly or through others."""
    waits = dict(tasks)
    behind = dict.fromkeys(waits, 0)
    for task_id in reversed(_in_order(tasks)):
        for up in waits[task_id]:
            behind[up] = max(behind[up], behind[task_id] + 1)
    return behind


def _in_order(tasks: Edges) -> list[str]:
    """Every task after those that it waits for; without tasks that wait for ever."""
    waiting = {task_id: len(set(depends_on)) for task_id, depends_on in tasks}
    dependents: dict[str, list[str]] = {task_id: [] for task_id, _ in tasks}
    for task_id, depends_on in tasks:
        for up in dict.fromkeys(depends_on):
            dependents[up].append(task_id)
    ordered = [task_id for task_id, count in waiting.items() if not count]
    for task_id in ordered:  # grows while it is walked
        for down in dependents[task_id]:
            waiting[down] -= 1
            if not waiting[down]:
                ordered.append(down)
    return ordered
