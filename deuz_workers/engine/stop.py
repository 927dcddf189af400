"""What may end a step from outside: the lease is lost, the run is cancelled, the worker drains."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator

from deuz_workers.errors import DeadlinePassed, Interruption, LeaseLost, RunCancelled
from deuz_workers.ports.runtime import Clock
from deuz_workers.ports.signal import Signal


class Stop:
    """Lives on the loop that made it; `lose`, `cancel`, `drain` and `abort_model` may be called from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._signals: dict[Signal, None] = {}
        """In the order in which their calls began, which is the order in which they are told."""
        self._model_limit: asyncio.Timeout | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when the lease is lost."""
        self.model_must_end = False
        """A model call in flight is of no more use."""
        self.is_cancelled = False
        """A cancel waits in the inbox."""
        self.is_draining = False

    @property
    def is_lost(self) -> bool:
        return self.lost.done()

    @property
    def elapsed_ms(self) -> int:
        """Since the step began; what was left of a time when the run was loaded is less by this."""
        return self._clock.monotonic_ms() - self._began_ms

    def lose(self) -> None:
        self._soon(self._lose)

    def cancel(self) -> None:
        """A cancel note is in the inbox: a model call ends, tools are told."""
        self._soon(self._cancel)

    def drain(self) -> None:
        """Take no further turn."""
        self._soon(self._drain)

    def abort_model(self) -> None:
        """The grace period is over: end a model call now. Tools are waited for."""
        self._soon(self._abort_model)

    @contextlib.contextmanager
    def expiring(self, in_ms: int | None) -> Generator[None]:
        """When so much has passed since the step began, calls are told; model calls have limits of their own. None: never."""
        if in_ms is None:
            yield
            return
        reason = DeadlinePassed("the time of the task's attempt is over")
        timer = self._loop.call_later(max(0, in_ms - self.elapsed_ms) / 1000, self._tell, reason)
        try:
            yield
        finally:
            timer.cancel()

    def cancel_noticed(self) -> None:
        """The inbox was read: what the signal pointed at is folded in."""
        self.is_cancelled = False
        if not self.is_lost:
            self.model_must_end = False

    def signal(self) -> Signal:
        """A signal for one tool call, set at once if the step is over already."""
        made = Signal()
        self._signals[made] = None
        if self.is_lost:
            made.set(LeaseLost("the lease is gone"))
        elif self.is_cancelled:
            made.set(RunCancelled("the run was cancelled"))
        return made

    def forget(self, signal: Signal) -> None:
        self._signals.pop(signal, None)

    @contextlib.contextmanager
    def may_end(self, limit: asyncio.Timeout) -> Generator[None]:
        """The time of a model call: `limit` passes at once when the call is of no more use."""
        self._model_limit = limit
        if self.model_must_end:
            self._end_model()
        try:
            yield
        finally:
            self._model_limit = None

    def _end_model(self) -> None:
        self.model_must_end = True
        if self._model_limit is not None and not self._model_limit.expired():
            self._model_limit.reschedule(0)

    def _lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        self._end_model()
        self._tell(LeaseLost("the lease is gone"))

    def _cancel(self) -> None:
        self.is_cancelled = True
        self._end_model()
        self._tell(RunCancelled("the run was cancelled"))

    def _drain(self) -> None:
        self.is_draining = True

    def _abort_model(self) -> None:
        self.is_draining = True
        self._end_model()

    def _tell(self, reason: Interruption) -> None:
        for signal in self._signals:
            signal.set(reason)

    def _soon(self, change: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(change)
