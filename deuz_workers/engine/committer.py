"""Saving what happens to one run, one commit at a time.

Outcomes of tools that run side by side arrive while a commit is under way; they are folded in at once and share the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from deuz_workers.core.change import Applied, BudgetExceeded, CancelPending, Change, Outcome, RevisionConflict, TooManyTasks
from deuz_workers.core.events import Event
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.receipts import MISSING
from deuz_workers.core.run import Run, saved, to_change
from deuz_workers.engine.weight import HEAVY_SIZE, is_heavy, message_size
from deuz_workers.errors import StoreContendedError, StoreUnavailableError
from deuz_workers.ports.runtime import Clock, Ids
from deuz_workers.ports.store import RunStore

log = logging.getLogger(__name__)


class StepOver(Exception):
    """The step must end without writing anything more: the run was taken by somebody else, or the store stays away.

    `conflict`: the store has another revision than the one that this step made; `stored`: which, None if the run is gone.
    """

    def __init__(self, why: str, *, conflict: bool = False, stored: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.conflict = conflict
        self.stored = stored


class CancelFirst(Exception):
    """The commit would end or suspend the run or begin an effect while a cancel waits; nothing was written or folded."""


class BudgetRefused(Exception):
    """The reservation was refused; nothing was written, nothing was folded."""

    def __init__(self, refusal: BudgetExceeded) -> None:
        super().__init__(refusal.scope)
        self.refusal = refusal


class TasksRefused(Exception):
    """The swarm has no room for the tasks that this end creates; nothing was written, nothing was folded."""


class ReservationContended(Exception):
    """The reservation got no turn in the ledger for all of the store's patience; nothing was written, nothing was folded."""


class Committer:
    """Holds the newest state of the run. `run` includes what is folded in and not yet saved."""

    def __init__(
        self,
        store: RunStore,
        run: Run,
        clock: Clock,
        ids: Ids,
        patience_ms: int,
        may_write: Callable[[], bool],
        on_applied: Callable[[Run, int], None],
    ) -> None:
        """`on_applied` is called with every revision that is known to be saved, and the run with what it saved as unsaved."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._patience_ms = patience_ms
        self._may_write = may_write
        self._on_applied = on_applied
        self._folded = 0
        self._saved = 0
        self._writing: asyncio.Future[None] | None = None
        self._broken: Exception | None = None
        self.run = run
        self.stored = run
        """As of the newest commit whose outcome is known."""
        self.applied: list[Applied] = []
        """Outcomes of this step's commits, oldest first."""

    @property
    def sees_cancel(self) -> bool:
        """A commit reported a cancel that the envelope has not folded in."""
        return bool(self.applied) and self.applied[-1].cancel_seq > self.run.envelope.seen_seq

    @property
    def sees_inputs(self) -> bool:
        """A commit reported an input of whatever kind that the envelope has not folded in: the next step takes it in."""
        return bool(self.applied) and self.applied[-1].wake_seq > self.run.envelope.seen_seq

    async def commit(self, *events: Event) -> None:
        """Fold `events` in and return when they are saved. Raises like `save`."""
        await self.save(evolve_all(self.run, events))

    async def save(self, run: Run) -> None:
        """`run`, made by folding events into the one that is held, takes its place; return when it is saved.

        Raises `StepOver`; `CancelFirst`, `BudgetRefused`, `TasksRefused` or `ReservationContended`, after which the run is what
        it was before; `StoreUnavailableError` when the store stayed away for all of the patience. After a `StepOver` or an
        unreachable store every further commit raises the same.
        """
        before, self.run = self.run, run
        self._folded += 1
        mine = self._folded
        while self._saved < mine:
            if self._broken is not None:
                raise self._broken
            if self._writing is not None:
                await asyncio.shield(self._writing)
            else:
                await self._write(before)

    async def _write(self, before: Run) -> None:
        """Save everything folded in so far. What is folded in meanwhile builds on the revision that this commit makes."""
        covered, snapshot = self._folded, self.run
        self.run = after = saved(snapshot, snapshot.envelope.revision + 1)
        self._writing = asyncio.get_running_loop().create_future()
        try:
            change = await self._encode(snapshot)
            outcome = await self._offer(change)
            match outcome:
                case Applied():
                    self._saved, self.stored = covered, after
                    self.applied.append(outcome)
                    self._on_applied(snapshot, outcome.revision)
                case RevisionConflict(revision):
                    raise StepOver(f"revision {change.expected} was overtaken by {revision}", conflict=True, stored=revision)
                case CancelPending() | BudgetExceeded() | ReservationContended() | TooManyTasks():
                    # Only a step that does one thing at a time leaves, starts or reserves, so nothing else was folded in.
                    self.run = before
                    self._saved = self._folded
                    if isinstance(outcome, ReservationContended):
                        raise outcome
                    if isinstance(outcome, TooManyTasks):
                        raise TasksRefused
                    raise CancelFirst if isinstance(outcome, CancelPending) else BudgetRefused(outcome)
        except (CancelFirst, BudgetRefused, TasksRefused, ReservationContended):
            raise
        except BaseException as error:
            self._broken = error if isinstance(error, Exception) else StepOver("the commit was interrupted")
            raise
        finally:
            writing, self._writing = self._writing, None
            writing.set_result(None)

    async def _encode(self, run: Run) -> Change:
        values = (receipt.value for receipt, _ in run.unsaved.receipts if receipt.value is not MISSING)
        heavy = any(map(is_heavy, values)) or sum(map(message_size, run.unsaved.messages)) > HEAVY_SIZE
        commit_id = self._ids.commit_id()
        return await asyncio.to_thread(to_change, run, commit_id) if heavy else to_change(run, commit_id)

    async def _offer(self, change: Change) -> Outcome | ReservationContended:
        """Send the change until its outcome is known.

        An executor that cannot reach its lease still offers outcomes of effects it had begun; one that was told its lease is
        gone writes nothing (decision 5). A reservation that meets contention alone is not waited for: others may use the time.
        """
        until_ms = self._clock.monotonic_ms() + self._patience_ms
        pause_ms, is_known = 100, True
        while True:
            if not self._may_write():
                raise StepOver("the lease is gone")
            try:
                return await self._store.commit(change)
            except StoreUnavailableError as error:
                is_known = is_known and isinstance(error, StoreContendedError)
                if is_known and change.reserve is not None:
                    return ReservationContended()
                if self._clock.monotonic_ms() >= until_ms:
                    raise
                log.warning("commit_waiting run=%s revision=%s error=%s", change.rid, change.expected, error.code)
            await self._clock.sleep_ms(pause_ms)
            pause_ms = min(pause_ms * 2, 2_000)
