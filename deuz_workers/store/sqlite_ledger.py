"""Budgets on SQLite. With one writer at a time a settlement is folded into its scopes at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deuz_workers.store.sqlite_transaction import Transaction, Values


def reserve(tx: Transaction, params: Values) -> tuple[tuple[str, str, bool] | None, list[list[Any]] | None]:
    """Hold the estimate in every scope that has a row; nothing under a request id that is there already.

    Returns scope and reason of the first refusal, deepest scope first, and whether it is new; the caller then undoes what was
    held before it. Without one, what counts now in the scopes that somebody is to be warned of.
    """
    request = {
        "rid": params["rid"],
        "request_id": params["request_id"],
        "tokens": params["reserve_tokens"],
        "micros": params["reserve_micros"],
        "model": params["reserve_model"],
        "now_ms": tx.now_ms,
    }
    before = tx.first("asked_before", request)
    if before is not None:
        if (before["tokens"], before["micros"]) != (request["tokens"], request["micros"]):
            return (before["scope_key"] or "", "request_mismatch", False), None
        return (None if before["reason"] is None else (before["scope_key"], before["reason"], False)), None
    charged: list[list[Any]] = []
    for place, key in enumerate(params["reserve_scope"]):
        scope = tx.first("scope_standing", {**request, "scope_key": key})
        if scope is None:
            if params["reserve_named"][place]:
                return (key, "unopened", True), None
            continue
        refusal = _refusal(scope, params, place)
        if refusal is not None:
            return (key, refusal, True), None
        window = {name: scope[name] for name in ("newest", "buckets", "bucket_ms")}
        hold = {**request, "scope_key": key, "depth": place + 1, **window}
        tx.run("reserve_hold", hold)
        tx.run("reserve_held", hold)
        if scope["window_ms"] is not None:
            tx.run("reserve_bucket", hold)
            tx.run("drop_buckets", hold)
        warn_percent = params["reserve_warn"][place]
        if warn_percent is None:
            warn_percent = params["reserve_warn_else"] if scope["warn_percent"] is None else scope["warn_percent"]
        if warn_percent is not None:
            charged.append([key, *_used(scope, params), *_limits(scope, params, place), warn_percent])
    return None, charged or None


def _used(scope: Mapping[str, Any], params: Values) -> tuple[int, int]:
    """With this request."""
    micros = params["reserve_micros"] or 0
    return scope["used_tokens"] + params["reserve_tokens"], scope["used_micros"] + micros


def _limits(scope: Mapping[str, Any], params: Values, place: int) -> tuple[int | None, int | None]:
    """The stricter of what the scope has and what the request brings."""

    def least(mine: int | None, theirs: int | None) -> int | None:
        return min((limit for limit in (mine, theirs) if limit is not None), default=None)

    return (
        least(scope["limit_tokens"], params["reserve_limit_tokens"][place]),
        least(scope["limit_micros"], params["reserve_limit_micros"][place]),
    )


def _refusal(scope: Mapping[str, Any], params: Values, place: int) -> str | None:
    asked_window = params["reserve_window_ms"][place], params["reserve_buckets"][place]
    if not params["reserve_any_window"][place] and asked_window != (scope["window_ms"], scope["buckets"]):
        return "window_mismatch"
    has_limit = params["reserve_limit_tokens"][place] is not None or params["reserve_limit_micros"][place] is not None
    if scope["slices"] > 0 and not has_limit:
        return "sliced"
    (tokens, micros), (most_tokens, most_micros) = _used(scope, params), _limits(scope, params, place)
    if most_micros is not None and params["reserve_micros"] is None and not params["reserve_uncounted"]:
        return "missing_reservation"
    if (most_tokens is not None and tokens > most_tokens) or (most_micros is not None and micros > most_micros):
        return "budget_exceeded"
    return None


def remember(tx: Transaction, params: Values, scope_key: str, reason: str) -> None:
    """The same request is answered alike from now on."""
    tx.run(
        "remember_refusal",
        {
            "rid": params["rid"],
            "request_id": params["request_id"],
            "scope_key": scope_key,
            "reason": reason,
            "tokens": params["reserve_tokens"],
            "micros": params["reserve_micros"],
            "now_ms": tx.now_ms,
        },
    )


def settle(tx: Transaction, ending: Mapping[str, Any]) -> None:
    """End the holds of a run's request; once, so that a second settlement finds none."""
    tx.run("settle_buckets", {**ending, "status": "held"})
    tx.run("settle_scopes", ending)
    tx.run("settle_reservation", ending)


def set_budget(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """No row where the scope has another window. Slices give back what they do not use."""
    key = params["key"]
    before = tx.first("scope_row", params)
    window = params["window_ms"], params["buckets"]
    if before is not None and window[0] is not None and window != (before["window_ms"], before["buckets"]):
        return []
    tx.run("write_scope", params)
    tx.run_each("cut_slice", ({"key": key, "slice_key": f"{key}#{place}"} for place in range(params["slices"] or 0)))
    reclaim_slices(tx, params)
    audit = {"actor": params["actor"], "action": "set", "reason": params["reason"], "scope_key": key, "now_ms": tx.now_ms}
    amounts = {"rid": None, "request_id": None, "tokens": params["tokens"], "micros": params["micros"]}
    tx.run("write_audit", {**audit, **amounts})
    return [{"key": key}]


def reclaim_slices(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    tx.run("shrink_slices", params)
    tx.run("count_slices", params)
    return []


def grow_slice(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """Grant a slice what it lacks and some more in advance, at most a share of what is left; no row where it is too little."""
    mine = tx.first("scope_row", params)
    if mine is None or mine["slice_of"] is None:
        return []
    whole = tx.first("scope_row", {"key": mine["slice_of"]})
    if whole is None:
        return []
    grants: dict[str, int] = {}
    limits: dict[str, int | None] = {}
    for name in ("tokens", "micros"):
        most, grants[name], limits[name] = whole[f"limit_{name}"], 0, None
        if most is None:
            continue
        has = mine[f"limit_{name}"] or 0
        lack = max(mine[f"used_{name}"] + params[name] - has, 0)
        left = most - whole[f"used_{name}"] - whole[f"granted_{name}"]
        if lack > left:
            return []
        share = int(left / (2 * max(whole["slices"], 1)))
        grants[name] = max(lack, min(lack + 32 * params[name], share))
        limits[name] = has + grants[name]
    tx.run("grant_slice", {"key": whole["key"], "grant_tokens": grants["tokens"], "grant_micros": grants["micros"]})
    tx.run("slice_limit", {"key": mine["key"], "limit_tokens": limits["tokens"], "limit_micros": limits["micros"]})
    return [{"key": mine["key"]}]


def release_hold(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """Once: what was unknown is free, and who freed it is written down."""
    request = {"rid": params["rid"], "request_id": params["request_id"]}
    freed = {**request, "status": "unknown", "outcome": "released", "tokens": 0, "micros": 0}
    tx.run("settle_buckets", freed)
    tx.run("release_hold_scopes", request)
    released = sorted(tx.rows("release_hold_rows", request), key=lambda row: row["scope_key"])
    audit = {"now_ms": tx.now_ms, "actor": params["actor"], "action": "released", "reason": params["reason"], **request}
    tx.run_each("write_audit", ({**audit, **row} for row in released))
    return released


def holds(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """Oldest first; the scopes of each as a list."""
    return [{**row, "scope_keys": json.loads(row["scope_keys"])} for row in tx.rows("holds", params)]
