"""The commit: everything that one step changes, as one value (architecture D3).

A store applies a `Change` whole or not at all. Bodies are text that `core.codec.encode` wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.usage import Budget, Usage

RunStatus = Literal["queued", "running", "suspended", "completed", "stopped", "failed"]
Phase = Literal["loop", "finalizing", "extracting"]
RunKind = Literal["agent", "reducer", "swarm"]
Stage = Literal["executing", "suspended", "executed", "failed", "validation-failed", "projection-failed", "completed"]
TaskStatus = Literal[
    "pending", "ready", "running", "suspended", "completed", "failed", "blocked", "cancelled", "needs_reconciliation"
]
NoteKind = Literal["cancel", "message", "retry", "reconcile", "child", "policy", "verdict"]
ItemKind = Literal["approval", "client_tool", "deferral", "child_run", "quarantine"]

NO_USAGE = Usage()
FINAL: frozenset[RunStatus] = frozenset(("completed", "stopped", "failed"))


@dataclass(frozen=True, slots=True)
class Head:
    """The head row of a run as loaded.

    *Envelope*, changed only together with `revision`: status, phase, version, epoch, last_seq, seen_seq, journal_seq, body.
    *Schedule*, changed without it: wake_seq, cancel_seq, open_items, parked, attempts, due_in_ms.
    """

    rid: UUID
    scope: str
    run_id: str
    kind: RunKind
    agent: str
    queue: str
    priority: int
    shard: int
    revision: int
    commit_id: UUID | None
    version: int
    status: RunStatus
    phase: Phase
    epoch: int
    """Of the history; one that a hook rewrote starts the next."""
    last_seq: int
    """Sequence number of the newest message of this epoch, -1 when there is none."""
    journal_seq: int
    """Sequence number of the newest journal row, 0 when there is none."""
    seen_seq: int
    """Place of the newest inbox note that the envelope has folded in."""
    body: str
    mid_step: bool
    """A model call is open or a receipt is `executing`: whoever finds this without holding the lease takes over."""
    wake_seq: int
    cancel_seq: int
    open_items: int
    parked: str | None
    attempts: int
    due_in_ms: int | None
    """Milliseconds until `due_at` by the store's clock, negative when it has passed, None while only an input can wake it."""
    deadline_in_ms: int | None
    """Milliseconds until the run's deadline by the store's clock."""
    start_before_in_ms: int | None
    """Milliseconds until the run is no longer worth starting, by the store's clock."""
    tokens: int = 0
    """Used so far, promoted for listings."""
    cost_micros: int | None = 0
    model_step: int = 0
    """Root turns so far, promoted for listings."""
    swarm_rid: UUID | None = None
    task_id: str | None = None
    created_at_ms: int = 0
    """Unix time in milliseconds by the store's clock."""
    waits_for_slot: bool = False
    """A swarm task that is pending or ready, or a run that asked for a slot of its concurrency key: it takes no step that could
    begin anything."""
    slot_key: str | None = None
    """Concurrency key: so many runs of the scope that name it run at a time as it has slots."""
    slot: Literal["waiting", "held"] | None = None
    """Of that key."""
    compactions: int = 0
    """Of this epoch of the history; the newest one's record is the message row at this place below zero."""
    folded_from: int = 0
    folded_to: int = 0
    """Message rows from here to before there are not needed to go on."""
    folded_step: int = 0
    """Receipts of turns below this one are not needed to go on."""
    parent_rid: UUID | None = None
    """The run that delegated this one."""
    waits_for_children: bool = False
    """It is suspended, and one of the open items is a delegated run."""
    until_in_ms: int | None = None
    """Of a swarm task that has a slot: milliseconds until its attempt is over, by the store's clock."""

    @property
    def has_work(self) -> bool:
        """Not parked, and due or with unseen inputs; of a task without a slot, nothing but to end it."""
        if self.waits_for_slot and not self.is_to_end:
            return False
        return self.parked is None and ((self.due_in_ms is not None and self.due_in_ms <= 0) or self.wake_seq > self.seen_seq)

    @property
    def ends_in_ms(self) -> int | None:
        """Milliseconds until the run has to be over, by its deadline or as an attempt of a task."""
        return min((left for left in (self.deadline_in_ms, self.until_in_ms) if left is not None), default=None)

    @property
    def is_to_end(self) -> bool:
        """A cancel is unseen, or a time is over."""
        if self.status in FINAL:
            return False
        late = self.start_before_in_ms if self.status == "queued" else None
        return self.cancel_seq > self.seen_seq or any(left is not None and left <= 0 for left in (late, self.ends_in_ms))

    @property
    def has_report(self) -> bool:
        """Ended, what follows the end included, or waiting for somebody outside: for an answer, or for a word about an effect
        that nobody knows (RES-019).

        One that waits for delegated runs has none by itself: see `ports.tree`.
        """
        if self.status in FINAL or self.parked is not None:
            return self.phase != "extracting" or self.parked is not None
        return self.status == "suspended" and self.open_items > 0 and not self.has_work and not self.waits_for_children

    @property
    def listed_status(self) -> RunStatus:
        """As listings show it: a parked run waits for somebody, whatever its record says (architecture D1)."""
        return self.status if self.parked is None else "suspended"


@dataclass(frozen=True, slots=True)
class Bell:
    """Look at this run now: all that a message in the broker says (architecture D1)."""

    scope: str
    run_id: str
    queue: str
    revision: int = 0
    """Highest revision that the ringer saw. It gates nothing."""
    priority: int = 0
    agent: str = ""
    trace: str | None = None
    """What the run is part of for whoever collects traces, where the ringer knows it."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    seq: int
    """Below zero: the record of a compaction, see `core.compaction`."""
    body: str


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    """One change of stage of one call's receipt; of the rows of a call the one with the highest `seq` counts."""

    step: int
    call_id: str
    seq: int
    stage: Stage
    body: str


@dataclass(frozen=True, slots=True)
class NoteRow:
    seq: int
    kind: NoteKind
    body: str


@dataclass(frozen=True, slots=True)
class ItemRow:
    """A pending item of a suspension; `answer` is None while it is open."""

    item_id: str
    kind: ItemKind
    body: str
    """The call it belongs to and what the person is shown."""
    digest: str | None = None
    """Of the credential or of the call, hex."""
    expires_in_ms: int | None = None
    """From the store's now; past it the item takes no answer but that it expired."""
    answer: str | None = None
    votes: str | None = None
    """Of people so far, while they are not enough to answer it."""
    remind_in_ms: int | None = None
    escalate_in_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """What is stored for one item. Without `answer` it stays open and keeps `votes`."""

    item_id: str
    answer: str | None
    votes: str | None = None
    votes_before: str | None = None
    """Those that were seen; others by now, and nothing is stored."""
    required: bool = True
    """Nothing of the set is stored unless this is. False: it is stored if the item is still open."""
    expired: bool = False
    """For an item whose time has passed, and no other."""


@dataclass(frozen=True, slots=True)
class TaskEnding:
    """The run is a swarm task and this commit changes the task's status.

    The counters of the swarm follow the status that the locked task row has: `running` gives its slot back, `ready` and
    `suspended` had none. A task that ended already is left alone. `completed` lowers `waiting` of the dependents; a task that
    failed or was cancelled leaves them pending for the cascade, but lowers it for those that wait for any end. `suspended` and
    `needs_reconciliation` do not end it.
    """

    swarm_rid: UUID
    task_id: str
    status: Literal["completed", "failed", "cancelled", "suspended", "needs_reconciliation"]


@dataclass(frozen=True, slots=True)
class Waits:
    """`down` begins when `up` has completed; `soft`: when it has ended, in whatever way."""

    up: str
    down: str
    soft: bool = False


@dataclass(frozen=True, slots=True)
class SpawnedTask:
    """A task that the ending commit of another one of the swarm creates.

    Scope, priority, tags, shard and deadline of its run are those of the row of that one.
    """

    task_id: str
    rid: UUID
    run_id: str
    kind: Literal["agent", "reducer"]
    agent: str
    body: str
    messages: tuple[MessageRow, ...]
    queue: str
    rank: int
    depth: int
    timeout_ms: int | None = None
    concurrency_key: str | None = None
    budget: Budget | None = None
    """Makes the scope row `run:<rid>`, whose key stands in the body's scopes."""


@dataclass(frozen=True, slots=True)
class Spawning:
    """Tasks of one commit, and what they wait for: each other, the task that ends with it, and others of the swarm."""

    tasks: tuple[SpawnedTask, ...] = ()
    waits: tuple[Waits, ...] = ()


NOTHING_SPAWNED = Spawning()


@dataclass(frozen=True, slots=True)
class NewChild:
    """A run that the commit of another one creates, queued and due at once.

    Its scope, queue, priority, shard and deadline are those of the row of that one.
    """

    rid: UUID
    run_id: str
    agent: str
    body: str
    messages: tuple[MessageRow, ...]
    version: int = 1
    concurrency_key: str | None = None
    budget: Budget | None = None
    """Makes the scope row `run:<rid>`, whose key stands in the body's scopes."""


@dataclass(frozen=True, slots=True)
class ParentAnswer:
    """The run was delegated and ends: the item of its parent is answered by the same commit, if it is still open.

    The last open item makes the parent due, or its task ready where it is one of a swarm.
    """

    parent_rid: UUID
    item_id: str
    answer: str


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set `tokens` and `cost_micros` aside in every scope of `scopes` that has a row, all or nothing.

    `scopes`: scope keys, deepest first. Idempotent by `request_id`: a second reserve of the same id changes nothing and is
    answered as the first one was, also if that was refused; with other amounts it is refused as `request_mismatch`.
    `cost_micros` None: no price is known; a scope with a USD limit then refuses, unless `uncounted`.
    """

    request_id: str
    scopes: tuple[str, ...]
    tokens: int
    cost_micros: int | None
    shared: tuple[SharedBudget, ...] = ()
    """What the run holds those of `scopes` to that several runs share; they get a row at their first use."""
    model: str = ""
    """For reports."""
    uncounted: bool = False
    """Without a price, money is not counted and limits of it do not refuse."""
    warn_percent: int | None = None
    """Of limits of scopes that have no threshold of their own."""


@dataclass(frozen=True, slots=True)
class Settle:
    """End the hold of `request_id`: appended, locks no scope; whoever next reserves in those scopes folds it.

    `settled`: `tokens` and `cost_micros` were used. `released`: nothing was. `unknown`: nobody knows; the estimate stays held.
    """

    request_id: str
    scopes: tuple[str, ...]
    outcome: Literal["settled", "released", "unknown"]
    tokens: int = 0
    cost_micros: int | None = 0
    """None where no price is known: a call that was reserved in money is then `unknown`, another one settled by its tokens."""
    usage: Usage = NO_USAGE
    """Tokens by kind, for reports."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit of a run's holder writes, made from `expected`."""

    rid: UUID
    expected: int
    """The revision this was made from; the store refuses any other."""
    commit_id: UUID
    status: RunStatus
    phase: Phase
    version: int
    epoch: int
    last_seq: int
    """After `messages` are appended."""
    seen_seq: int
    body: str
    due_in_ms: int | None
    """From the store's now: 0 due at once, None only an input wakes it."""
    mid_step: bool = False
    """After this commit a model call is open or a receipt is `executing`."""
    tokens: int = 0
    """Used so far by the run, promoted for listings and sums by tag."""
    cost_micros: int | None = 0
    model_step: int = 0
    """Root turns so far, promoted for listings."""
    messages: tuple[MessageRow, ...] = ()
    receipts: tuple[ReceiptRow, ...] = ()
    journal: tuple[str, ...] = ()
    """Bodies; they get the places `journal_seq + 1 ...` of the head."""
    journal_seq: int = 0
    """Of the newest journal row before this commit."""
    items: tuple[ItemRow, ...] = ()
    """A new suspension waits for these. Without any, a run that was suspended and stays so keeps the open ones; in every other
    state none is open."""
    reserve: Reserve | None = None
    settle: tuple[Settle, ...] = ()
    wakes: tuple[UUID, ...] = ()
    """Heads of other runs that get a `child` note; locked together with the own head, by id."""
    task: TaskEnding | None = None
    children: tuple[NewChild, ...] = ()
    """Runs that are created with it; `items` holds what waits for them."""
    answer: ParentAnswer | None = None
    spawning: Spawning = NOTHING_SPAWNED
    """With an ending `task`: they exist from then on, or the commit is refused as `TooManyTasks`."""
    progress: bool = False
    """A reply or an outcome was recorded: `attempts` goes back to 0."""
    starts: bool = False
    """A model call or a tool begins when this is saved."""
    hears: bool = False
    """It would be over with this and goes on where an input is unseen, or others begin with what it may do now: where one is
    unseen, it is refused as behind a cancel."""
    compactions: int = 0
    """This and the next three: of the head after this commit."""
    folded_from: int = 0
    folded_to: int = 0
    folded_step: int = 0

    @property
    def yields(self) -> bool:
        """Suspends or ends the run or starts an effect, which an unseen cancel forbids: so one of the two came first."""
        return self.starts or self.status not in ("queued", "running")


@dataclass(frozen=True, slots=True)
class Applied:
    revision: int
    wake_seq: int
    cancel_seq: int
    due: bool
    """The run has work at once."""
    woken: tuple[Bell, ...] = ()
    """Runs that it made due: those it created, and others that wait no more."""
    swarm_open: int | None = None
    """Tasks of the swarm that have not ended, after this commit."""
    swarm_still: bool = False
    """None of them runs, and none may begin: `settle_swarm` says what becomes of it."""
    readied_swarm: UUID | None = None
    """Of a task that waited for this run and is ready now: `fill_slots` starts it."""
    charged: tuple[ScopeUse, ...] = ()
    """Of a reservation: scopes with a threshold of warning, as they are with it."""


@dataclass(frozen=True, slots=True)
class ScopeUse:
    """What counts in a scope - spent, held and unknown, in a rolling window what is in it - and what it is held to."""

    key: str
    used: Budget
    limit: Budget
    warn_percent: int


@dataclass(frozen=True, slots=True)
class RevisionConflict:
    """Somebody else wrote the run, or parked it; nothing of this change was written."""

    revision: int | None
    """What is stored now, None when the run is gone."""


@dataclass(frozen=True, slots=True)
class CancelPending:
    """The change would suspend or end the run, or start an effect, while a cancel is unseen, or while any input is where it
    `hears`; nothing was written."""

    cancel_seq: int


@dataclass(frozen=True, slots=True)
class BudgetExceeded:
    """A scope refused the reservation; nothing was written but that it did.

    `missing_reservation`: the scope limits money, and no price is known. `window_mismatch`: it has another window than the run
    asks for. `request_mismatch`: the request was made before with other amounts; `scope` is empty then.
    """

    scope: str
    reason: Literal["budget_exceeded", "missing_reservation", "window_mismatch", "request_mismatch"]


@dataclass(frozen=True, slots=True)
class TooManyTasks:
    """The new tasks are more than the swarm may have; nothing was written."""


Outcome = Applied | RevisionConflict | CancelPending | BudgetExceeded | TooManyTasks
