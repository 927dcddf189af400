"""The store of runs and swarms: what a backend has to do, and what each operation makes atomic.

The store decides nothing about a run. Every time that is compared is the database's own; every operation is atomic as a
whole; none needs two statements on one connection. A server that cannot be reached raises `StoreUnavailableError`, a missing
migration `MigrationMissingError`, a newer schema `SchemaTooNewError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol
from uuid import UUID

from deuz_workers.core.change import (
    Bell,
    Change,
    Head,
    ItemAnswer,
    ItemRow,
    MessageRow,
    NoteKind,
    NoteRow,
    Outcome,
    ReceiptRow,
    RunKind,
    RunStatus,
)
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.core.spawning import SpawnGround
from deuz_workers.core.usage import Budget
from deuz_workers.ports.budgets import BudgetStore
from deuz_workers.ports.chat import ChatRows
from deuz_workers.ports.controls import ControlStore
from deuz_workers.ports.run_query import RunPage, RunQuery
from deuz_workers.ports.swarm_rows import SwarmCounters, SwarmEventRow, SwarmSnapshot, TaskResult
from deuz_workers.ports.tree import ChildRow, TreeRun
from deuz_workers.ports.whole_run import JournalRow, WholeRun

NO_TAGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class When:
    """A moment judged by the store's clock: `in_ms` from its now, or `at_ms` as Unix time in milliseconds."""

    in_ms: int | None = None
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run as enqueued: one head row, its first messages, its tags, its budget row."""

    rid: UUID
    scope: str
    run_id: str
    kind: RunKind
    agent: str
    body: str
    """First envelope body, written by the codec."""
    messages: tuple[MessageRow, ...] = ()
    version: int = 1
    queue: str = "default"
    priority: int = 0
    """Higher first, -100 to 100."""
    start: When | None = None
    """Not before; None: at once."""
    deadline: When | None = None
    start_before: When | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: NO_TAGS)
    concurrency_key: str | None = None
    """It runs only with a slot of this key of its scope (`RunStore.take_slot`)."""
    idempotency_key: str | None = None
    """Unique per scope."""
    input_digest: str = ""
    """Of what the producer asked for; tells a repeated start from a conflicting one."""
    budget: Budget | None = None
    """Makes the scope row `run:<rid>`, whose key stands in the body's scopes."""
    trace: str | None = None
    """As in the body, for its doorbell."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that a swarm begins with; its run is created with it and is not due before it has a slot."""

    task_id: str
    run: NewRun
    depends_on: tuple[str, ...]
    rank: int
    """Order among ready tasks, lowest first."""
    after: tuple[str, ...] = ()
    """Tasks that have to end, in whatever way."""
    timeout_ms: int | None = None
    """Of one attempt, from its slot on."""

    @property
    def upstream(self) -> tuple[str, ...]:
        """All that it waits for, each once; what stands in both lists has to complete."""
        return tuple(dict.fromkeys((*self.depends_on, *self.after)))


@dataclass(frozen=True, slots=True)
class NewSwarm:
    """Slots and tasks of the swarm whose head is the run given beside it."""

    slots: int
    """Tasks that may run at a time, over the whole pool."""
    tasks: tuple[NewTask, ...]
    dynamic: DynamicLimits | None = None
    """None: its tasks create none."""


@dataclass(frozen=True, slots=True)
class Created:
    """`created` False: the row was there before, under the same run id or idempotency key, and nothing was written."""

    created: bool
    rid: UUID
    scope: str
    run_id: str
    same_input: bool
    status: RunStatus


@dataclass(frozen=True, slots=True)
class Known:
    """What the caller still has of a run's history: rows up to here need not be loaded again."""

    epoch: int
    last_seq: int
    step: int
    """Receipts of steps below this one are known."""
    compactions: int = 0
    """Of that epoch, as far as they are known; after a further one all of the history is another."""


NOTHING_KNOWN = Known(epoch=-1, last_seq=-1, step=0)
"""Loads what it takes to go on: without messages and receipts that compaction left out whole."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Head, history and unseen inputs of one moment, read by one statement."""

    head: Head
    messages: tuple[MessageRow, ...]
    """Of the head's epoch, after `Known.last_seq` where that epoch is known, else all but what is folded, and ahead of
    them the record of its newest compaction. All where nothing was said to be known."""
    receipts: tuple[ReceiptRow, ...]
    """Of steps from `Known.step` and the head's `folded_step` on, in (step, call_id, seq) order; or all."""
    notes: tuple[NoteRow, ...]
    """Inbox places above `seen_seq`, in order."""
    items: tuple[ItemRow, ...]
    """Of the current suspension, answered and open."""


@dataclass(frozen=True, slots=True)
class UncleanEnd:
    """One step that ended without a word. `evidence` is JSON."""

    number: int
    at_ms: int
    """When it was found, Unix time in milliseconds by the store's clock."""
    evidence: str


@dataclass(frozen=True, slots=True)
class KeyCounters:
    """Of a concurrency key: runs that may run at a time, that hold a slot, that asked for one."""

    slots: int
    used: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Cascade:
    """One batch of a cascade. `bells`: runs that got a note. `more`: there may be another batch."""

    changed: int
    bells: tuple[Bell, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Noted:
    """The place of the note, and the bell that makes somebody look."""

    rid: UUID
    seq: int
    bell: Bell


@dataclass(frozen=True, slots=True)
class Answered:
    """`stored` False: a required item was answered before, has other votes or has expired, or does not exist; `winner` is the
    stored answer then, if it has one, and `votes` are those that it has.

    `bell` is set when this answer closed the last item and the run can go on at once; `swarm_rid` when it became a ready task
    that waits for a slot (`fill_slots`).
    """

    stored: bool
    open_items: int
    winner: str | None
    bell: Bell | None
    swarm_rid: UUID | None
    item_id: str | None = None
    """What was in the way."""
    votes: str | None = None


@dataclass(frozen=True, slots=True)
class TagCost:
    value: str
    runs: int
    tokens: int
    cost_micros: int | None


class RunStore(BudgetStore, ControlStore, ChatRows, Protocol):
    async def create(
        self, run: NewRun, swarm: NewSwarm | None = None, *, ring_in_ms: int = 0, connection: Any = None
    ) -> Created:
        """Write a run, and a whole swarm with it, or nothing.

        `ring_in_ms`: its creator rings for it meanwhile, so the sweep looks that much later; 0: nobody rings, it is ripe.

        A row with the run id (in whatever scope) or with the scope's idempotency key makes nothing be written. `connection`:
        an open psycopg connection, sync or async, of the caller, in whose transaction the row is written and visible only
        after the caller's commit; only Postgres takes one.
        """
        ...

    async def load(self, scope: str, run_id: str, known: Known | None = None) -> Loaded | None:
        """The run as of one moment; None when there is none in that scope.

        Without `known` all that is stored of its history, else what an executor needs that knows so much.
        """
        ...

    async def head(self, scope: str, run_id: str) -> Head | None:
        """The head alone, one indexed read."""
        ...

    async def commit(self, change: Change) -> Outcome:
        """Apply everything in `change`, or nothing: `RevisionConflict` for another revision and for a parked run, and
        `TooManyTasks` where the tasks that it creates are more than the swarm may have.

        A lost answer is settled inside: the head's commit id equals `change.commit_id`, then it was applied; the revision is
        still `expected`, then it is sent again; else conflict. Raises `StoreUnavailableError` when that cannot be found out
        within the store's own time limit; the outcome is then unknown and `change` may be offered again as it is.
        """
        ...

    async def record_unclean_end(self, rid: UUID, expected: int, back_off_ms: int, evidence: str = "{}") -> int | None:
        """Raise `attempts` by one and move `due_at` and `sweep_at` on; returns the new count, None if the revision moved.

        `evidence` is kept for `unclean_ends`: who found what.
        """
        ...

    async def tags(self, scope: str, run_id: str) -> Mapping[str, str]:
        """Those that the run was enqueued with; empty where there is no such run."""
        ...

    async def unclean_ends(self, scope: str, run_id: str) -> tuple[UncleanEnd, ...]:
        """The ends since the run last got on, oldest first."""
        ...

    async def park(
        self, rid: UUID, expected: int, reason: str, *, despite_notes: bool = False, as_revision: int | None = None
    ) -> bool:
        """Take the run out of the schedule without a new revision; a retry, reconcile or cancel note clears it.

        Refused (False) when the revision moved or an input arrived; with `despite_notes`, only when that is a cancel. A swarm
        task becomes `needs_reconciliation` and gives its slot back in the same statement. A retry sets `attempts` to 0.
        `as_revision`: the store lost commits (`core.lost_commits`), so the stored envelope goes on under this higher revision,
        in the same statement, and no commit that was made from the old one fits any more; refused for a run that has ended.
        """
        ...

    async def add_note(
        self, scope: str, run_id: str, kind: NoteKind, body: str, *, note_id: UUID | None = None
    ) -> Noted | None:
        """Append an outsider's input: raises `wake_seq` (and `cancel_seq`), unparks, brings `sweep_at` near.

        `note_id`: under which the run has it once, however often it is added. Never touches envelope or revision. None when
        there is no such run, or it has ended.
        """
        ...

    async def answer_items(self, scope: str, run_id: str, answers: Sequence[ItemAnswer]) -> Answered | None:
        """Answer pending items, each open to answered, once: all that are required or none. None when there is no such run.

        Lowers the head's `open_items`; closing the last one makes the run due, or its task ready ahead of unstarted ones.
        """
        ...

    async def answer_item(self, scope: str, run_id: str, item_id: str, answer: str) -> Answered | None:
        """`answer_items` with one answer."""
        ...

    async def sweep(
        self, *, limit: int, ttl_ms: int, queues: Sequence[str] | None = None, spare: int = 0, from_shard: int = 0
    ) -> tuple[Bell, ...]:
        """Take rows whose `sweep_at` has passed and move them `ttl_ms` on; one caller gets a row, others skip it.

        First runs that have begun, then the others by priority, fewest runs of the scope at work or rung for, age: `limit` in
        all, and for up to `spare` scopes of which there are none one more each. `from_shard` (0 to 255): where a pass that
        cannot look through all scopes begins. A suspicious run is of the quarantine queue of its queue
        (`core.unclean_ends`), here and in its bell.
        """
        ...

    async def ripen(self, runs: Sequence[tuple[str, str]]) -> None:
        """Nobody rang for these runs (scope, run id), since their queue is full: the sweep may take them at once."""
        ...

    async def postpone(self, scope: str, run_id: str, in_ms: int) -> None:
        """The sweep need not look at this run before `in_ms` from now; `due_at` stays."""
        ...

    async def put_off(self, scope: str, run_id: str, least_ms: int, most_ms: int) -> None:
        """Nobody here can run it: postponed by `least_ms`, twice as long with every such look in a row, `most_ms` at most.

        A commit begins anew.
        """
        ...

    async def hasten(self, queues: Sequence[str], agents: Sequence[str], limit: int) -> int:
        """The sweep looks at once at runs of these agents in these queues that were put off and have work, `limit` at most.

        Returns how many.
        """
        ...

    async def take_slot(self, rid: UUID, expected: int, slots: int) -> Literal["held", "waiting"] | None:
        """A slot of the run's concurrency key before it runs; None when the revision moved, it is parked or names no key.

        `held`: it has one, now or since before. `waiting`: none is free or others wait already; the run is not due until
        `fill_key` gives it one, but for its deadline. A key that nobody has set has `slots`. Given back by the commit that
        suspends or ends the run, and by `park`, in the same statement.
        """
        ...

    async def fill_key(self, scope: str, key: str) -> tuple[Bell, ...]:
        """Give free slots to runs that wait, by priority and age, and make them due; never waits for a run."""
        ...

    async def set_slots(self, scope: str, key: str, slots: int) -> None:
        """How many runs of the key may run at a time; those that hold a slot keep it. `fill_key` gives new ones away."""
        ...

    async def slot_counters(self, scope: str, key: str) -> KeyCounters | None: ...

    async def keys_needing_attention(self, limit: int) -> tuple[tuple[str, str], ...]:
        """(scope, key) of keys with free slots for which runs wait."""
        ...

    async def fill_slots(self, swarm_rid: UUID) -> tuple[Bell, ...]:
        """Give free slots to ready tasks in rank order and make their runs due (architecture D14); never waits for a task."""
        ...

    async def settle_swarm(self, swarm_rid: UUID) -> Bell | None:
        """Make the swarm's own head due if none of its tasks is open.

        Where some are, none runs and none can begin before somebody answers or ends a drain, its journal says so, once.
        """
        ...

    async def swarms_needing_attention(self, limit: int) -> tuple[UUID, ...]:
        """Active swarms with ready tasks beside free slots, with no open task and a head that is not due, or that stand still
        without their journal saying so."""
        ...

    async def block_downstream(self, swarm_rid: UUID, limit: int) -> Cascade:
        """One batch: pending tasks that need a failed, blocked or cancelled one become `blocked`, their runs `stopped`.

        Who only waits for the end of a blocked one has one wait less, in the same statement.
        """
        ...

    async def cancel_tasks(self, swarm_rid: UUID, limit: int) -> Cascade:
        """One batch: pending and ready tasks become `cancelled`, their runs `stopped`; the others get a cancel note once."""
        ...

    async def tree(self, scope: str, run_id: str) -> tuple[TreeRun, ...]:
        """The run, its tasks if it is a swarm, and all below that have not ended, of one moment; a child behind its parent.

        Empty when there is no such run.
        """
        ...

    async def children(self, rid: UUID, limit: int) -> tuple[ChildRow, ...]:
        """Runs that this one delegated, also those that have ended, oldest first; `limit` at most."""
        ...

    async def cancel_children(self, rid: UUID, limit: int) -> Cascade:
        """One batch: delegated runs of an ended run that have not ended get a cancel note, once; the last one clears its
        `due_at`."""
        ...

    async def task_results(self, swarm_rid: UUID, task_id: str) -> tuple[TaskResult, ...]:
        """Bodies of the direct predecessors, by task id: final ones of those that ended."""
        ...

    async def swarm_counters(self, swarm_rid: UUID) -> SwarmCounters | None:
        """One indexed read, whatever the number of tasks; None for a run that is no swarm."""
        ...

    async def drain_swarm(self, scope: str, run_id: str) -> UUID | None:
        """No task of the swarm gets a slot from here on; None when there is no such swarm, or it has ended."""
        ...

    async def resume_swarm(self, scope: str, run_id: str, expected: int | None = None) -> UUID | None:
        """Its tasks may get slots again, and its journal says so; None when there is no such swarm, or it has ended.

        `expected`: the number of its newest event; None and nothing is changed, too, when it has another by now.
        """
        ...

    async def swarm_events(self, scope: str, run_id: str, after: int, limit: int) -> tuple[SwarmEventRow, ...]:
        """Events of the swarm after the cursor `after`, in order and without gaps; each is written with what it tells."""
        ...

    async def spawn_ground(self, swarm_rid: UUID, task_id: str, named: Sequence[str]) -> SpawnGround | None:
        """What a task has to know before it creates others that are called, or wait for, `named`; None: no such task."""
        ...

    async def swarm_snapshot(self, swarm_rid: UUID) -> SwarmSnapshot | None: ...

    async def journal(self, scope: str, run_id: str, after: int, limit: int) -> tuple[JournalRow, ...]:
        """Rows after the cursor `after`, in order; dense per run."""
        ...

    async def list_runs(self, query: RunQuery) -> RunPage: ...

    async def insert_run(self, run: WholeRun) -> Created:
        """Write a run as it is, or nothing where its run id is taken, in whatever scope. It has seen all its inputs."""
        ...

    async def prune(self, *, older_ms: int, status: Sequence[RunStatus], scope: str | None, limit: int) -> int:
        """One batch: runs that ended with one of `status` at least `older_ms` ago are gone with all their rows; how many.

        A swarm goes with all its tasks, and only if they have ended; a task never goes alone. Runs that are suspended, parked
        or alive, or have work after their end, stay, and so does what others share: budget scopes and what counts there.
        """
        ...

    async def cost_by_tag(self, scope: str | None, key: str) -> tuple[TagCost, ...]: ...

    async def open_items(self, scope: str, run_id: str) -> tuple[ItemRow, ...]: ...

    async def now_ms(self) -> int:
        """Unix time in milliseconds by the clock that judges expiry."""
        ...

    async def check_schema(self) -> None:
        """Raises `MigrationMissingError` or `SchemaTooNewError`, nothing if the schema is this version's."""
        ...

    async def close(self) -> None: ...
