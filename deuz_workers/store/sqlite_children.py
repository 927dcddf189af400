"""Delegated runs on SQLite: created, answered for and cancelled; what stands below a run."""

from __future__ import annotations

from typing import Any

from deuz_workers.store.sqlite_notes import leave_note
from deuz_workers.store.sqlite_tasks import move_task
from deuz_workers.store.sqlite_transaction import Transaction, Values

_BELL = ("scope", "run_id", "queue", "revision", "priority", "agent")


def create_children(tx: Transaction, params: Values) -> list[list[Any]]:
    """Rows of the runs that a commit delegates, as parts of it; their bells."""
    bells: list[list[Any]] = []
    times = {"parent_rid": params["rid"], "now_ms": tx.now_ms, "ttl_ms": params["ttl_ms"]}
    columns = ("rid", "run_id", "agent", "body", "version", "last_seq", "slot_key")
    for row in zip(*(params.get(f"child_{name}", ()) for name in columns), strict=True):
        [bell] = tx.rows("create_child", {**times, **dict(zip(columns, row, strict=True))})
        bells.append([bell[name] for name in _BELL])
    for statement, prefix, names in (
        ("create_message", "child_message", ("rid", "seq", "body")),
        ("create_budget", "child_budget", ("key", "tokens", "micros")),
    ):
        listed = (params.get(f"{prefix}_{name}", ()) for name in names)
        tx.run_each(statement, (dict(zip(names, row, strict=True)) for row in zip(*listed, strict=True)))
    return bells


def answer_parent(tx: Transaction, params: Values) -> tuple[list[list[Any]], bytes | None]:
    """The end of a delegated run closes the item that waits for it, if that is open: the parent's bell if it was the last one,
    or the swarm whose task the parent is and that has to be filled."""
    if params.get("parent_rid") is None:
        return [], None
    place = {"rid": params["parent_rid"], "item_id": params["parent_item"], "now_ms": tx.now_ms}
    target = tx.first("parent_target", place)
    if target is None:
        return [], None
    suspended = {**place, "suspension": target["suspension"]}
    tx.run("answer_item", {**suspended, "answer": params["parent_answer"], "votes": None, "answer_id": params["commit_id"]})
    closes = target["open_items"] == 1
    swarm_rid = None
    if closes and target["swarm_rid"] is not None:
        readied = move_task(tx, target["swarm_rid"], target["task_id"], "ready", only_from=("suspended",))
        swarm_rid = target["swarm_rid"] if readied else None
    due = closes and target["parked"] is None and swarm_rid is None
    tx.run("answer_head", {**suspended, "wakes": due, "closed": 1, "ttl_ms": params["ttl_ms"]})
    return ([[target[name] for name in _BELL]] if due else []), swarm_rid


def cancel_children(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    bells: list[list[Any]] = []
    for child in tx.rows("cancel_children_next", params):
        note = leave_note(tx, child["rid"], "cancel", params["note_body"], params["ttl_ms"])
        bells.append([note[name] for name in _BELL])
    more = len(bells) == params["limit"]
    if not more:
        tx.run("cancel_children_done", params)
    return [{"changed": len(bells), "more": more, "bells": bells}]


def tree(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    rows = tx.rows("tree", {**params, "now_ms": tx.now_ms})
    for row in rows:
        row["goes_on"] = bool(row["goes_on"])
    return rows
