"""Slots, settling, cascades and snapshots of swarms on SQLite."""

from __future__ import annotations

from typing import Any

from deuz_workers.store.sqlite_notes import leave_note
from deuz_workers.store.sqlite_tasks import move_task, tell
from deuz_workers.store.sqlite_transaction import Transaction, Values

_BELL = ("scope", "run_id", "queue", "revision", "priority", "agent")


def fill_slots(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    swarm_rid = params["swarm_rid"]
    swarm = tx.first("free_slots", {**params, "now_ms": tx.now_ms})
    if swarm is None:
        return []
    bells: list[dict[str, Any]] = []
    for task in tx.rows("next_tasks", {"swarm_rid": swarm_rid, "free": swarm["free"]}):
        move_task(tx, swarm_rid, task["task_id"], "running")
        tx.run("swarm_moves", {"swarm_rid": swarm_rid})
        started = {"run_rid": task["run_rid"], "ttl_ms": params["ttl_ms"], "timeout_ms": task["timeout_ms"]}
        bells += tx.rows("start_head", {**started, "now_ms": tx.now_ms})
    return bells


def settle_swarm(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    head = tx.first("settle_target", params)
    if head is not None:
        leave_note(tx, head["rid"], "child", params["note_body"], params["ttl_ms"])
        return [head]
    swarm_rid = params["swarm_rid"]
    still = tx.first("stands_still", {"swarm_rid": swarm_rid, "now_ms": tx.now_ms})
    if still is not None:
        if still["draining"]:
            tell(tx, swarm_rid, "run.drained")
        tell(tx, swarm_rid, "run.settled", None, '{"status":"suspended"}')
        tx.run("said_still", {"swarm_rid": swarm_rid})
    return []


def block_downstream(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """Level by level, up to `limit` tasks: what was blocked just now blocks what depends on it."""
    swarm_rid, limit = params["swarm_rid"], params["limit"]
    changed = 0
    while changed < limit:
        level = tx.rows("block_next", {"swarm_rid": swarm_rid, "limit": limit - changed})
        if not level:
            return [{"changed": changed, "more": False}]
        for task in level:
            _end_unstarted(tx, swarm_rid, task, "blocked")
        changed += len(level)
    return [{"changed": changed, "more": True}]


def cancel_tasks(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    swarm_rid, limit = params["swarm_rid"], params["limit"]
    bells: list[list[Any]] = []
    reached = tx.rows("cancel_next", {"swarm_rid": swarm_rid, "limit": limit})
    for task in reached:
        if task["never_started"]:
            _end_unstarted(tx, swarm_rid, task, "cancelled")
        else:
            note = leave_note(tx, task["run_rid"], "cancel", params["note_body"], params["ttl_ms"])
            bells.append([note[name] for name in _BELL])
    return [{"changed": len(reached), "more": len(reached) == limit, "bells": bells}]


def _end_unstarted(tx: Transaction, swarm_rid: bytes, task: Values, status: str) -> None:
    move_task(tx, swarm_rid, task["task_id"], status, frees=status == "blocked")
    tx.run("stop_head", {"run_rid": task["run_rid"], "now_ms": tx.now_ms})


def swarm_snapshot(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    waits: dict[tuple[str, bool], list[str]] = {}
    for edge in tx.rows("swarm_edges", params):
        waits.setdefault((edge["down"], bool(edge["soft"])), []).append(edge["up"])
    return [
        {**row, "depends_on": waits.get((row["task_id"], False), []), "after": waits.get((row["task_id"], True), [])}
        for row in tx.rows("swarm_snapshot", params)
    ]


def resume_swarm(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    resumed = tx.rows("resumed_swarm", params)
    for row in resumed:
        tell(tx, row["rid"], "run.resumed")
    return resumed


def spawn_ground(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    rows = tx.rows("spawn_row", params)
    for row in rows:
        named = ({"swarm_rid": params["swarm_rid"], "task_id": task_id} for task_id in params["task_ids"])
        row["existing"] = [one["task_id"] for one in named if tx.first("task", one) is not None]
    return rows
