"""The sweep on SQLite: which rows a pass takes. The Postgres statement of the same name says the same in SQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deuz_workers.core.feeding import Waiting, choose
from deuz_workers.store.sqlite_transaction import Transaction, Values

LAST_SHARD = 1 << 15
SCOPES = 256
"""Scopes that one pass looks through: some 0.02 ms each."""


def sweep(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    queues = params["queues"]
    asked = {
        "now_ms": tx.now_ms,
        "ttl_ms": params["ttl_ms"],
        "queues": None if queues is None else json.dumps(queues),
        "suspicious": params["suspicious"],
        "suffix": params["suffix"],
    }
    begun = tx.rows("sweep_begun", {**asked, "limit": params["limit"] + params["spare"]})
    rows = {row["rid"]: row for row in _waiting(tx, params, asked)}
    running = {(row["queue"], row["scope"]): row["running"] for row in tx.rows("sweep_running", asked)}
    waiting = [
        Waiting(
            rid, (row["queue"], row["scope"]), row["priority"], row["sweep_at_ms"], running.get((row["queue"], row["scope"]), 0)
        )
        for rid, row in rows.items()
        if row["has_work"]
    ]
    chosen = [rows[rid] for rid in choose(waiting, params["limit"] - len(begun), params["spare"])]
    workless = [row for row in rows.values() if not row["has_work"]]
    next_ms = tx.now_ms + params["ttl_ms"]
    tx.run_each(
        "sweep_on",
        (
            {"rid": row["rid"], "sweep_at_ms": next_ms if row["has_work"] else row["due_at_ms"]}
            for row in (*begun, *chosen, *workless)
        ),
    )
    return [row for row in (*begun, *chosen) if row["has_work"]]


def _waiting(tx: Transaction, params: Values, asked: Values) -> Iterator[dict[str, Any]]:
    """The first rows of up to `SCOPES` scopes, begun at the shard `from_shard`."""
    scopes = list(_scopes(tx, params))
    limit = max(8, 2 * params["limit"] // max(1, len(scopes)))
    for place in scopes:
        yield from tx.rows("sweep_waiting", {**asked, **place, "limit": limit})


def _scopes(tx: Transaction, params: Values) -> Iterator[dict[str, Any]]:
    left, first = SCOPES, params["from_shard"]
    if params["queues"] is None:
        parts = [("", -1, None, LAST_SHARD)]
    else:
        parts = [(name, shard, name, end) for name in params["queues"] for shard, end in ((first, LAST_SHARD), (-1, first))]
    for queue, shard, only, end in parts:
        place: dict[str, Any] | None = {"queue": queue, "shard": shard, "scope": ""}
        while left and (place := tx.first("sweep_scope", place)) is not None:
            if only is not None and (place["queue"] != only or place["shard"] >= end):
                break
            yield place
            left -= 1


def ripen(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    runs = zip(params["scope"], params["run_id"], strict=True)
    tx.run_each("ripen", ({"scope": scope, "run_id": run_id, "now_ms": tx.now_ms} for scope, run_id in runs))
    return []
