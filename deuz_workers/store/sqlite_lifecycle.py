"""Pruning runs, compacting their ledger, inserting whole ones, on SQLite; `sql/sqlite/lifecycle.sql` has the statements."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from uuid import UUID

from deuz_workers.core.names import run_scope_key
from deuz_workers.store.sqlite_transaction import Transaction, Values

_OF_A_RUN = ("message", "receipt", "journal", "inbox", "item", "unclean_end", "tag", "refusal", "run_chat")


def prune(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """Ended runs, each with all its rows; a swarm with its tasks, everyone with what was delegated below."""
    asked = {**params, "status": json.dumps(params["status"]), "now_ms": tx.now_ms}
    chosen = tx.rows("prune_chosen", asked)
    for root in chosen:
        doomed = [root, *tx.rows("prune_below", root)]
        scope_keys = [run_scope_key(UUID(bytes=run["rid"])) for run in doomed]
        for run, scope_key in zip(doomed, scope_keys, strict=True):
            for table in _OF_A_RUN:
                tx.run(f"prune_{table}", run)
            own = {**run, "scope_keys": json.dumps(scope_keys)}
            tx.run("prune_history", own)
            tx.run("prune_reservation", own)
            tx.run("prune_budget", {"scope_key": scope_key})
            tx.run("prune_own_history", {"scope_key": scope_key})
            tx.run("prune_ui_frame", {**run, "stream_id": str(UUID(bytes=run["rid"]))})
        for table in ("swarm_edge", "swarm_event", "swarm_task", "swarm"):
            tx.run(f"prune_{table}", root)
        tx.run_each("prune_head", doomed)
    return [{"runs": len(chosen)}]


def compact_ledger(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """What is settled of a run and of all below it becomes sums, if all have ended; no row where there is no such run."""
    root = tx.first("head", {**params, "now_ms": tx.now_ms})
    if root is None:
        return []
    runs = [{"rid": root["rid"]}, *tx.rows("prune_below", {"rid": root["rid"]})]
    counts: dict[str, int] = dict.fromkeys(("settled", "released", "unknown"), 0)
    still_open = next((found for run in runs if (found := tx.first("compact_open", run)) is not None), None)
    if still_open is not None:
        about = {f"open_{name}": value for name, value in still_open.items()}
        return [{"runs": 0, **counts, "waiting": 0, "again": False, **about}]
    replaced: Counter[tuple[str, str]] = Counter()
    for run in runs:
        for name, value in (tx.first("compact_requests", run) or {}).items():
            counts[name] += value
        for scope in tx.rows("compact_scopes", run):
            for name in ("tokens", "micros"):
                replaced[scope["scope_key"], name] += scope[name]
        tx.run("prune_history", {**run, "scope_keys": "[]"})
        tx.run("prune_reservation", {**run, "scope_keys": "[]"})
    audit = {
        "actor": params["actor"],
        "action": "compacted",
        "reason": params["reason"],
        "rid": root["rid"],
        "request_id": None,
    }
    keys = sorted({key for key, _ in replaced})
    tx.run_each(
        "write_audit",
        (
            {
                **audit,
                "now_ms": tx.now_ms,
                "scope_key": key,
                "tokens": replaced[key, "tokens"],
                "micros": replaced[key, "micros"],
            }
            for key in keys
        ),
    )
    nobody = {"open_run_id": None, "open_status": None, "open_parked": None}
    return [{"runs": len(runs), **counts, "waiting": 0, "again": False, **nobody}]


def insert_run(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """The run with all its rows; nothing where its name is taken."""
    if tx.first("find_run", {"scope": params["scope"], "run_id": params["run_id"], "idem_key": None}) is not None:
        return [{"created": False}]
    rid, now_ms = params["rid"], tx.now_ms
    has_items = bool(params["item_id"])
    tx.run(
        "insert_head",
        {
            **params,
            "now_ms": now_ms,
            "newest_journal_seq": max(params["journal_seq"], default=0),
            "suspension": params["revision"] if has_items else None,
            "open_items": sum(answer is None for answer in params["item_answer"]),
        },
    )
    tx.run_each(
        "commit_message",
        (
            {"rid": rid, "epoch": params["epoch"], "seq": seq, "body": body}
            for seq, body in _together(params, "message_seq", "message_body")
        ),
    )
    receipt = ("receipt_step", "receipt_call", "receipt_seq", "receipt_stage", "receipt_body")
    tx.run_each(
        "commit_receipt",
        (
            {"rid": rid, "step": step, "call_id": call_id, "seq": seq, "stage": stage, "body": body}
            for step, call_id, seq, stage, body in _together(params, *receipt)
        ),
    )
    tx.run_each(
        "insert_journal",
        (
            {"rid": rid, "seq": seq, "body": body, "at_ms": at_ms, "now_ms": now_ms}
            for seq, body, at_ms in _together(params, "journal_seq", "journal_body", "journal_at_ms")
        ),
    )
    _insert_items(tx, params)
    tx.run_each(
        "create_tag", ({"rid": rid, "key": key, "value": value} for key, value in _together(params, "tag_key", "tag_value"))
    )
    if params["budget_key"] is not None:
        budget = {"key": params["budget_key"], "tokens": params["budget_tokens"], "micros": params["budget_micros"]}
        tx.run("create_budget", budget)
    return [{"created": True}]


def _insert_items(tx: Transaction, params: Values) -> None:
    names = ("item_id", "item_kind", "item_body", "item_digest", "item_answer", "item_votes")
    moments = ("item_expires_in_ms", "item_remind_in_ms", "item_escalate_in_ms")
    tx.run_each(
        "commit_item",
        (
            {
                "rid": params["rid"],
                "suspension": params["revision"],
                "item_id": item_id,
                "kind": kind,
                "body": body,
                "digest": digest,
                "answer": answer,
                "answer_id": None,
                "answered_at_ms": None if answer is None else tx.now_ms,
                "votes": votes,
                "expires_in_ms": expires_in_ms,
                "remind_in_ms": remind_in_ms,
                "escalate_in_ms": escalate_in_ms,
                "now_ms": tx.now_ms,
            }
            for item_id, kind, body, digest, answer, votes, expires_in_ms, remind_in_ms, escalate_in_ms in _together(
                params, *names, *moments
            )
        ),
    )


def _together(params: Values, *names: str) -> Any:
    return zip(*(params[name] for name in names), strict=True)
