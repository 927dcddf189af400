"""Tasks that a task of a swarm creates with its own end, on SQLite."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from deuz_workers.store.sqlite_tasks import tell
from deuz_workers.store.sqlite_transaction import Transaction, Values

_ENDED_BADLY = ("failed", "blocked", "cancelled")


def is_crowded(tx: Transaction, params: Values) -> bool:
    """The new tasks are more than the swarm may have."""
    tasks = params.get("spawn_task", ())
    if not tasks:
        return False
    swarm = tx.first("swarm_row", {"swarm_rid": params["swarm_rid"]})
    return swarm is None or swarm["max_tasks"] is None or swarm["total"] + len(tasks) > swarm["max_tasks"]


def spawn_tasks(tx: Transaction, params: Values) -> None:
    """Rows of the new tasks, after the change of their creator's status; each waits for what has not ended as it needs it."""
    if not params.get("spawn_task"):
        return
    swarm_rid, parent = params["swarm_rid"], params["task_id"]
    swarm = tx.first("swarm_row", {"swarm_rid": swarm_rid})
    assert swarm is not None
    edges = list(zip(params["spawn_up"], params["spawn_down"], params["spawn_soft"], strict=True))
    waiting: Counter[str] = Counter(down for up, down, soft in edges if _is_open(tx, swarm_rid, up, soft=soft))
    columns = ("rid", "run_id", "task", "kind", "agent", "body", "last_seq", "queue", "slot_key", "rank", "depth", "timeout_ms")
    for place, row in enumerate(zip(*(params[f"spawn_{name}"] for name in columns), strict=True)):
        values: dict[str, Any] = dict(zip(columns, row, strict=True))
        values |= {"swarm_rid": swarm_rid, "parent_rid": params["rid"], "now_ms": tx.now_ms, "task_id": values.pop("task")}
        values |= {"waiting": waiting[values["task_id"]], "place": swarm["total"] + place}
        for statement in ("spawn_head", "spawn_tags", "spawn_task"):
            tx.run(statement, values)
        tell(tx, swarm_rid, "task.spawned", values["task_id"], json.dumps({"parent": parent}))
    for up, down, soft in edges:
        tx.run("create_edge", {"swarm_rid": swarm_rid, "up": up, "down": down, "soft": soft})
    tasks: list[str] = params["spawn_task"]
    tx.run("grown", {"swarm_rid": swarm_rid, "tasks": len(tasks)})
    ready = sum(not waiting[task] for task in tasks)
    tx.run("count", {"swarm_rid": swarm_rid, "open": len(tasks), "ready": ready, "running": 0})


def _is_open(tx: Transaction, swarm_rid: bytes, up: str, *, soft: bool) -> bool:
    """Who waits for `up` has to: it is new, or has not ended as is needed."""
    task: Mapping[str, Any] | None = tx.first("task", {"swarm_rid": swarm_rid, "task_id": up})
    if task is None:
        return True
    return task["status"] != "completed" and not (soft and task["status"] in _ENDED_BADLY)
