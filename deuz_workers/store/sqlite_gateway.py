"""Frames and access tokens on SQLite; `sql/sqlite/gateway.sql` has the statements."""

from __future__ import annotations

import json
from typing import Any

from deuz_workers.store.sqlite_transaction import Transaction, Values


def append_frames(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """All behind the number they were made for, or nothing. The write lock is held, so nobody comes between."""
    newest = tx.rows("newest_frame", params)[0]["seq"]
    if newest != params["after"]:
        return []
    rows = [{**params, "seq": newest + place, "body": body} for place, body in enumerate(params["body"], 1)]
    tx.run_each("append_frame", rows)
    return [{"seq": row["seq"]} for row in rows]


def add_access_token(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return tx.rows("add_access_token", {**params, "scopes": json.dumps(params["scopes"]), "now_ms": tx.now_ms})


def find_access_token(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return tx.rows("find_access_token", {**params, "now_ms": tx.now_ms})


def revoke_access_token(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return tx.rows("revoke_access_token", {**params, "now_ms": tx.now_ms})
