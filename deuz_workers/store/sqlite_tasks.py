"""Statuses of swarm tasks on SQLite, and the counters that follow them."""

from __future__ import annotations

from deuz_workers.store.sqlite_transaction import Transaction

UNENDED = ("pending", "ready", "running", "suspended", "needs_reconciliation")


def move_task(tx: Transaction, swarm_rid: bytes, task_id: str, status: str, *, only_from: tuple[str, ...] = UNENDED) -> bool:
    """Give a task its next status and move the swarm's counters by the status that it had.

    False, and nothing is changed, when its status is not in `only_from`.
    """
    place = {"swarm_rid": swarm_rid, "task_id": task_id, "now_ms": tx.now_ms, "status": status}
    task = tx.first("task", place)
    if task is None or task["status"] not in only_from:
        return False
    was = task["status"]
    tx.run("task_status", place)
    made_ready = sum(row["is_ready"] for row in tx.rows("dependents", place)) if status == "completed" else 0
    tx.run(
        "count",
        {
            "swarm_rid": swarm_rid,
            "open": -(status not in UNENDED),
            "ready": made_ready + (status == "ready") - (was == "ready"),
            "running": (status == "running") - (was == "running"),
        },
    )
    return True
