"""Creating, loading, sweeping, parking and listing runs on SQLite."""

from __future__ import annotations

import json
from typing import Any

from deuz_workers.store.sqlite_slots import return_slot
from deuz_workers.store.sqlite_tasks import move_task
from deuz_workers.store.sqlite_transaction import Transaction, Values

ITEM_COLUMNS = (
    "item_id",
    "item_kind",
    "item_body",
    "item_digest",
    "item_expires_in_ms",
    "item_answer",
    "item_votes",
    "item_remind_in_ms",
    "item_escalate_in_ms",
)

_FLAGS = ("mid_step", "waits_for_slot", "waits_for_children")


def create(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """The run, then the tasks of its swarm. A row in the first one's way writes nothing; any other breaks a constraint."""
    first = {"scope": params["run_scope"][0], "run_id": params["run_id"][0], "idem_key": params["run_idem_key"][0]}
    if tx.first("find_run", first) is not None:
        return [{"created": False}]
    swarm_rid = params["run_rid"][0]
    tx.run_each("create_head", (_head(params, place, tx.now_ms, swarm_rid) for place in range(len(params["run_rid"]))))
    for statement, prefix, names in (
        ("create_message", "message", ("rid", "seq", "body")),
        ("create_tag", "tag", ("rid", "key", "value")),
        ("create_budget", "budget", ("key", "tokens", "micros")),
    ):
        columns = (params[f"{prefix}_{name}"] for name in names)
        tx.run_each(statement, (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)))
    if params["swarm_slots"] is not None:
        _create_swarm(tx, params, swarm_rid)
    return [{"created": True}]


def _head(params: Values, place: int, now_ms: int, swarm_rid: bytes) -> dict[str, Any]:
    """Values of `create_head` for the run at this place of the lists."""

    def moment(name: str) -> int | None:
        in_ms, at_ms = params[f"{name}_in_ms"][place], params[f"{name}_at_ms"][place]
        return at_ms if in_ms is None else now_ms + in_ms

    is_task = params["run_task_id"][place] is not None
    start_at_ms = moment("run_start")
    return {
        **{
            name: params[f"run_{name}"][place]
            for name in (
                "rid",
                "scope",
                "kind",
                "agent",
                "body",
                "version",
                "queue",
                "priority",
                "shard",
                "last_seq",
                "idem_key",
                "slot_key",
            )
        },
        "run_id": params["run_id"][place],
        "digest": params["run_digest"][place],
        "task_id": params["run_task_id"][place],
        "swarm_rid": swarm_rid if is_task else None,
        "start_at_ms": None if is_task else now_ms if start_at_ms is None else start_at_ms,
        "deadline_at_ms": moment("run_deadline"),
        "start_before_at_ms": moment("run_start_before"),
        "ring_in_ms": params["ring_in_ms"],
        "now_ms": now_ms,
    }


def _create_swarm(tx: Transaction, params: Values, swarm_rid: bytes) -> None:
    waiting = params["task_waiting"]
    tx.run(
        "create_swarm",
        {
            **{name: params[f"swarm_{name}"] for name in ("slots", "max_tasks", "max_depth", "max_spawn")},
            "rid": swarm_rid,
            "open": len(waiting),
            "ready": sum(n == 0 for n in waiting),
        },
    )
    tx.run_each(
        "create_task",
        (
            {
                "swarm_rid": swarm_rid,
                "run_rid": run_rid,
                "task_id": task_id,
                "waiting": waits,
                "rank": rank,
                "timeout_ms": timeout_ms,
                "place": place,
            }
            for place, (run_rid, task_id, waits, rank, timeout_ms) in enumerate(
                zip(
                    params["task_rid"],
                    params["task_id"],
                    waiting,
                    params["task_rank"],
                    params["task_timeout_ms"],
                    strict=True,
                )
            )
        ),
    )
    tx.run_each(
        "create_edge",
        (
            {"swarm_rid": swarm_rid, "up": up, "down": down, "soft": soft}
            for up, down, soft in zip(params["edge_up"], params["edge_down"], params["edge_soft"], strict=True)
        ),
    )


def head(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    rows = tx.rows("head", {**params, "now_ms": tx.now_ms})
    for row in rows:
        for name in _FLAGS:
            row[name] = bool(row[name])
    return rows


def load(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    for row in head(tx, params):
        rid, epoch = row["rid"], row["epoch"]
        is_known = (params["known_epoch"], params["known_compactions"]) == (epoch, row["compactions"])
        gap = (0, 0) if params["whole"] else (row["folded_from"], row["folded_to"])
        rows = {
            "rid": rid,
            "epoch": epoch,
            "after": params["known_seq"] if is_known else -1,
            "record": -row["compactions"] if row["compactions"] and not is_known else None,
            "gap_from": gap[0],
            "gap_to": gap[1],
        }
        row |= tx.columns("load_messages", rows, ("message_seq", "message_body"))
        row |= tx.columns(
            "load_receipts",
            {"rid": rid, "step": 0 if params["whole"] else max(params["known_step"], row["folded_step"])},
            ("receipt_step", "receipt_call", "receipt_seq", "receipt_stage", "receipt_body"),
        )
        row |= tx.columns("load_notes", {"rid": rid, "seen_seq": row["seen_seq"]}, ("note_seq", "note_kind", "note_body"))
        row |= tx.columns(
            "load_items",
            {"rid": rid, "suspension": row["suspension"], "now_ms": tx.now_ms},
            ITEM_COLUMNS,
        )
        return [row]
    return []


def bells(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return [row for rid in params["rids"] for row in tx.rows("bells", {"rid": rid})]


def hasten(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    asked = {"queues": json.dumps(params["queues"]), "agents": json.dumps(params["agents"]), "limit": params["limit"]}
    return [{"count": len(tx.rows("hasten", {**asked, "now_ms": tx.now_ms}))}]


def record_unclean_end(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    recorded = tx.rows("record_unclean_end", {**params, "now_ms": tx.now_ms})
    for row in recorded:
        tx.run("keep_unclean_end", {**params, "number": row["attempts"], "now_ms": tx.now_ms})
    return recorded


def park(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    parked = tx.rows("park", params)
    for row in parked:
        return_slot(tx, row["rid"])
        if row["swarm_rid"] is not None:
            started = ("ready", "running", "suspended")
            why = json.dumps({"reason": params["reason"]})
            move_task(tx, row["swarm_rid"], row["task_id"], "needs_reconciliation", only_from=started, detail=why)
    return parked


def list_runs(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    before_us = params["before_us"]
    rows = tx.rows(
        "list_runs",
        {
            **params,
            "now_ms": tx.now_ms,
            "any_status": not params["status"],
            "status": json.dumps(params["status"]),
            "kind": json.dumps(params["kind"]),
            "tags": json.dumps(list(zip(params["tag_key"], params["tag_value"], strict=True))),
            "before_ms": None if before_us is None else before_us // 1_000,
        },
    )
    for row in rows:
        for name in _FLAGS:
            row[name] = bool(row[name])
    return rows
