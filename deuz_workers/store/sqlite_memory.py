"""Memories on SQLite; `sql/sqlite/memory.sql` has the statements."""

from __future__ import annotations

import json
from typing import Any

from deuz_workers.store.sqlite_transaction import Transaction, Values

_OF_A_RECORD = (
    "record_id",
    "within_digest",
    "text_digest",
    "operation_id",
    "body",
    "created_at_ms",
    "updated_at_ms",
    "expires_at_ms",
)


def find_memories(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return tx.rows("find_memories", {**params, **_reach(tx, params)})


def write_memories(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """One after the other, so that each meets what those before it left. Words that another takes are left first."""
    ids: dict[str, list[tuple[str, str]]] = {}
    for record_id, name, value in zip(params["id_record"], params["id_name"], params["id_value"], strict=True):
        ids.setdefault(record_id, []).append((name, value))
    rows = zip(*(params[name] for name in _OF_A_RECORD), strict=True)
    records = [{"scope": params["scope"], **dict(zip(_OF_A_RECORD, row, strict=True))} for row in rows]
    taken = {(record["within_digest"], record["text_digest"]): record["record_id"] for record in records}
    for record in records:
        said = tx.first("memory_words", record)
        if (
            said is not None
            and taken.get((said["within_digest"], said["text_digest"]), record["record_id"]) != record["record_id"]
        ):
            tx.run("delete_memory", record)  # its ids stay
    for record in records:
        same = tx.first("same_memory", record)
        if same is not None:
            tx.run("touch_memory", {**record, "same_id": same["record_id"]})
            _delete(tx, params["scope"], record["record_id"])
            continue
        tx.run("put_memory", record)
        for name, value in ids.get(record["record_id"], []):
            tx.run("put_memory_id", {**record, "name": name, "value": value})
    return [{"count": len(params["record_id"])}]


def delete_memories(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    for record_id in params["record_id"]:
        _delete(tx, params["scope"], record_id)
    return [{"count": len(params["record_id"])}]


def delete_expired_memories(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    expired = tx.rows("expired_memories", {**params, **_reach(tx, params)})
    for row in expired:
        _delete(tx, params["scope"], row["record_id"])
    return [{"count": len(expired)}]


def _reach(tx: Transaction, params: Values) -> dict[str, Any]:
    ids = dict(zip(params["id_name"], params["id_value"], strict=True))
    at_ms = tx.now_ms if params["at_ms"] is None else params["at_ms"]
    return {"ids": json.dumps(ids), "id_count": len(ids), "at_ms": at_ms}


def _delete(tx: Transaction, scope: str, record_id: str) -> None:
    tx.run("delete_memory", {"scope": scope, "record_id": record_id})
    tx.run("delete_memory_ids", {"scope": scope, "record_id": record_id})
