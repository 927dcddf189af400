"""Chats on SQLite; `sql/sqlite/chats.sql` has the statements."""

from __future__ import annotations

from typing import Any

from deuz_workers.store.sqlite_transaction import Transaction, Values


def write_chat(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """A new one, or over the revision that was read."""
    return tx.rows("make_chat" if params["expected"] is None else "write_chat", {**params, "now_ms": tx.now_ms})


def save_chat(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return tx.rows("save_chat", {**params, "now_ms": tx.now_ms})


def delete_chat(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return tx.rows("delete_chat", {**params, "now_ms": tx.now_ms})


def keep_chat_state(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """See the statement of Postgres."""
    given = {**params, "now_ms": tx.now_ms}
    head = tx.first("chat_state_head", given)
    if head is None:
        return []
    kept = bool(tx.rows("keep_chat_state", given))
    is_as_read = all(head[name] == params[name] for name in ("revision", "open_items", "wake_seq"))
    if kept and is_as_read and head["parked"] is None and head["rests"]:
        tx.run("chat_state_due", given)
    return [{"kept": kept, "due": bool(tx.rows("chat_state_after", given)[0]["due"])}]
