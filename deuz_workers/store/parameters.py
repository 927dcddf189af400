"""Values of `core` and `ports` to the parameters that `dialect.py` lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal
from zlib import crc32

from deuz_workers.core.change import Change, Spawning
from deuz_workers.core.names import run_scope_key
from deuz_workers.errors import SwarmDefinitionError
from deuz_workers.ports.store import NewRun, NewSwarm, When
from deuz_workers.ports.whole_run import WholeRun
from deuz_workers.store.admission import NO_SLICES, reserve_parameters

SHARDS = 256
"""A run and its tree carry the shard of their scope for life, so that a later split of the database cuts no commit."""

NOTE_OF_A_CHILD = "null"
"""Body of a `child` note: that it is there says all."""

_NEVER = When()


def shard_of(scope: str) -> int:
    return crc32(scope.encode("utf-8", "surrogatepass")) % SHARDS


CommitOperation = Literal["commit_plain", "commit_settle", "commit_reserve", "commit"]


def commit_operation(change: Change) -> CommitOperation:
    """The smallest operation that holds the change."""
    if change.wakes or change.items or change.task is not None or change.status not in ("queued", "running"):
        return "commit"
    if change.reserve is not None:
        return "commit_reserve"
    return "commit_settle" if change.settle else "commit_plain"


def commit_parameters(
    change: Change, operation: CommitOperation, ttl_ms: int, slices: Mapping[str, int] = NO_SLICES
) -> dict[str, object]:
    params: dict[str, object] = {
        "rid": change.rid,
        "expected": change.expected,
        "commit_id": change.commit_id,
        "status": change.status,
        "phase": change.phase,
        "version": change.version,
        "epoch": change.epoch,
        "last_seq": change.last_seq,
        "seen_seq": change.seen_seq,
        "body": change.body,
        "due_in_ms": change.due_in_ms,
        "tokens": change.tokens,
        "cost_micros": change.cost_micros,
        "model_step": change.model_step,
        "compactions": change.compactions,
        "folded_from": change.folded_from,
        "folded_to": change.folded_to,
        "folded_step": change.folded_step,
        "mid_step": change.mid_step,
        "progress": change.progress,
        "yields": change.yields,
        "hears": change.hears,
        "ttl_ms": ttl_ms,
        "message_seq": [row.seq for row in change.messages],
        "message_body": [row.body for row in change.messages],
        "receipt_step": [row.step for row in change.receipts],
        "receipt_call": [row.call_id for row in change.receipts],
        "receipt_seq": [row.seq for row in change.receipts],
        "receipt_stage": [row.stage for row in change.receipts],
        "receipt_body": [row.body for row in change.receipts],
        "journal_seq": change.journal_seq,
        "journal_body": list(change.journal),
    }
    if operation != "commit_plain":
        params |= _ledger_parameters(change, slices)
    if operation == "commit":
        params |= _others_parameters(change)
    return params


def _ledger_parameters(change: Change, slices: Mapping[str, int]) -> dict[str, object]:
    return {
        **reserve_parameters(change.reserve, change.rid, slices),
        "settle_id": [settle.request_id for settle in change.settle],
        "settle_outcome": [settle.outcome for settle in change.settle],
        "settle_tokens": [settle.tokens for settle in change.settle],
        "settle_micros": [settle.cost_micros for settle in change.settle],
        "settle_input": [settle.usage.input_tokens for settle in change.settle],
        "settle_output": [settle.usage.output_tokens for settle in change.settle],
        "settle_cached": [settle.usage.cached_tokens for settle in change.settle],
        "settle_reasoning": [settle.usage.reasoning_tokens for settle in change.settle],
    }


def _others_parameters(change: Change) -> dict[str, object]:
    task = change.task
    wakes = set(change.wakes) - {change.rid}
    if task is not None and task.status in ("failed", "cancelled"):
        wakes.add(task.swarm_rid)  # its next step blocks what lies downstream
    if task is not None and change.spawning.tasks:
        wakes.add(task.swarm_rid)  # and what waits for a task that failed before, or comes into a swarm that is cancelled
    answer = change.answer
    runs = (*change.children, *change.spawning.tasks)
    return {
        "wakes": sorted(wakes),
        "note_body": NOTE_OF_A_CHILD,
        "item_id": [item.item_id for item in change.items],
        "item_kind": [item.kind for item in change.items],
        "item_body": [item.body for item in change.items],
        "item_digest": [item.digest for item in change.items],
        "item_expires_in_ms": [item.expires_in_ms for item in change.items],
        "item_remind_in_ms": [item.remind_in_ms for item in change.items],
        "item_escalate_in_ms": [item.escalate_in_ms for item in change.items],
        "swarm_rid": None if task is None else task.swarm_rid,
        "task_id": None if task is None else task.task_id,
        "task_status": None if task is None else task.status,
        "parent_rid": None if answer is None else answer.parent_rid,
        "parent_item": None if answer is None else answer.item_id,
        "parent_answer": None if answer is None else answer.answer,
        "child_rid": [child.rid for child in change.children],
        "child_run_id": [child.run_id for child in change.children],
        "child_agent": [child.agent for child in change.children],
        "child_body": [child.body for child in change.children],
        "child_version": [child.version for child in change.children],
        "child_last_seq": [max((row.seq for row in child.messages), default=-1) for child in change.children],
        "child_slot_key": [child.concurrency_key for child in change.children],
        "child_message_rid": [new.rid for new in runs for _ in new.messages],
        "child_message_seq": [row.seq for new in runs for row in new.messages],
        "child_message_body": [row.body for new in runs for row in new.messages],
        "child_budget_key": [run_scope_key(new.rid) for new in runs if new.budget is not None],
        "child_budget_tokens": [new.budget.tokens for new in runs if new.budget is not None],
        "child_budget_micros": [new.budget.usd_micros for new in runs if new.budget is not None],
        **_spawn_parameters(change.spawning),
    }


def _spawn_parameters(spawning: Spawning) -> dict[str, object]:
    tasks, waits = spawning.tasks, spawning.waits
    return {
        "spawn_rid": [task.rid for task in tasks],
        "spawn_run_id": [task.run_id for task in tasks],
        "spawn_task": [task.task_id for task in tasks],
        "spawn_kind": [task.kind for task in tasks],
        "spawn_agent": [task.agent for task in tasks],
        "spawn_body": [task.body for task in tasks],
        "spawn_last_seq": [max((row.seq for row in task.messages), default=-1) for task in tasks],
        "spawn_queue": [task.queue for task in tasks],
        "spawn_slot_key": [task.concurrency_key for task in tasks],
        "spawn_rank": [task.rank for task in tasks],
        "spawn_depth": [task.depth for task in tasks],
        "spawn_timeout_ms": [task.timeout_ms for task in tasks],
        "spawn_up": [wait.up for wait in waits],
        "spawn_down": [wait.down for wait in waits],
        "spawn_soft": [wait.soft for wait in waits],
    }


def create_parameters(run: NewRun, swarm: NewSwarm | None, ring_in_ms: int) -> dict[str, object]:
    """Raises `SwarmDefinitionError` for a repeated task id or a dependency that is no task."""
    tasks = () if swarm is None else swarm.tasks
    runs = (run, *(task.run for task in tasks))
    return {
        "run_rid": [new.rid for new in runs],
        "run_scope": [new.scope for new in runs],
        "run_id": [new.run_id for new in runs],
        "run_kind": [new.kind for new in runs],
        "run_agent": [new.agent for new in runs],
        "run_body": [new.body for new in runs],
        "run_version": [new.version for new in runs],
        "run_queue": [new.queue for new in runs],
        "run_priority": [new.priority for new in runs],
        "run_shard": [shard_of(run.scope)] * len(runs),
        "run_last_seq": [max((row.seq for row in new.messages), default=-1) for new in runs],
        "run_idem_key": [new.idempotency_key for new in runs],
        "run_digest": [new.input_digest for new in runs],
        "run_task_id": [None, *(task.task_id for task in tasks)],
        "run_slot_key": [new.concurrency_key for new in runs],
        **_moments("run_start", (new.start for new in runs)),
        **_moments("run_deadline", (new.deadline for new in runs)),
        **_moments("run_start_before", (new.start_before for new in runs)),
        "message_rid": [new.rid for new in runs for _ in new.messages],
        "message_seq": [row.seq for new in runs for row in new.messages],
        "message_body": [row.body for new in runs for row in new.messages],
        "tag_rid": [new.rid for new in runs for _ in new.tags],
        "tag_key": [key for new in runs for key in new.tags],
        "tag_value": [value for new in runs for value in new.tags.values()],
        "budget_key": [run_scope_key(new.rid) for new in runs if new.budget is not None],
        "budget_tokens": [new.budget.tokens for new in runs if new.budget is not None],
        "budget_micros": [new.budget.usd_micros for new in runs if new.budget is not None],
        **_graph(swarm),
        "ring_in_ms": ring_in_ms,
    }


def insert_parameters(run: WholeRun) -> dict[str, object]:
    budget = run.budget
    return {
        **{
            name: getattr(run, name)
            for name in ("rid", "scope", "run_id", "kind", "agent", "body", "status", "last_seq", "queue", "priority", "phase")
        },
        **{
            name: getattr(run, name)
            for name in ("version", "revision", "epoch", "mid_step", "tokens", "cost_micros", "model_step", "created_at_ms")
        },
        **{name: getattr(run, name) for name in ("compactions", "folded_from", "folded_to", "folded_step")},
        "parked": run.parked,
        "is_due": run.is_due,
        "slot_key": run.concurrency_key,
        "digest": run.input_digest,
        "shard": shard_of(run.scope),
        "message_seq": [row.seq for row in run.messages],
        "message_body": [row.body for row in run.messages],
        "receipt_step": [row.step for row in run.receipts],
        "receipt_call": [row.call_id for row in run.receipts],
        "receipt_seq": [row.seq for row in run.receipts],
        "receipt_stage": [row.stage for row in run.receipts],
        "receipt_body": [row.body for row in run.receipts],
        "journal_seq": [row.seq for row in run.journal],
        "journal_body": [row.body for row in run.journal],
        "journal_at_ms": [row.at_ms or None for row in run.journal],
        "item_id": [item.item_id for item in run.items],
        "item_kind": [item.kind for item in run.items],
        "item_body": [item.body for item in run.items],
        "item_digest": [item.digest for item in run.items],
        "item_answer": [item.answer for item in run.items],
        "item_votes": [item.votes for item in run.items],
        "item_expires_in_ms": [item.expires_in_ms for item in run.items],
        "item_remind_in_ms": [item.remind_in_ms for item in run.items],
        "item_escalate_in_ms": [item.escalate_in_ms for item in run.items],
        "tag_key": list(run.tags),
        "tag_value": list(run.tags.values()),
        "budget_key": None if budget is None else run_scope_key(run.rid),
        "budget_tokens": None if budget is None else budget.tokens,
        "budget_micros": None if budget is None else budget.usd_micros,
    }


def _moments(name: str, whens: Iterable[When | None]) -> Mapping[str, object]:
    given = [when or _NEVER for when in whens]
    return {f"{name}_in_ms": [when.in_ms for when in given], f"{name}_at_ms": [when.at_ms for when in given]}


def _graph(swarm: NewSwarm | None) -> Mapping[str, object]:
    tasks = () if swarm is None else swarm.tasks
    names = Counter(task.task_id for task in tasks)
    downstream: Counter[str] = Counter()
    edges: list[tuple[str, str, bool]] = []
    for task in tasks:
        if names[task.task_id] > 1:
            raise SwarmDefinitionError(f"task '{task.task_id}' is there twice; every task of a swarm has an id of its own")
        for up in task.upstream:
            if up not in names:
                raise SwarmDefinitionError(f"task '{task.task_id}' depends on '{up}', which is no task of the swarm")
            downstream[up] += 1
            edges.append((up, task.task_id, up not in task.depends_on))
    return {
        "swarm_slots": None if swarm is None else swarm.slots,
        "swarm_max_tasks": None if swarm is None or swarm.dynamic is None else swarm.dynamic.max_tasks,
        "swarm_max_depth": None if swarm is None or swarm.dynamic is None else swarm.dynamic.max_spawn_depth,
        "swarm_max_spawn": None if swarm is None or swarm.dynamic is None else swarm.dynamic.max_spawn_per_task,
        "task_rid": [task.run.rid for task in tasks],
        "task_id": [task.task_id for task in tasks],
        "task_waiting": [len(task.upstream) for task in tasks],
        "task_timeout_ms": [task.timeout_ms for task in tasks],
        "task_rank": [task.rank for task in tasks],
        "task_downstream": [downstream[task.task_id] for task in tasks],
        "edge_up": [up for up, _, _ in edges],
        "edge_down": [down for _, down, _ in edges],
        "edge_soft": [soft for _, _, soft in edges],
    }
