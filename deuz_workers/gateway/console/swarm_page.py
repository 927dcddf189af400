"""The page of a swarm: its graph coloured by state, and its tasks."""

from __future__ import annotations

from collections import Counter

from starlette.responses import Response

from deuz_workers.app.swarm_result import swarm_status
from deuz_workers.core.change import FINAL, Head
from deuz_workers.gateway.console import picture as drawing
from deuz_workers.gateway.console.look import Look

STATES = ("running", "ready", "pending", "suspended", "needs_reconciliation", "completed", "failed", "blocked", "cancelled")
MOST_LISTED = 500
POLL_MS, SLOW_POLL_MS = 1_000, 5_000
"""How often a page that is looked at is renewed; less often where there is much to read."""


async def swarm_page(look: Look, head: Head, *, status: int = 200, problem: str | None = None) -> Response:
    snapshot = await look.gateway.app.aio.swarm_handle(head.run_id, head.scope).snapshot()
    tasks = snapshot.tasks
    counts = Counter(task.status for task in tasks)
    costs = [task.cost_micros for task in tasks]
    known = [cost for cost in costs if cost is not None]
    is_drawn = len(tasks) <= drawing.MOST_TASKS
    return look.page(
        "swarm.html",
        status,
        problem=problem,
        did=look.request.query_params.get("did"),
        head=head,
        state=swarm_status(head, snapshot),
        snapshot=snapshot,
        counts=[(state, counts[state]) for state in STATES if counts[state]],
        picture=drawing.picture(tasks) if is_drawn else None,
        size=drawing,
        tasks=tasks[:MOST_LISTED],
        left_out=max(0, len(tasks) - MOST_LISTED),
        tokens=sum(task.tokens for task in tasks),
        cost_micros=sum(known) if len(known) == len(costs) else None,
        is_over=head.status in FINAL,
        poll_ms=POLL_MS if is_drawn else SLOW_POLL_MS,
    )
