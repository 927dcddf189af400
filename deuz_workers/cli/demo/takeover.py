"""One worker dies in the middle of a step, and what the pool makes of it.

What is told is read, not assumed: the run's receipts say what the worker was doing, its lease who held it and who holds it
now, its journal when it went on.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from deuz_workers.app.loop_thread import LOOP
from deuz_workers.cli.demo.child import Child
from deuz_workers.cli.demo.stack import Stack
from deuz_workers.cli.demo.watch import View, Watch
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.receipts import fold_receipts
from deuz_workers.ports.swarm_rows import TaskRow

TOOL_PATIENCE_S = 1.0
"""How long a worker in the middle of a tool call is looked for; then one that waits for a model will do."""


@dataclass(frozen=True, slots=True)
class Middle:
    """What a step has begun and not ended: a call of `tool` under `key`, or a call of the model (`tool` None)."""

    tool: str | None
    key: str
    attempt: int


@dataclass
class Takeover:
    """A run that lost its worker. `taker` and `after_ms` are there once somebody went on with it."""

    task: TaskRow
    dead: Child
    middle: Middle
    journal_seq: int
    """Newest row of the run's journal when the worker died."""
    died_at_ms: int
    """By the store's clock."""
    taker: int | None = None
    after_ms: int | None = None
    repeated: Middle | None = None
    """The same call as it was begun again; None where it was not seen."""


class Strike:
    """Kills one worker of the stack and follows the runs that it held."""

    def __init__(self, stack: Stack, watch: Watch) -> None:
        self._stack = stack
        self._watch = watch
        self._looking_since: float | None = None
        self.victim: Child | None = None
        self.takeovers: list[Takeover] = []

    @property
    def is_settled(self) -> bool:
        """Every run that lost its worker has another one."""
        return all(takeover.after_ms is not None for takeover in self.takeovers)

    def is_due(self, view: View) -> bool:
        """Half of the files are done, and nobody was killed yet."""
        return self.victim is None and view.reviewed * 2 >= len(view.reviews) > view.reviewed

    def attempt(self, view: View) -> bool:
        """Kill a worker if one is found in the middle of a review; True if it happened.

        It is stopped first, so that what it is in the middle of cannot end between looking and killing.
        """
        if self._looking_since is None:
            self._looking_since = time.monotonic()
        any_will_do = time.monotonic() - self._looking_since > TOOL_PATIENCE_S
        for task in view.reviews:
            worker = self._stack.worker_of(view.holders.get(task.task_id, 0))
            if worker is None or not self._is_worth_it(task, any_will_do):
                continue
            worker.signal(signal.SIGSTOP)
            if self._watch.holder(task) == worker.pid and self._is_worth_it(task, any_will_do):
                self._kill(worker, view)
                return True
            worker.signal(signal.SIGCONT)
        return False

    def follow(self) -> list[Takeover]:
        """The takeovers that happened since the last call."""
        return [takeover for takeover in self.takeovers if takeover.after_ms is None and self._has_gone_on(takeover)]

    def _is_worth_it(self, task: TaskRow, any_will_do: bool) -> bool:
        middle = self._middle(task)
        return middle is not None and (any_will_do or middle.tool is not None)

    def _kill(self, worker: Child, view: View) -> None:
        worker.kill()
        self.victim = worker
        died_at_ms = LOOP.run(self._watch.app.store.now_ms())
        for task in view.tasks:
            if task.status == "running" and self._watch.holder(task) == worker.pid:
                head = LOOP.run(self._watch.app.store.head(self._watch.handle.scope, task.run_id))
                middle = self._middle(task)
                if head is not None and middle is not None:
                    self.takeovers.append(Takeover(task, worker, middle, head.journal_seq, died_at_ms))

    def _has_gone_on(self, takeover: Takeover) -> bool:
        holder = self._watch.holder(takeover.task)
        if holder is not None and holder != takeover.dead.pid:
            takeover.taker = holder
        events = self._watch.handle.task(takeover.task.task_id).events(takeover.journal_seq, follow=False)
        first = next(events, None)
        if first is None:
            return False
        takeover.taker = takeover.taker or self._watch.holder(takeover.task)
        takeover.after_ms = first.at_ms - takeover.died_at_ms
        takeover.repeated = self._repeated(takeover)
        return True

    def _repeated(self, takeover: Takeover) -> Middle | None:
        """The call that was interrupted, as its receipt shows it now."""
        return next((call for call in self._calls(takeover.task) if call.key == takeover.middle.key), None)

    def _middle(self, task: TaskRow) -> Middle | None:
        """What the run's step is in the middle of; None: it has not begun anything, or just ended it."""
        head = LOOP.run(self._watch.app.store.head(self._watch.handle.scope, task.run_id))
        if head is None or not head.mid_step:
            return None
        open_call = decode_envelope(head).checkpoint.open_call
        if open_call is not None:
            return Middle(None, open_call.request_id, open_call.attempt)
        return next((call for call in self._calls(task, stage="executing")), None)

    def _calls(self, task: TaskRow, stage: str | None = None) -> list[Middle]:
        loaded = LOOP.run(self._watch.app.store.load(self._watch.handle.scope, task.run_id))
        if loaded is None:
            return []
        return [
            Middle(receipt.tool, f"{task.run_id}/{receipt.step}/{receipt.call_id}", receipt.attempt)
            for receipt in fold_receipts(loaded.receipts).values()
            if stage is None or receipt.stage == stage
        ]
