"""The store over SQL: parameters in, rows to values, and what to do when an answer gets lost. It knows no SQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast
from uuid import UUID, uuid4

from deuz_workers.core.change import Bell, Change, Head, ItemAnswer, ItemRow, NoteKind, Outcome, RunStatus
from deuz_workers.core.spawning import SpawnGround
from deuz_workers.core.unclean_ends import SUFFIX, SUSPICIOUS_ENDS
from deuz_workers.errors import RunExistsError, StoreContendedError, StoreError, StoreRefusedError, StoreUnavailableError
from deuz_workers.ports.store import (
    NOTHING_KNOWN,
    Answered,
    Cascade,
    Created,
    KeyCounters,
    Known,
    Loaded,
    NewRun,
    NewSwarm,
    Noted,
    RunPage,
    RunQuery,
    RunStore,
    TagCost,
    UncleanEnd,
)
from deuz_workers.ports.swarm_rows import SwarmCounters, SwarmEventRow, SwarmSnapshot, TaskResult
from deuz_workers.ports.tree import ChildRow, TreeRun
from deuz_workers.ports.whole_run import JournalRow, WholeRun
from deuz_workers.store.admission import Admission
from deuz_workers.store.cursor import read_cursor, write_cursor
from deuz_workers.store.dialect import AnswerLost, Clash, Contended, Dialect, Outrun, Row
from deuz_workers.store.migrations import check_version
from deuz_workers.store.parameters import (
    NOTE_OF_A_CHILD,
    commit_operation,
    commit_parameters,
    create_parameters,
    insert_parameters,
)
from deuz_workers.store.rows import (
    applied_of,
    bell_of,
    bells_of,
    counters_of,
    ground_of,
    head_of,
    item_of,
    loaded_of,
    refusal_of,
    snapshot_of,
    tree_of,
)
from deuz_workers.store.sql_budgets import SqlBudgets
from deuz_workers.store.sql_chats import READS as CHAT_READS
from deuz_workers.store.sql_chats import SqlChats
from deuz_workers.store.sql_controls import READS, SqlControls
from deuz_workers.store.sql_gateway import SqlGateway
from deuz_workers.store.sql_memory import SqlMemory
from deuz_workers.store.sql_webhooks import SqlWebhooks

PATIENCE_MS = 5_000
"""How long an operation is offered again while the database is away; a failover between two zones takes about as long."""

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 20, 500
_READS = READS | frozenset(
    (
        *CHAT_READS,
        "audit",
        "balance",
        "access_tokens",
        "bells",
        "children",
        "cost_by_tag",
        "count_memories",
        "find_access_token",
        "find_memories",
        "find_run",
        "head",
        "holds",
        "item_answer",
        "journal",
        "keys_needing_attention",
        "last_frame",
        "list_runs",
        "load",
        "now",
        "open_items",
        "read_frames",
        "slices_of",
        "slot_counters",
        "spawn_ground",
        "swarm_counters",
        "swarm_events",
        "swarm_snapshot",
        "swarms_needing_attention",
        "tags",
        "task_results",
        "tree",
        "unclean_ends",
        "usage",
        "webhooks",
    )
)


class SqlStore(SqlBudgets, SqlControls, SqlGateway, SqlWebhooks, SqlMemory, SqlChats, RunStore):
    """Runs and swarms in a SQL database."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        ttl_ms: int = 30_000,
        ring_ms: int | None = None,
        patience_ms: int = PATIENCE_MS,
        now_ms: int | None = None,
    ) -> None:
        """`ttl_ms`: TTL of leases; a run at work is swept so much after its last commit. `now_ms`: see :attr:`now`.

        `ring_ms`: what an input or a free slot made due is swept so much later, since somebody rings for it meanwhile; None is
        the TTL, 0 for applications without a broker, where nobody rings.
        """
        self.dialect = dialect
        self.ttl_ms = ttl_ms
        self.ring_ms = ttl_ms if ring_ms is None else ring_ms
        self.patience_ms = patience_ms
        self.now = now_ms
        """Unix milliseconds that stand for the database's clock, None outside tests."""
        self._slices: dict[str, int] = {}
        """Of budget scopes, as far as this process has met them."""

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def create(
        self, run: NewRun, swarm: NewSwarm | None = None, *, ring_in_ms: int = 0, connection: Any = None
    ) -> Created:
        params = create_parameters(run, swarm, ring_in_ms)
        sought = {"scope": run.scope, "run_id": run.run_id, "idem_key": run.idempotency_key}
        while True:
            try:
                [made] = await self._fetch("create", params, connection)
            except Clash as clash:
                raise RunExistsError(f"run '{run.run_id}' cannot be created: {clash}", run_id=run.run_id) from None
            if made["created"]:
                return Created(True, run.rid, run.scope, run.run_id, True, "queued")
            for found in await self._fetch("find_run", sought, connection):
                # Our own row: an earlier try was applied and its answer got lost.
                return Created(
                    created=found["rid"] == run.rid,
                    rid=found["rid"],
                    scope=found["scope"],
                    run_id=found["run_id"],
                    same_input=found["input_digest"] == run.input_digest,
                    status=found["status"],
                )
            # The row that was in the way is gone again.

    async def load(self, scope: str, run_id: str, known: Known | None = None) -> Loaded | None:
        whole, known = known is None, known or NOTHING_KNOWN
        rows = await self._fetch(
            "load",
            {
                "scope": scope,
                "run_id": run_id,
                "known_epoch": known.epoch,
                "known_seq": known.last_seq,
                "known_step": known.step,
                "known_compactions": known.compactions,
                "whole": whole,
            },
        )
        return loaded_of(rows[0]) if rows else None

    async def head(self, scope: str, run_id: str) -> Head | None:
        rows = await self._fetch("head", {"scope": scope, "run_id": run_id})
        return head_of(rows[0]) if rows else None

    async def commit(self, change: Change) -> Outcome:
        operation = commit_operation(change)
        params = commit_parameters(change, operation, self.ttl_ms, self._slices)
        admission = None if change.reserve is None else Admission(self._fetch, change.reserve, change.rid, params, self._slices)
        while True:
            try:
                [row] = await self._fetch(operation, params)
            except Clash as clash:
                raise StoreError(f"run {change.rid}: a row of this commit is there already ({clash})") from None
            match row["outcome"]:
                case "applied":
                    return applied_of(row)
                case "conflict" if row["stored_commit_id"] == change.commit_id:
                    return applied_of({**row, "woken": await self._bells_after(params)})
                case "again":
                    pass
                case "over_budget" if admission is not None and await admission.may_try_again(row):
                    pass
                case _:
                    return refusal_of(row)

    async def record_unclean_end(self, rid: UUID, expected: int, back_off_ms: int, evidence: str = "{}") -> int | None:
        end = {"rid": rid, "expected": expected, "back_off_ms": back_off_ms, "evidence": evidence}
        rows = await self._fetch("record_unclean_end", end)
        return rows[0]["attempts"] if rows else None

    async def tags(self, scope: str, run_id: str) -> Mapping[str, str]:
        rows = await self._fetch("tags", {"scope": scope, "run_id": run_id})
        return {str(row["key"]): str(row["value"]) for row in rows}

    async def unclean_ends(self, scope: str, run_id: str) -> tuple[UncleanEnd, ...]:
        rows = await self._fetch("unclean_ends", {"scope": scope, "run_id": run_id})
        return tuple(UncleanEnd(**row) for row in rows)

    async def park(
        self, rid: UUID, expected: int, reason: str, *, despite_notes: bool = False, as_revision: int | None = None
    ) -> bool:
        asked = {
            "rid": rid,
            "expected": expected,
            "reason": reason,
            "despite_notes": despite_notes,
            "as_revision": as_revision,
        }
        return bool(await self._fetch("park", asked))

    async def add_note(
        self, scope: str, run_id: str, kind: NoteKind, body: str, *, note_id: UUID | None = None
    ) -> Noted | None:
        once = note_id or uuid4()
        note = {"scope": scope, "run_id": run_id, "kind": kind, "body": body, "note_id": once, "ttl_ms": self.ring_ms}
        while True:
            try:
                rows = await self._fetch("add_note", note)
            except Clash:
                continue  # a try whose answer got lost was still under way; now it is there to be found
            return Noted(rows[0]["rid"], rows[0]["seq"], bell_of(rows[0])) if rows else None

    async def answer_item(self, scope: str, run_id: str, item_id: str, answer: str) -> Answered | None:
        return await self.answer_items(scope, run_id, [ItemAnswer(item_id, answer)])

    async def answer_items(self, scope: str, run_id: str, answers: Sequence[ItemAnswer]) -> Answered | None:
        given = {
            "scope": scope,
            "run_id": run_id,
            "item_id": [one.item_id for one in answers],
            "answer": [one.answer for one in answers],
            "votes": [one.votes for one in answers],
            "votes_before": [one.votes_before for one in answers],
            "required": [one.required for one in answers],
            "expired": [one.expired for one in answers],
            "answer_id": (answer_id := uuid4()),
            "ttl_ms": self.ring_ms,
        }
        rows = await self._fetch("answer_items", given)
        if not rows:
            return None
        [row] = rows
        if row["stored"]:
            return Answered(True, row["open_items"], None, bell_of(row) if row["due"] else None, row["swarm_rid"])
        refused = Answered(False, row["open_items"], None, None, None)
        for one in answers:
            for found in await self._fetch("item_answer", {"rid": row["rid"], "item_id": one.item_id}):
                if found["answer_id"] == answer_id:
                    return await self._answered_before(scope, run_id)
                if (
                    one.required
                    and refused.winner is None
                    and (found["answer"] is not None or found["votes"] != one.votes_before)
                ):
                    refused = replace(refused, winner=found["answer"], item_id=one.item_id, votes=found["votes"])
        return refused

    async def open_items(self, scope: str, run_id: str) -> tuple[ItemRow, ...]:
        return tuple(map(item_of, await self._fetch("open_items", {"scope": scope, "run_id": run_id})))

    async def sweep(
        self, *, limit: int, ttl_ms: int, queues: Sequence[str] | None = None, spare: int = 0, from_shard: int = 0
    ) -> tuple[Bell, ...]:
        params = {
            "limit": limit,
            "spare": spare,
            "ttl_ms": ttl_ms,
            "queues": None if queues is None else list(queues),
            "from_shard": from_shard,
            "suspicious": SUSPICIOUS_ENDS,
            "suffix": SUFFIX,
        }
        return tuple(map(bell_of, await self._fetch("sweep", params)))

    async def ripen(self, runs: Sequence[tuple[str, str]]) -> None:
        scopes, run_ids = [scope for scope, _ in runs], [run_id for _, run_id in runs]
        await self._fetch("ripen", {"scope": scopes, "run_id": run_ids, "suspicious": SUSPICIOUS_ENDS})

    async def postpone(self, scope: str, run_id: str, in_ms: int) -> None:
        await self._fetch("postpone", {"scope": scope, "run_id": run_id, "in_ms": in_ms})

    async def put_off(self, scope: str, run_id: str, least_ms: int, most_ms: int) -> None:
        await self._fetch("put_off", {"scope": scope, "run_id": run_id, "least_ms": least_ms, "most_ms": most_ms})

    async def hasten(self, queues: Sequence[str], agents: Sequence[str], limit: int) -> int:
        rows = await self._fetch("hasten", {"queues": list(queues), "agents": list(agents), "limit": limit})
        return rows[0]["count"]

    async def journal(self, scope: str, run_id: str, after: int, limit: int) -> tuple[JournalRow, ...]:
        rows = await self._fetch("journal", {"scope": scope, "run_id": run_id, "after": after, "limit": limit})
        return tuple(JournalRow(row["seq"], row["body"], row["at_ms"]) for row in rows)

    async def list_runs(self, query: RunQuery) -> RunPage:
        before_us, before_rid = read_cursor(query.cursor)
        rows = await self._fetch(
            "list_runs",
            {
                "scope": query.scope,
                "status": list(query.status),
                "kind": list(query.kind),
                "agent": query.agent,
                "queue": query.queue,
                "tag_key": list(query.tags),
                "tag_value": list(query.tags.values()),
                "parked": query.parked,
                "before_us": before_us,
                "before_rid": before_rid,
                "limit": query.limit + 1,
            },
        )
        page = rows[: query.limit]
        more = len(rows) > len(page) > 0
        return RunPage(tuple(map(head_of, page)), write_cursor(page[-1]["status_at_us"], page[-1]["rid"]) if more else None)

    async def insert_run(self, run: WholeRun) -> Created:
        params = insert_parameters(run)
        while True:
            [made] = await self._fetch("insert_run", params)
            if made["created"]:
                return Created(True, run.rid, run.scope, run.run_id, True, run.status)
            for found in await self._fetch("find_run", {"scope": run.scope, "run_id": run.run_id, "idem_key": None}):
                # Our own row: an earlier try was applied and its answer got lost.
                mine = found["rid"] == run.rid
                same = found["input_digest"] == run.input_digest
                return Created(mine, found["rid"], found["scope"], found["run_id"], same, found["status"])

    async def prune(self, *, older_ms: int, status: Sequence[RunStatus], scope: str | None, limit: int) -> int:
        asked = {"older_ms": older_ms, "status": list(status), "scope": scope, "limit": limit}
        return (await self._fetch("prune", asked))[0]["runs"]

    async def cost_by_tag(self, scope: str | None, key: str) -> tuple[TagCost, ...]:
        rows = await self._fetch("cost_by_tag", {"scope": scope, "tag_key": key})
        return tuple(TagCost(row["value"], row["runs"], row["tokens"], row["cost_micros"]) for row in rows)

    # -- concurrency keys ----------------------------------------------------------------------------------------------

    async def take_slot(self, rid: UUID, expected: int, slots: int) -> Literal["held", "waiting"] | None:
        while True:
            rows = await self._fetch("take_slot", {"rid": rid, "expected": expected, "slots": slots})
            if not rows or rows[0]["slot"] != "again":
                return rows[0]["slot"] if rows else None

    async def fill_key(self, scope: str, key: str) -> tuple[Bell, ...]:
        rows = await self._fetch("fill_key", {"scope": scope, "key": key, "ttl_ms": self.ring_ms})
        return tuple(map(bell_of, rows))

    async def set_slots(self, scope: str, key: str, slots: int) -> None:
        await self._fetch("set_slots", {"scope": scope, "key": key, "slots": slots})

    async def slot_counters(self, scope: str, key: str) -> KeyCounters | None:
        rows = await self._fetch("slot_counters", {"scope": scope, "key": key})
        return KeyCounters(**rows[0]) if rows else None

    async def keys_needing_attention(self, limit: int) -> tuple[tuple[str, str], ...]:
        return tuple((row["scope"], row["key"]) for row in await self._fetch("keys_needing_attention", {"limit": limit}))

    # -- swarms --------------------------------------------------------------------------------------------------------

    async def fill_slots(self, swarm_rid: UUID) -> tuple[Bell, ...]:
        return tuple(map(bell_of, await self._fetch("fill_slots", {"swarm_rid": swarm_rid, "ttl_ms": self.ring_ms})))

    async def settle_swarm(self, swarm_rid: UUID) -> Bell | None:
        params = {"swarm_rid": swarm_rid, "ttl_ms": self.ring_ms, "note_body": NOTE_OF_A_CHILD}
        rows = await self._fetch("settle_swarm", params)
        return bell_of(rows[0]) if rows else None

    async def swarms_needing_attention(self, limit: int) -> tuple[UUID, ...]:
        return tuple(row["rid"] for row in await self._fetch("swarms_needing_attention", {"limit": limit}))

    async def block_downstream(self, swarm_rid: UUID, limit: int) -> Cascade:
        [row] = await self._fetch("block_downstream", {"swarm_rid": swarm_rid, "limit": limit})
        return Cascade(row["changed"], (), row["more"])

    async def cancel_tasks(self, swarm_rid: UUID, limit: int) -> Cascade:
        params = {"swarm_rid": swarm_rid, "limit": limit, "ttl_ms": self.ring_ms, "note_body": NOTE_OF_A_CHILD}
        [row] = await self._fetch("cancel_tasks", params)
        return Cascade(row["changed"], bells_of(row["bells"]), row["more"])

    async def children(self, rid: UUID, limit: int) -> tuple[ChildRow, ...]:
        return tuple(ChildRow(**row) for row in await self._fetch("children", {"rid": rid, "limit": limit}))

    async def tree(self, scope: str, run_id: str) -> tuple[TreeRun, ...]:
        return tree_of(await self._fetch("tree", {"scope": scope, "run_id": run_id}))

    async def cancel_children(self, rid: UUID, limit: int) -> Cascade:
        params = {"rid": rid, "limit": limit, "ttl_ms": self.ring_ms, "note_body": NOTE_OF_A_CHILD}
        [row] = await self._fetch("cancel_children", params)
        return Cascade(row["changed"], bells_of(row["bells"]), row["more"])

    async def task_results(self, swarm_rid: UUID, task_id: str) -> tuple[TaskResult, ...]:
        rows = await self._fetch("task_results", {"swarm_rid": swarm_rid, "task_id": task_id})
        return tuple(TaskResult(row["task_id"], row["status"], row["body"], bool(row["soft"])) for row in rows)

    async def swarm_counters(self, swarm_rid: UUID) -> SwarmCounters | None:
        rows = await self._fetch("swarm_counters", {"swarm_rid": swarm_rid})
        return counters_of(rows[0]) if rows else None

    async def drain_swarm(self, scope: str, run_id: str) -> UUID | None:
        rows = await self._fetch("drain_swarm", {"scope": scope, "run_id": run_id})
        return rows[0]["rid"] if rows else None

    async def resume_swarm(self, scope: str, run_id: str, expected: int | None = None) -> UUID | None:
        rows = await self._fetch("resume_swarm", {"scope": scope, "run_id": run_id, "expected": expected})
        return rows[0]["rid"] if rows else None

    async def swarm_events(self, scope: str, run_id: str, after: int, limit: int) -> tuple[SwarmEventRow, ...]:
        rows = await self._fetch("swarm_events", {"scope": scope, "run_id": run_id, "after": after, "limit": limit})
        return tuple(SwarmEventRow(row["seq"], row["type"], row["task_id"], row["detail"], row["at_ms"]) for row in rows)

    async def spawn_ground(self, swarm_rid: UUID, task_id: str, named: Sequence[str]) -> SpawnGround | None:
        rows = await self._fetch("spawn_ground", {"swarm_rid": swarm_rid, "task_id": task_id, "task_ids": list(named)})
        return ground_of(rows[0]) if rows else None

    async def swarm_snapshot(self, swarm_rid: UUID) -> SwarmSnapshot | None:
        rows = await self._fetch("swarm_snapshot", {"swarm_rid": swarm_rid})
        return snapshot_of(swarm_rid, rows) if rows else None

    # -- the database --------------------------------------------------------------------------------------------------

    async def now_ms(self) -> int:
        return (await self._fetch("now", {}))[0]["now_ms"]

    async def check_schema(self) -> None:
        check_version(self.dialect.name, await self.dialect.schema_version())

    async def close(self) -> None:
        await self.dialect.close()

    async def _fetch(self, operation: str, params: Mapping[str, object], connection: Any = None) -> Sequence[Row]:
        """Run an operation, again and again while the database is away or gave up on it, up to `patience_ms`.

        Every operation may be repeated: those that would do something twice find their own id (a commit's, a note's, a
        run's), the others do the same once more. In a caller's transaction nothing is repeated.
        """
        params = {**params, "now_ms": self.now}
        if connection is not None:
            try:
                return await self.dialect.fetch(operation, params, connection=connection)
            except (AnswerLost, Contended) as error:
                raise StoreUnavailableError(f"the caller's transaction failed at '{operation}'; roll it back") from error
        pause_ms, give_up = _FIRST_PAUSE_MS, time.monotonic() + self.patience_ms / 1_000
        is_outrun = True
        while True:
            try:
                return await self.dialect.fetch(operation, params)
            except StoreRefusedError:
                raise
            except (AnswerLost, Contended, StoreUnavailableError) as error:
                is_outrun = is_outrun and isinstance(error, Outrun)
                if time.monotonic() >= give_up:
                    if is_outrun:
                        text = f"others had the rows of '{operation}' for {self.patience_ms} ms ({error}); nothing was written"
                        raise StoreContendedError(text, operation=operation) from error
                    reason = f" ({error})" if isinstance(error, StoreUnavailableError) else ""
                    raise StoreUnavailableError(
                        f"the database did not answer '{operation}' within {self.patience_ms} ms{reason}"
                        + ("" if operation in _READS else "; it may be offered again"),
                        operation=operation,
                    ) from error
            await asyncio.sleep(pause_ms / 1_000)
            pause_ms = min(pause_ms * 2, _LONGEST_PAUSE_MS)

    async def _answered_before(self, scope: str, run_id: str) -> Answered:
        """What an answer did that was stored although its own answer got lost. A bell too many costs a look."""
        head = await self.head(scope, run_id)
        assert head is not None
        bell = Bell(head.scope, head.run_id, head.queue, head.revision, head.priority, head.agent)
        return Answered(True, head.open_items, None, bell if head.open_items == 0 else None, head.swarm_rid)

    async def _bells_after(self, params: Mapping[str, object]) -> list[list[object]]:
        """Bells of the runs that a commit woke or created whose answer got lost; one too many costs a look."""
        named = [params.get(name) for name in ("wakes", "child_rid")]
        rids = [rid for listed in named for rid in cast("list[UUID]", listed or [])]
        if params.get("parent_rid") is not None:
            rids.append(cast(UUID, params["parent_rid"]))
        if not rids:
            return []
        rows = await self._fetch("bells", {"rids": rids})
        return [[row[name] for name in ("scope", "run_id", "queue", "revision", "priority", "agent")] for row in rows]
