"""What may end a step from outside: the lease is lost, the run is cancelled, the worker drains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deuz_workers.errors import Interruption, LeaseLost, RunCancelled
from deuz_workers.ports.runtime import Clock
from deuz_workers.ports.signal import Signal


class Stop:
    """Lives on the loop that made it; `lose`, `cancel`, `drain` and `abort_model` may be called from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._signals: set[Signal] = set()
        self._model_must_end = asyncio.Event()
        self._lost = asyncio.Event()
        self.is_lost = False
        self.is_cancelled = False
        """A cancel waits in the inbox."""
        self.is_draining = False

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

    def cancel_noticed(self) -> None:
        """The inbox was read: what the signal pointed at is folded in."""
        self.is_cancelled = False
        if not self.is_lost:
            self._model_must_end.clear()

    def signal(self) -> Signal:
        """A signal for one tool call, set at once if the step is over already."""
        made = Signal()
        self._signals.add(made)
        if self.is_lost:
            made.set(LeaseLost("the lease is gone"))
        elif self.is_cancelled:
            made.set(RunCancelled("the run was cancelled"))
        return made

    def forget(self, signal: Signal) -> None:
        self._signals.discard(signal)

    async def model_must_end(self) -> None:
        """Returns when a model call in flight is of no more use."""
        await self._model_must_end.wait()

    async def until_lost(self) -> None:
        await self._lost.wait()

    def _lose(self) -> None:
        self.is_lost = True
        self._lost.set()
        self._model_must_end.set()
        self._tell(LeaseLost("the lease is gone"))

    def _cancel(self) -> None:
        self.is_cancelled = True
        self._model_must_end.set()
        self._tell(RunCancelled("the run was cancelled"))

    def _drain(self) -> None:
        self.is_draining = True

    def _abort_model(self) -> None:
        self.is_draining = True
        self._model_must_end.set()

    def _tell(self, reason: Interruption) -> None:
        for signal in self._signals:
            signal.set(reason)

    def _soon(self, change: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(change)
