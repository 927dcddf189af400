"""Statuses of swarm tasks on SQLite, and the counters and the journal that follow them."""

from __future__ import annotations

from deuz_workers.store.sqlite_transaction import Transaction, Values

UNENDED = ("pending", "ready", "running", "suspended", "needs_reconciliation")
EVENTS = {
    status: f"task.{'started' if status == 'running' else status}"
    for status in ("running", "suspended", "needs_reconciliation", "completed", "failed", "blocked", "cancelled")
}
"""What the journal of the swarm calls it."""


def move_task(
    tx: Transaction,
    swarm_rid: bytes,
    task_id: str,
    status: str,
    *,
    only_from: tuple[str, ...] = UNENDED,
    frees: bool = True,
    detail: str | None = None,
) -> bool:
    """Give a task its next status, move the swarm's counters by the status that it had, and tell its journal.

    False, and nothing is changed, when its status is not in `only_from`. `frees` False: whoever waits for an end of it goes on
    waiting.
    """
    place = {"swarm_rid": swarm_rid, "task_id": task_id, "now_ms": tx.now_ms, "status": status}
    task = tx.first("task", place)
    if task is None or task["status"] not in only_from:
        return False
    was = task["status"]
    tx.run("task_status", place)
    frees = frees and status not in UNENDED
    made_ready = sum(row["is_ready"] for row in tx.rows("dependents", place)) if frees else 0
    tx.run(
        "count",
        {
            "swarm_rid": swarm_rid,
            "open": -(status not in UNENDED),
            "ready": made_ready + (status == "ready") - (was == "ready"),
            "running": (status == "running") - (was == "running"),
        },
    )
    if status != was and status in EVENTS:
        tell(tx, swarm_rid, EVENTS[status], task_id, detail)
    return True


def tell(tx: Transaction, swarm_rid: bytes, kind: str, task_id: str | None = None, detail: str | None = None) -> None:
    """The next event in the journal of the swarm. `detail`: JSON."""
    happened = tx.first("swarm_happened", {"swarm_rid": swarm_rid})
    assert happened is not None
    event: Values = {"type": kind, "task_id": task_id, "detail": detail, "now_ms": tx.now_ms}
    tx.run("swarm_event", {**event, "swarm_rid": swarm_rid, "seq": happened["seq"]})
