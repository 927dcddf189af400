"""The swarm as a picture: the graph from left to right, who works on what, and the money. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deuz_workers.cli.demo.watch import View
from deuz_workers.core.change import TaskStatus
from deuz_workers.ports.store import ScopeBalance, TaskRow

MARKS: Mapping[TaskStatus, tuple[str, str]] = {
    "pending": ("·", "dim"),
    "ready": ("○", "blue"),
    "running": ("●", "cyan"),
    "suspended": ("‖", "yellow"),
    "needs_reconciliation": ("?", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "blocked": ("⊘", "magenta"),
    "cancelled": ("⊘", "magenta"),
}
"""Sign and colour by status."""
SHOWN_STATUSES: Sequence[TaskStatus] = ("pending", "ready", "running", "suspended", "completed", "failed")
SHOWN_FILES = 16
"""Rows of the picture; a terminal has 24."""
BAR_CELLS = 40


def picture(view: View, names: Mapping[int, str], dead: int | None, seconds: float) -> RenderableType:
    """`names`: of workers, by process id; `dead`: of the one that was killed."""
    graph = Table.grid(padding=(0, 2))
    for _ in range(7):
        graph.add_column()
    single = {task.agent: task for task in view.tasks if task.agent != "reviewer"}
    lines = [_line(task, view, names, dead) for task in _shown(view.reviews)]
    if len(view.reviews) > len(lines):
        lines.append(Text(f"  and {len(view.reviews) - len(lines)} more", "dim"))
    cells: list[RenderableType] = [_line(single[name], view, names, dead) for name in ("planner", "merge", "reporter")]
    arrow = Text("→", "dim")
    graph.add_row(cells[0], arrow, Group(*lines), arrow, cells[1], arrow, cells[2])
    return Group(Text(), graph, Text(), _counts(view, seconds), _budget(view.balance))


def counts(view: View) -> str:
    """`3 running, 9 completed`: what is there, in the order of a task's life."""
    found = [(status, view.count(status)) for status in SHOWN_STATUSES]
    return ", ".join(f"{count} {status}" for status, count in found if count)


def budget(balance: ScopeBalance | None) -> str:
    """Tokens spent, reserved and of unknown outcome, against the cap."""
    if balance is None or balance.limit.tokens is None:
        return "no budget"
    unknown = balance.unknown.tokens or 0
    text = f"{balance.spent.tokens or 0:,} spent, {balance.held.tokens or 0:,} reserved"
    return f"{text}{f', {unknown:,} of unknown outcome' if unknown else ''} of {balance.limit.tokens:,} tokens"


def _line(task: TaskRow, view: View, names: Mapping[int, str], dead: int | None) -> Text:
    mark, colour = MARKS[task.status]
    line = Text.assemble((f"{mark} ", colour), (task.task_id, colour if task.status == "running" else ""))
    holder = view.holders.get(task.task_id)
    if holder is not None:
        line.append(
            f" {names.get(holder, 'pid')} {holder}{' ✝' if holder == dead else ''}", "red" if holder == dead else "cyan dim"
        )
    elif task.status == "suspended":
        line.append(" waits for you", "yellow")
    return line


def _shown(reviews: Sequence[TaskRow]) -> Sequence[TaskRow]:
    """All of them, or the ones that something happens to."""
    if len(reviews) <= SHOWN_FILES:
        return reviews
    order = sorted(reviews, key=lambda task: (task.status == "completed", task.status == "pending"))
    return sorted(order[:SHOWN_FILES], key=lambda task: task.task_id)


def _counts(view: View, seconds: float) -> Text:
    line = Text()
    for status in SHOWN_STATUSES:
        mark, colour = MARKS[status]
        line.append(f"{mark} {status} {view.count(status)}   ", colour if view.count(status) else "dim")
    return line.append(f"{seconds:.1f} s", "dim")


def _budget(balance: ScopeBalance | None) -> Text:
    if balance is None or not balance.limit.tokens:
        return Text("no budget", "dim")
    spent, held = (round(BAR_CELLS * (part.tokens or 0) / balance.limit.tokens) for part in (balance.spent, balance.held))
    rest = max(0, BAR_CELLS - spent - held)
    return Text.assemble(("█" * spent, "green"), ("▒" * held, "yellow"), ("░" * rest, "dim"), (f"  {budget(balance)}", ""))
