"""A graph of tasks as a drawing: where each one stands, and the lines between them. Pure; lengths are in pixels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deuz_workers.ports.swarm_rows import TaskRow

WIDTH, HEIGHT = 156, 46
GAP_X, GAP_Y, SUB_GAP_X = 52, 14, 18
MARGIN = 12
MOST_IN_A_COLUMN = 10
"""More tasks of one depth stand in several columns, so that a wide swarm stays readable."""
SWEEPS = 4
MOST_TASKS = 300
"""Above this a picture says less than a table."""


@dataclass(frozen=True, slots=True)
class Node:
    task: TaskRow
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Line:
    """From a task to one that waits for it. `path`: as SVG spells it."""

    path: str
    status: str
    """Of the task that is waited for."""


@dataclass(frozen=True, slots=True)
class Picture:
    width: int
    height: int
    nodes: tuple[Node, ...]
    lines: tuple[Line, ...]


def picture(tasks: Sequence[TaskRow]) -> Picture:
    """Every task stands to the right of all that it waits for, near the middle of them. `tasks` is acyclic."""
    known = {task.task_id: task for task in tasks}
    layers = _ordered(_layers(tasks, known), known)
    places: dict[str, tuple[int, int]] = {}
    x, tallest = MARGIN, max((min(len(layer), MOST_IN_A_COLUMN) for layer in layers), default=0)
    height = tallest * (HEIGHT + GAP_Y) - GAP_Y
    for layer in filter(None, layers):
        columns = -(-len(layer) // MOST_IN_A_COLUMN)
        rows = -(-len(layer) // columns)
        top = MARGIN + (height - (rows * (HEIGHT + GAP_Y) - GAP_Y)) // 2
        for place, task_id in enumerate(layer):
            row, column = divmod(place, columns)
            places[task_id] = (x + column * (WIDTH + SUB_GAP_X), top + row * (HEIGHT + GAP_Y))
        x += columns * (WIDTH + SUB_GAP_X) - SUB_GAP_X + GAP_X
    nodes = tuple(Node(task, *places[task.task_id]) for task in tasks)
    lines = tuple(
        Line(_curve(places[up], places[task.task_id]), known[up].status)
        for task in tasks
        for up in task.depends_on
        if up in places
    )
    return Picture(max(x - GAP_X, 0) + MARGIN, max(height, 0) + 2 * MARGIN, nodes, lines)


def _layers(tasks: Sequence[TaskRow], known: Mapping[str, TaskRow]) -> list[list[str]]:
    """Tasks by the length of the longest chain before them."""
    depth: dict[str, int] = {}
    waiting = {task.task_id: sum(up in known for up in task.depends_on) for task in tasks}
    behind: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        for up in task.depends_on:
            behind[up].append(task.task_id)
    ready = [task_id for task_id, count in waiting.items() if not count]
    for task_id in ready:  # grows while it is read
        depth.setdefault(task_id, 0)
        for follower in behind[task_id]:
            depth[follower] = max(depth.get(follower, 0), depth[task_id] + 1)
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for task in tasks:
        layers[depth.get(task.task_id, 0)].append(task.task_id)
    return layers


def _ordered(layers: list[list[str]], known: Mapping[str, TaskRow]) -> list[list[str]]:
    """Each layer by the middle of its neighbours, forth and back, so that fewer lines cross."""
    behind: dict[str, list[str]] = defaultdict(list)
    for task in known.values():
        for up in task.depends_on:
            behind[up].append(task.task_id)
    for sweep in range(SWEEPS):
        order = layers if sweep % 2 == 0 else layers[::-1]
        place = {task_id: at / max(len(layer), 1) for layer in layers for at, task_id in enumerate(layer)}
        for layer in order:
            middles: dict[str, float] = {}
            for task_id in layer:
                near = known[task_id].depends_on if sweep % 2 == 0 else behind[task_id]
                found = [place[one] for one in near if one in place]
                middles[task_id] = sum(found) / len(found) if found else place[task_id]
            layer.sort(key=middles.__getitem__)
            place |= {task_id: at / len(layer) for at, task_id in enumerate(layer)}
    return layers


def _curve(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + WIDTH, start[1] + HEIGHT // 2
    x2, y2 = end[0], end[1] + HEIGHT // 2
    bend = max((x2 - x1) // 2, 20)
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
