"""Rows of a dialect to the values of `core` and `ports`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import itemgetter
from typing import Any
from uuid import UUID

from deuz_workers.core.change import (
    Applied,
    Bell,
    BudgetExceeded,
    CancelPending,
    Head,
    ItemRow,
    MessageRow,
    NoteRow,
    Outcome,
    ReceiptRow,
    RevisionConflict,
    ScopeUse,
    TooManyTasks,
)
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.core.shared_budget import Window
from deuz_workers.core.spawning import SpawnGround
from deuz_workers.core.usage import Budget, Usage
from deuz_workers.ports.budgets import ModelUse, ScopeBalance, UnknownHold
from deuz_workers.ports.store import Loaded
from deuz_workers.ports.swarm_rows import SwarmCounters, SwarmSnapshot, TaskRow
from deuz_workers.ports.tree import TreeRun
from deuz_workers.store.admission import whole_key
from deuz_workers.store.dialect import Row

_HEAD = tuple(field.name for field in fields(Head))
_head_values = itemgetter(*_HEAD)


def head_of(row: Row) -> Head:
    return Head(*_head_values(row))


def bell_of(row: Row) -> Bell:
    return Bell(row["scope"], row["run_id"], row["queue"], row["revision"], row["priority"], row["agent"])


def bells_of(listed: Sequence[Sequence[object]] | None) -> tuple[Bell, ...]:
    """Bells that stand in one column."""
    return tuple(Bell(*bell) for bell in listed or ())  # type: ignore[arg-type]


def loaded_of(row: Row) -> Loaded:
    return Loaded(
        head_of(row),
        tuple(map(MessageRow, row["message_seq"], row["message_body"])),
        tuple(
            map(
                ReceiptRow,
                row["receipt_step"],
                row["receipt_call"],
                row["receipt_seq"],
                row["receipt_stage"],
                row["receipt_body"],
            )
        ),
        tuple(map(NoteRow, row["note_seq"], row["note_kind"], row["note_body"])),
        tuple(
            map(
                ItemRow,
                row["item_id"],
                row["item_kind"],
                row["item_body"],
                row["item_digest"],
                row["item_expires_in_ms"],
                row["item_answer"],
                row["item_votes"],
                row["item_remind_in_ms"],
                row["item_escalate_in_ms"],
            )
        ),
    )


def item_of(row: Row) -> ItemRow:
    return ItemRow(
        row["item_id"],
        row["item_kind"],
        row["item_body"],
        row["item_digest"],
        row["item_expires_in_ms"],
        row["item_answer"],
        row["item_votes"],
        row["item_remind_in_ms"],
        row["item_escalate_in_ms"],
    )


def tree_of(rows: Sequence[Row]) -> tuple[TreeRun, ...]:
    """One row for each item, or one without for a run that has none; rows of a run follow each other."""
    found: dict[UUID, TreeRun] = {}
    for row in rows:
        known = found.get(row["rid"])
        if known is None:
            names = ("rid", "parent_rid", "run_id", "agent", "status", "parked", "goes_on")
            known = TreeRun(*(row[name] for name in names))
        items = () if row["item_id"] is None else (item_of(row),)
        found[row["rid"]] = replace(known, items=(*known.items, *items))
    return tuple(found.values())


def applied_of(row: Row) -> Applied:
    return Applied(
        revision=row["revision"],
        wake_seq=row["wake_seq"],
        cancel_seq=row["cancel_seq"],
        due=row["due"],
        woken=bells_of(row.get("woken")),
        readied_swarm=row.get("readied_swarm"),
        swarm_open=row.get("swarm_open"),
        swarm_still=bool(row.get("swarm_still")),
        charged=tuple(map(_scope_use, row.get("charged") or ())),
    )


def _scope_use(row: Sequence[Any]) -> ScopeUse:
    key, used_tokens, used_micros, limit_tokens, limit_micros, warn_percent = row
    return ScopeUse(whole_key(key), Budget(used_tokens, used_micros), Budget(limit_tokens, limit_micros), warn_percent)


def refusal_of(row: Row) -> Outcome:
    """The outcome of a commit that was not applied."""
    match row["outcome"]:
        case "cancel_pending":
            return CancelPending(row["cancel_seq"])
        case "over_budget":
            return BudgetExceeded(whole_key(row["refused_scope"]), row["refused_reason"])
        case "too_many":
            return TooManyTasks()
        case _:
            return RevisionConflict(row["revision"])


def balance_of(key: str, row: Row) -> ScopeBalance:
    return ScopeBalance(
        key,
        limit=Budget(row["limit_tokens"], row["limit_micros"]),
        spent=Budget(row["spent_tokens"], row["spent_micros"]),
        held=Budget(row["held_tokens"], row["held_micros"]),
        unknown=Budget(row["unknown_tokens"], row["unknown_micros"]),
        window=None if row["window_ms"] is None else Window(row["window_ms"], row["buckets"]),
        in_window=None if row["window_ms"] is None else Budget(row["window_tokens"], row["window_micros"]),
        warn_at_percent=row["warn_percent"],
        slices=row["slices"],
    )


def model_use_of(row: Row) -> ModelUse:
    return ModelUse(
        row["model"],
        row["calls"],
        spent=Budget(row["spent_tokens"], row["spent_micros"]),
        held=Budget(row["held_tokens"], row["held_micros"]),
        unknown=Budget(row["unknown_tokens"], row["unknown_micros"]),
        usage=Usage(
            row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["reasoning_tokens"], row["spent_micros"]
        ),
    )


def hold_of(row: Row) -> UnknownHold:
    return UnknownHold(
        row["rid"],
        row["request_id"],
        row["tokens"],
        row["micros"],
        tuple(sorted({whole_key(key) for key in row["scope_keys"]})),
        row["at_ms"],
        row["age_ms"],
        row["model"],
        row["scope"],
        row["run_id"],
    )


def counters_of(row: Row) -> SwarmCounters:
    flags = {f"is_{name}": bool(row[name]) for name in ("cancelling", "draining", "still")}
    return SwarmCounters(row["slots"], row["open"], row["ready"], row["running"], row["total"], row["journal_seq"], **flags)


def ground_of(row: Row) -> SpawnGround:
    limits = None
    if row["max_tasks"] is not None:
        limits = DynamicLimits(row["max_tasks"], row["max_depth"], row["max_spawn"])
    return SpawnGround(row["total"], row["depth"], limits, row["body"], row["queue"], frozenset(row["existing"]))


def snapshot_of(swarm_rid: UUID, rows: Sequence[Row]) -> SwarmSnapshot:
    first = rows[0]
    return SwarmSnapshot(
        swarm_rid,
        first["slots"],
        first["open"],
        first["ready"],
        first["running"],
        tasks=tuple(
            TaskRow(
                row["task_id"],
                row["run_id"],
                row["kind"],
                row["agent"],
                row["status"],
                row["waiting"],
                row["tokens"],
                row["cost_micros"],
                row["model_step"],
                row["started_at_ms"],
                row["ended_at_ms"],
                tuple(row["depends_on"]),
                tuple(row["after"]),
                row["timeout_ms"],
                row["depth"],
            )
            for row in rows
            if row["task_id"] is not None
        ),
        total=first["total"],
        is_cancelling=bool(first["cancelling"]),
        is_draining=bool(first["draining"]),
        is_still=bool(first["still"]),
        journal_seq=first["journal_seq"],
    )
