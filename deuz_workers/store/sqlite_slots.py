"""Slots of concurrency keys on SQLite."""

from __future__ import annotations

from typing import Any

from deuz_workers.store.sqlite_transaction import Transaction, Values


def take_slot(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    run = tx.first("slot_asker", params)
    if run is None:
        return []
    if run["slot"] is not None:
        return [{"slot": run["slot"]}]
    place = {"scope": run["scope"], "key": run["key"]}
    tx.run("make_key", {**place, "slots": params["slots"]})
    row = tx.first("key_row", place)
    assert row is not None
    granted = row["used"] < row["slots"] and row["waiting"] == 0
    tx.run("count_slots", {**place, "used": int(granted), "waiting": int(not granted)})
    tx.run("hold_slot" if granted else "wait_for_slot", {"rid": run["rid"]})
    return [{"slot": "held" if granted else "waiting"}]


def return_slot(tx: Transaction, rid: bytes) -> None:
    """The run holds none any more, and asks for none."""
    holder = tx.first("slot_holder", {"rid": rid})
    if holder is None:
        return
    is_held = holder["slot"] == "held"
    tx.run("count_slots", {"scope": holder["scope"], "key": holder["key"], "used": -is_held, "waiting": -(not is_held)})
    tx.run("drop_slot", {"rid": rid})


def fill_key(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    place = {"scope": params["scope"], "key": params["key"]}
    row = tx.first("key_row", place)
    free = 0 if row is None else row["slots"] - row["used"]
    if free <= 0:
        return []
    bells: list[dict[str, Any]] = []
    for run in tx.rows("next_for_slot", {**place, "free": free}):
        bells += tx.rows("give_slot", {"rid": run["rid"], "ttl_ms": params["ttl_ms"], "now_ms": tx.now_ms})
    tx.run("count_slots", {**place, "used": len(bells), "waiting": -len(bells)})
    return bells


def set_slots(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    tx.run("set_slots", params)
    return []
