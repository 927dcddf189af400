"""Every operation of `dialect.py` as a function of one SQLite transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from deuz_workers.store import (
    sqlite_chats,
    sqlite_children,
    sqlite_controls,
    sqlite_gateway,
    sqlite_ledger,
    sqlite_lifecycle,
    sqlite_memory,
    sqlite_notes,
    sqlite_runs,
    sqlite_slots,
    sqlite_swarms,
    sqlite_sweep,
    sqlite_webhooks,
)
from deuz_workers.store.sqlite_commit import commit
from deuz_workers.store.sqlite_connection import Begin, Body
from deuz_workers.store.sqlite_transaction import Transaction, Values

_MANY_RUNS = 20
"""Runs in one create, at some 0.05 ms each."""


@dataclass(frozen=True, slots=True)
class Operation:
    body: Body
    begin: Begin
    touches_many: bool = False

    def is_long(self, params: Values) -> bool:
        """Takes so many rows in hand that it is kept off the event loop."""
        return self.touches_many or len(params.get("run_rid", ())) > _MANY_RUNS


def _statement(name: str) -> Body:
    """An operation that is one statement."""

    def body(tx: Transaction, params: Values) -> list[dict[str, Any]]:
        return tx.rows(name, params)

    return body


def _now(tx: Transaction, params: Values) -> list[dict[str, Any]]:
    return [{"now_ms": tx.now_ms}]


def _reads(*bodies: Body | str, touches_many: bool = False) -> dict[str, Operation]:
    return _operations("begin", bodies, touches_many)


def _writes(*bodies: Body | str, touches_many: bool = False) -> dict[str, Operation]:
    return _operations("begin immediate", bodies, touches_many)


def _operations(begin: Begin, bodies: tuple[Body | str, ...], touches_many: bool) -> dict[str, Operation]:
    """Functions under their own names, statements under theirs."""
    return {
        body if isinstance(body, str) else _own_name(body): Operation(
            _statement(body) if isinstance(body, str) else body, begin, touches_many
        )
        for body in bodies
    }


def _own_name(body: Callable[..., object]) -> str:
    return body.__name__.lstrip("_")


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        **_reads(sqlite_runs.head, sqlite_runs.load, sqlite_runs.bells, _now),
        **_reads(
            "find_run",
            "item_answer",
            "open_items",
            "journal",
            "swarms_needing_attention",
            "task_results",
            "swarm_counters",
            "swarm_events",
            "tags",
            "unclean_ends",
            "slot_counters",
            "keys_needing_attention",
            "brake_acts",
            "children",
            "list_rates",
            "list_keys",
            "read_frames",
            "last_frame",
            "access_tokens",
            "webhooks",
            "load_chat",
            "chat_state",
            sqlite_gateway.find_access_token,
        ),
        **_reads(sqlite_controls.controls, sqlite_swarms.spawn_ground),
        **_writes(sqlite_controls.set_brake, sqlite_controls.lift_brake, sqlite_controls.set_rate),
        **_writes(sqlite_controls.take_rate, sqlite_controls.give_rate, sqlite_controls.shut_rate),
        **_writes(sqlite_controls.loosen, touches_many=True),
        **_reads(sqlite_runs.list_runs, "cost_by_tag", sqlite_swarms.swarm_snapshot, sqlite_children.tree, touches_many=True),
        **_reads("all_messages", touches_many=True),
        **_reads("balance", "slices_of"),
        **_reads(sqlite_ledger.holds, "usage", "audit", touches_many=True),
        **_writes(commit, sqlite_notes.add_note, sqlite_notes.answer_items),
        **_writes(sqlite_ledger.set_budget, sqlite_ledger.release_hold, "open_scope"),
        **_writes(sqlite_ledger.grow_slice, sqlite_ledger.reclaim_slices),
        **_writes(sqlite_sweep.sweep, sqlite_sweep.ripen, "postpone", "put_off"),
        **_writes(sqlite_runs.hasten, sqlite_runs.park, sqlite_runs.record_unclean_end),
        **_writes(sqlite_swarms.fill_slots, sqlite_swarms.settle_swarm, "drain_swarm", sqlite_swarms.resume_swarm),
        **_writes(sqlite_slots.take_slot, sqlite_slots.fill_key, sqlite_slots.set_slots),
        **_writes(sqlite_runs.create),
        **_writes(sqlite_chats.write_chat, sqlite_chats.save_chat, sqlite_chats.delete_chat, sqlite_chats.keep_chat_state),
        **_writes(sqlite_gateway.append_frames, "delete_frames"),
        **_reads(sqlite_memory.find_memories, "count_memories"),
        **_writes(sqlite_memory.write_memories, sqlite_memory.delete_memories, sqlite_memory.delete_expired_memories),
        **_writes(sqlite_gateway.add_access_token, sqlite_gateway.revoke_access_token),
        **_writes(sqlite_webhooks.add_webhook, sqlite_webhooks.remove_webhook, sqlite_webhooks.enable_webhook),
        **_writes(sqlite_webhooks.webhook_delivered, sqlite_webhooks.webhook_failed, "remove_webhook_deliveries"),
        **_writes(
            sqlite_webhooks.collect_webhook_events,
            sqlite_webhooks.take_webhook_deliveries,
            sqlite_webhooks.replay_webhook,
            touches_many=True,
        ),
        **_writes(sqlite_lifecycle.prune, sqlite_lifecycle.compact_ledger, sqlite_lifecycle.insert_run, touches_many=True),
        **_writes(
            sqlite_swarms.block_downstream, sqlite_swarms.cancel_tasks, sqlite_children.cancel_children, touches_many=True
        ),
        "commit_plain": Operation(commit, "begin immediate"),
        "commit_settle": Operation(commit, "begin immediate"),
        "commit_reserve": Operation(commit, "begin immediate"),
    }
)
