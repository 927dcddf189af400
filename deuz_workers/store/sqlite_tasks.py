"""Statuses of swarm tasks on SQLite, and the counters that follow them."""

from __future__ import annotations

from deuz_workers.store.sqlite_transaction import Transaction

ENDED = frozenset(("completed", "failed", "blocked", "cancelled"))


def move_task(tx: Transaction, swarm_rid: bytes, task_id: str, status: str, *, only_from: str | None = None) -> int | None:
    """Give a task its next status and move the swarm's counters by the status that it had; an ended one is left alone.

    Returns the number of open tasks afterwards, None when there is no such task, or it is not in `only_from`.
    """
    place = {"swarm_rid": swarm_rid, "task_id": task_id, "now_ms": tx.now_ms, "status": status}
    task = tx.first("task", place)
    if task is None or (only_from is not None and task["status"] != only_from):
        return None
    was = task["status"]
    made_ready = 0
    if was in ENDED or was == status:
        was = status = "unchanged"
    else:
        tx.run("task_status", place)
        if status == "completed":
            made_ready = sum(row["is_ready"] for row in tx.rows("dependents", place))
    counted = tx.first(
        "count",
        {
            "swarm_rid": swarm_rid,
            "open": -(status in ENDED),
            "ready": made_ready + (status == "ready") - (was == "ready"),
            "running": (status == "running") - (was == "running"),
        },
    )
    return None if counted is None else counted["open"]
