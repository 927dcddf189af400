"""Budgets on SQLite. With one writer at a time a settlement is folded into its scopes at once."""

from __future__ import annotations

from typing import Any

from deuz_workers.store.sqlite_transaction import Transaction, Values


def reserve(tx: Transaction, params: Values) -> tuple[str, str] | None:
    """Hold the estimate in every scope that has a row; nothing under a request id that is there already.

    Returns scope and reason of the first refusal, deepest scope first; the caller then undoes what was held before it.
    """
    request = {
        "rid": params["rid"],
        "request_id": params["request_id"],
        "tokens": params["reserve_tokens"],
        "micros": params["reserve_micros"],
        "now_ms": tx.now_ms,
    }
    if tx.first("reserved_before", request) is not None:
        return None
    for key in dict.fromkeys(params["reserve_scope"]):
        scope = tx.first("reserve_scope", {**request, "scope_key": key})
        if scope is None:
            continue
        if scope["refusal"] is not None:
            return key, scope["refusal"]
        tx.run("reserve_hold", {**request, "scope_key": key})
        tx.run("reserve_held", {**request, "scope_key": key})
    return None


def settle(tx: Transaction, rid: bytes, request_id: str, outcome: str, tokens: int, micros: int | None) -> None:
    """End the holds of a run's request; once, so that a second settlement finds none."""
    ending = {"rid": rid, "request_id": request_id, "outcome": outcome, "tokens": tokens, "micros": micros}
    tx.run("settle_scopes", ending)
    tx.run("settle_reservation", ending)


def set_budget(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    tx.run("set_budget", params)
    return []
