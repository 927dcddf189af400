"""The commit on SQLite; `sql/sqlite/commit.sql` says what each statement decides."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from deuz_workers.core.change import FINAL
from deuz_workers.store.sqlite_children import answer_parent, create_children
from deuz_workers.store.sqlite_ledger import remember, reserve, settle
from deuz_workers.store.sqlite_notes import leave_note
from deuz_workers.store.sqlite_slots import return_slot
from deuz_workers.store.sqlite_spawning import is_crowded, spawn_tasks
from deuz_workers.store.sqlite_tasks import move_task, tell
from deuz_workers.store.sqlite_transaction import Refused, Transaction, Values


def commit(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    """`commit`, `commit_reserve`, `commit_settle` and `commit_plain`: parts that a smaller one does not carry are empty."""
    rid = params["rid"]
    before = tx.first("commit_gate", {"rid": rid, "now_ms": tx.now_ms})
    if before is None:
        return [{"outcome": "missing", "revision": None, "stored_commit_id": None}]
    refusal = _refusal(before, params)
    answer = {
        "revision": before["revision"],
        "stored_commit_id": before["commit_id"],
        "wake_seq": before["wake_seq"],
        "cancel_seq": before["cancel_seq"],
        "due": bool(before["due"]),
    }
    if refusal is not None:
        return [{**answer, "outcome": refusal, **_open_tasks(tx, params)}]
    if is_crowded(tx, params):
        return [{**answer, "outcome": "too_many"}]
    refused, charged = _write_ledger(tx, params, answer)
    if refused is not None:
        return [{**refused}]
    suspension, open_items, items = _items(tx, params, before)
    after = _write_head(tx, params, suspension, open_items)
    times = {"rid": rid, "now_ms": tx.now_ms, "ttl_ms": params["ttl_ms"]}
    if before["status"] != params["status"]:
        tx.run("commit_status_at", times)
    tx.run("commit_sweep_at", times)
    _append(tx, params)
    tx.run_each("commit_item", items)
    if before["kind"] == "swarm" and params["status"] in FINAL:
        _settle_own_swarm(tx, params)
    woken: list[list[Any]] = []
    for other in params.get("wakes", ()):
        if tx.first("wake_target", {"rid": other}) is not None:
            note = leave_note(tx, other, "child", params["note_body"], params["ttl_ms"])
            woken.append([note[name] for name in ("scope", "run_id", "queue", "revision", "priority", "agent")])
    swarm_rid = params.get("swarm_rid")
    if swarm_rid is not None and move_task(tx, swarm_rid, params["task_id"], params["task_status"]):
        spawn_tasks(tx, params)
    bells, readied_swarm = answer_parent(tx, params)
    woken += bells + create_children(tx, params)
    if params["status"] not in ("queued", "running"):
        return_slot(tx, rid)
    told = {"outcome": "applied", "due": bool(after["due"]), "woken": woken, **_open_tasks(tx, params)}
    return [{**answer, **after, **told, "charged": charged, "readied_swarm": readied_swarm}]


def _refusal(before: Values, params: Values) -> str | None:
    if before["revision"] != params["expected"] or before["parked"] is not None:
        return "conflict"
    if params["yields"] and before["cancel_seq"] > params["seen_seq"]:
        return "cancel_pending"
    if params["hears"] and before["wake_seq"] > params["seen_seq"]:
        return "cancel_pending"
    return None


def _open_tasks(tx: Transaction, params: Values) -> dict[str, Any]:
    """Of the swarm of the task that the commit is about; whoever lost an answer needs it too."""
    swarm = tx.first("open_tasks", params) if params.get("swarm_rid") is not None else None
    if swarm is None:
        return {"swarm_open": None, "swarm_still": False}
    return {"swarm_open": swarm["open"], "swarm_still": bool(swarm["still"])}


def _settle_own_swarm(tx: Transaction, params: Values) -> None:
    """The head of a swarm became final; the journal of the swarm says how it ended."""
    rid = params["rid"]
    if tx.first("settle_own_swarm", {"rid": rid}) is None:
        return
    partial = tx.first("is_partial", {"rid": rid}) is not None
    ended = "cancelled" if params["status"] != "completed" else "partial" if partial else "completed"
    tell(tx, rid, "run.settled", None, json.dumps({"status": ended}))


def _write_ledger(tx: Transaction, params: Values, answer: Values) -> tuple[Values | None, list[list[Any]] | None]:
    """Settle, then reserve: the answer where a scope refuses, and what counts in scopes that somebody is to be warned of.

    Raises `Refused` with everything undone for a refusal that need not be remembered.
    """
    remembers = bool(params.get("reserve_remember"))
    if remembers:
        tx.execute("savepoint ledger")
    columns = ("id", "outcome", "tokens", "micros", "input", "output", "cached", "reasoning")
    for row in _together(params, *(f"settle_{name}" for name in columns)):
        settle(tx, {"rid": params["rid"], **dict(zip(("request_id", *columns[1:]), row, strict=True))})
    refused, charged = reserve(tx, params) if params.get("request_id") is not None else (None, None)
    if refused is None:
        return None, charged
    scope, reason, is_new = refused
    told = {**answer, "outcome": "over_budget", "refused_scope": scope, "refused_reason": reason}
    if not remembers:
        raise Refused([told])
    tx.execute("rollback to ledger")
    if is_new and reason in ("budget_exceeded", "missing_reservation"):
        remember(tx, params, scope, reason)
    return told, None


def _items(tx: Transaction, params: Values, before: Values) -> tuple[int | None, int, list[dict[str, Any]]]:
    """The suspension after the commit, its open items, and the rows to be written.

    A run that stays suspended keeps suspension and items if it brings none; if it does, answers given meanwhile to items of
    the same name are taken over, since their givers were told that they are stored.
    """
    stays = before["status"] == params["status"] == "suspended"
    if not params.get("item_id"):
        return (before["suspension"], before["open_items"], []) if stays else (None, 0, [])
    suspension = before["revision"] + 1
    answers: dict[str, dict[str, Any]] = {}
    if stays:
        current = {"rid": params["rid"], "suspension": before["suspension"]}
        answers = {answer["item_id"]: answer for answer in tx.rows("answered_items", current)}
    columns = ("item_id", "item_kind", "item_body", "item_digest")
    moments = ("item_expires_in_ms", "item_remind_in_ms", "item_escalate_in_ms")
    items = [
        {
            **dict.fromkeys(("answered_at_ms", "answer_id", "answer", "votes")),
            **answers.get(item_id, {}),
            "rid": params["rid"],
            "suspension": suspension,
            "item_id": item_id,
            "kind": kind,
            "body": body,
            "digest": digest,
            "expires_in_ms": expires_in_ms,
            "remind_in_ms": remind_in_ms,
            "escalate_in_ms": escalate_in_ms,
            "now_ms": tx.now_ms,
        }
        for item_id, kind, body, digest, expires_in_ms, remind_in_ms, escalate_in_ms in _together(params, *columns, *moments)
    ]
    return suspension, sum(item["answer"] is None for item in items), items


def _write_head(tx: Transaction, params: Values, suspension: int | None, open_items: int) -> dict[str, Any]:
    after = tx.first(
        "commit_head",
        {
            **params,
            "now_ms": tx.now_ms,
            "is_final": params["status"] in FINAL,
            "new_journal_seq": params["journal_seq"] + len(params["journal_body"]),
            "suspension": suspension,
            "open_items": open_items,
        },
    )
    assert after is not None
    return after


def _append(tx: Transaction, params: Values) -> None:
    """The rows that the commit adds to the run; a place that is taken undoes the commit."""
    rid = params["rid"]
    if params["message_seq"]:
        epoch = params["epoch"]
        tx.run_each(
            "commit_message",
            (
                {"rid": rid, "epoch": epoch, "seq": seq, "body": body}
                for seq, body in _together(params, "message_seq", "message_body")
            ),
        )
    if params["receipt_step"]:
        tx.run_each(
            "commit_receipt",
            (
                {"rid": rid, "step": step, "call_id": call_id, "seq": seq, "stage": stage, "body": body}
                for step, call_id, seq, stage, body in _together(
                    params, "receipt_step", "receipt_call", "receipt_seq", "receipt_stage", "receipt_body"
                )
            ),
        )
    if params["journal_body"]:
        tx.run_each(
            "commit_journal",
            (
                {"rid": rid, "seq": seq, "body": body, "now_ms": tx.now_ms}
                for seq, body in enumerate(params["journal_body"], params["journal_seq"] + 1)
            ),
        )


def _together(params: Values, *names: str) -> Iterable[tuple[Any, ...]]:
    """Parallel lists as rows; none if the operation does not carry them."""
    return zip(*(params.get(name, ()) for name in names), strict=True)
