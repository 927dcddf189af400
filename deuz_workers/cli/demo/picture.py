"""The swarm as a picture: the graph from left to right, who works on what, and the money. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deuz_workers.cli.demo.watch import View
from deuz_workers.core.change import TaskStatus
from deuz_workers.ports.budgets import ScopeBalance
from deuz_workers.ports.swarm_rows import TaskRow

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
SHOWN_STATUSES: Sequence[TaskStatus] = ("pending", "ready", "running", "suspended", "completed", "failed", "blocked")
SHOWN_FILES = 15
"""Rows of the picture; a terminal has 24."""
NAME_CELLS = 26
HOLDER_CELLS = 9
BAR_CELLS = 72
"""All together less than the 80 columns of a terminal."""


def picture(view: View, names: Mapping[int, str], dead: int | None, seconds: float) -> RenderableType:
    """`names`: of workers, by process id; `dead`: of the one that was killed."""
    graph = Table.grid(padding=(0, 2))
    for width in (HOLDER_CELLS, None, 3 + NAME_CELLS + HOLDER_CELLS, None, HOLDER_CELLS, None, HOLDER_CELLS):
        graph.add_column(min_width=width, no_wrap=True)
    single = {task.agent: task for task in view.tasks if task.agent != "reviewer"}
    reviews = [_line(task, _holder(task, view, names, dead)) for task in _shown(view.reviews)]
    if len(view.reviews) > len(reviews):
        reviews.append(Text(f"  and {len(view.reviews) - len(reviews)} more", "dim"))
    plan, merge, report = (
        Group(_line(single[agent]), _holder(single[agent], view, names, dead)) for agent in ("planner", "merge", "reporter")
    )
    arrow = Text("→", "dim")
    graph.add_row(plan, arrow, Group(*reviews), arrow, merge, arrow, report)
    return Group(Text(), graph, Text(), _counts(view, seconds), *_budget(view.balance))


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


def _line(task: TaskRow, holder: Text | None = None) -> Text:
    mark, colour = MARKS[task.status]
    name = task.task_id if len(task.task_id) <= NAME_CELLS else f"{task.task_id[: NAME_CELLS - 1]}…"
    line = Text.assemble((f"{mark} ", colour), (name, colour if task.status == "running" else ""))
    return line if holder is None else Text.assemble(line, " ", holder)


def _holder(task: TaskRow, view: View, names: Mapping[int, str], dead: int | None) -> Text:
    """Who works on the task, or is waited for."""
    pid = view.holders.get(task.task_id)
    if pid is None:
        return Text("asks you" if task.status == "suspended" else "", "yellow")
    return Text(f"{names.get(pid, str(pid))}{' ✝' if pid == dead else ''}", "red" if pid == dead else "cyan dim")


def _shown(reviews: Sequence[TaskRow]) -> Sequence[TaskRow]:
    """All of them, or the ones that something happens to."""
    if len(reviews) <= SHOWN_FILES:
        return reviews
    order = sorted(reviews, key=lambda task: (task.status == "completed", task.status == "pending"))
    return sorted(order[:SHOWN_FILES], key=lambda task: task.task_id)


def _counts(view: View, seconds: float) -> Text:
    line = Text(f"{seconds:4.1f} s  ", "dim")
    for status in SHOWN_STATUSES:
        mark, colour = MARKS[status]
        count = view.count(status)
        if count or status not in ("failed", "blocked"):
            line.append(f"  {mark} {count} {status}", colour if count else "dim")
    return line


def _budget(balance: ScopeBalance | None) -> Sequence[Text]:
    if balance is None or not balance.limit.tokens:
        return ()
    spent, held = (round(BAR_CELLS * (part.tokens or 0) / balance.limit.tokens) for part in (balance.spent, balance.held))
    rest = max(0, BAR_CELLS - spent - held)
    bar = Text.assemble(("█" * spent, "green"), ("▒" * held, "yellow"), ("░" * rest, "dim"))
    return bar, Text(budget(balance))
