"""Brakes and rates on SQLite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from deuz_workers.store.sqlite_transaction import Transaction, Values

_COLUMNS = ("what", "kind", "name", "reason", "actor", "at_ms", "has_rate", "at_a_time")
_MINUTE_MS = 60_000
_TINY_MS = 0.001
"""What is lost by counting in fractions is no reason to wait."""


def controls(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    every = {"now_ms": tx.now_ms, "has_key_rates": tx.rows("has_key_rates", {})[0]["has_key_rates"]}
    rows = tx.rows("brakes", {}) or [dict.fromkeys(_COLUMNS)]
    return [{**every, **row} for row in rows]


def set_brake(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    given = {**params, "now_ms": tx.now_ms}
    tx.run("store_brake", given)
    tx.run("log_brake", {**given, "act": "set"})
    return []


def lift_brake(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    gone = tx.rows("drop_brake", params)
    if gone:
        tx.run("log_brake", {**params, "act": "lifted", "now_ms": tx.now_ms})
    return [{"lifted": bool(gone)}]


def loosen(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return [{"count": len(tx.rows("loosen", {**params, "now_ms": tx.now_ms}))}]


def set_rate(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    if all(params[limit] is None for limit in ("calls", "tokens", "at_a_time")):
        tx.run("drop_rate", params)
    else:
        left = {name: _room(params[name], params["burst_ms"]) for name in ("calls", "tokens")}
        given = {**params, "calls_left": left["calls"], "tokens_left": left["tokens"], "now_ms": tx.now_ms}
        tx.run("store_rate", given)
    return []


def take_rate(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """All or nothing; see the statement of Postgres."""
    now_ms, burst_ms, wait_ms = tx.now_ms, params["burst_ms"], 0.0
    taken: list[dict[str, Any]] = []
    for place, name in enumerate(_names(params)):
        row = tx.first("rate_row", name)
        if row is None:
            continue
        passed_ms = max(0, now_ms - row["at_ms"])
        wait_ms = max(wait_ms, (row["shut_until_ms"] or 0) - now_ms)
        left: dict[str, float] = {}
        for what in ("calls", "tokens"):
            per_minute, asked = row[f"{what}_per_minute"], params[what][place]
            room, filled = _room(per_minute, burst_ms), row[f"{what}_left"] + passed_ms * (per_minute or 0) / _MINUTE_MS
            if per_minute is not None and asked:
                wait_ms = max(wait_ms, (min(asked, room) - filled) * _MINUTE_MS / per_minute)
            left[f"{what}_left"] = min(room, filled) - asked
        taken.append({**name, **left, "at_ms": max(now_ms, row["at_ms"])})
    whole_ms = max(0, math.ceil(wait_ms - _TINY_MS))
    if not whole_ms:
        tx.run_each("take_rate", taken)
    return [{"wait_ms": whole_ms}]


def give_rate(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    tx.run_each("give_rate", [{**name, "tokens": params["tokens"]} for name in _names(params)])
    return []


def shut_rate(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    tx.run_each("shut_rate", [{**name, "until_ms": tx.now_ms + params["wait_ms"]} for name in _names(params)])
    return []


def _names(params: Values) -> Iterator[dict[str, Any]]:
    for kind, scope, name in zip(params["kinds"], params["scopes"], params["names"], strict=True):
        yield {"kind": kind, "scope": scope, "name": name}


def _room(per_minute: int | None, burst_ms: int) -> float:
    return max(1.0, (per_minute or 0) * burst_ms / _MINUTE_MS)
