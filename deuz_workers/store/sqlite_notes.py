"""Notes and answers on SQLite: what outsiders do to a run."""

from __future__ import annotations

from typing import Any

from deuz_workers.store.sqlite_tasks import move_task, tell
from deuz_workers.store.sqlite_transaction import Transaction, Values


def leave_note(tx: Transaction, rid: bytes, kind: str, body: str, ttl_ms: int, note_id: bytes | None = None) -> dict[str, Any]:
    """Append a note to the inbox of a run that may take it; its place as `seq`, and the bell."""
    note = {"rid": rid, "kind": kind, "body": body, "note_id": note_id, "ttl_ms": ttl_ms, "now_ms": tx.now_ms}
    bell = tx.first("note_head", note)
    assert bell is not None
    tx.run("note_body", {**note, "seq": bell["seq"]})
    return bell


def add_note(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    before = tx.first("note_before", params)
    if before is not None:
        return [before]
    target = tx.first("note_target", params)
    if target is None:
        return []
    rid, kind = target["rid"], params["kind"]
    bell = leave_note(tx, rid, kind, params["body"], params["ttl_ms"], params["note_id"])
    if kind == "cancel" and tx.first("swarm_cancelling", {"swarm_rid": rid}) is not None:
        tell(tx, rid, "run.cancelled")
    if target["swarm_rid"] is not None and kind in ("retry", "reconcile"):
        move_task(tx, target["swarm_rid"], target["task_id"], "ready", only_from=("needs_reconciliation",))
    return [{"rid": rid, **bell}]


def answer_items(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    target = tx.first("answer_target", params)
    if target is None:
        return []
    place = {**params, "rid": target["rid"], "suspension": target["suspension"], "now_ms": tx.now_ms}
    columns = ("item_id", "answer", "votes", "votes_before", "required", "expired")
    given = [{**place, **dict(zip(columns, row, strict=True))} for row in zip(*(params[name] for name in columns), strict=True)]
    fitting = [one for one in given if tx.first("answerable", one) is not None]
    if not fitting or any(one["required"] and one not in fitting for one in given):
        return [{**target, "stored": False, "due": False, "swarm_rid": None}]
    for one in fitting:
        tx.run("answer_item", one)
    closed = sum(one["answer"] is not None for one in fitting)
    closes = closed == target["open_items"]
    swarm_rid = None
    if closes and target["swarm_rid"] is not None:
        readied = move_task(tx, target["swarm_rid"], target["task_id"], "ready", only_from=("suspended",))
        swarm_rid = target["swarm_rid"] if readied else None
    due = closes and target["parked"] is None and swarm_rid is None
    tx.run("answer_head", {**place, "wakes": due, "closed": closed})
    return [{**target, "stored": True, "open_items": target["open_items"] - closed, "due": due, "swarm_rid": swarm_rid}]
