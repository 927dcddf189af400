"""Webhooks on SQLite; `sql/sqlite/webhooks.sql` has the statements."""

from __future__ import annotations

import json
from typing import Any

from deuz_workers.store.sqlite_transaction import Transaction, Values


def add_webhook(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return tx.rows("add_webhook", {**params, "events": json.dumps(params["events"]), "now_ms": tx.now_ms})


def remove_webhook(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    gone = tx.rows("remove_webhook", params)
    if gone:
        tx.run("remove_webhook_deliveries", params)
    return gone


def enable_webhook(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return tx.rows("enable_webhook", {**params, "now_ms": tx.now_ms})


def replay_webhook(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    found = tx.rows("webhook_due_now", {**params, "now_ms": tx.now_ms})
    again = tx.rows("replay_deliveries", params) if found else []
    return [{"count": len(again), "found": len(found)}]


def collect_webhook_events(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    given = {**params, "now_ms": tx.now_ms}
    added = tx.rows("collect_webhook_events", given)
    tx.run("move_webhook_horizon", given)
    tx.run("forget_webhook_deliveries", given)
    return [{"count": len(added)}]


def take_webhook_deliveries(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    given = {**params, "now_ms": tx.now_ms}
    taken: list[dict[str, Any]] = []
    for due in tx.rows("due_webhooks", given):
        tx.run("claim_webhook", {**given, **due})
        taken += tx.rows("first_deliveries", {**given, **due})
    return taken


def webhook_delivered(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    given = {**params, "now_ms": tx.now_ms}
    tx.run("delivery_delivered", given)
    return tx.rows("webhook_healthy", given)


def webhook_failed(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    given = {**params, "now_ms": tx.now_ms}
    tx.run("delivery_failed", given)
    return tx.rows("webhook_failing", given)
