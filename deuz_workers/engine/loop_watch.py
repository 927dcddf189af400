"""Notices an event loop that does not tick, seen from another thread."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterable

from deuz_workers.ports.runtime import Clock

BLOCKED_MS = 1_000
"""User code that keeps the loop for longer delays every other run of the process, so its author should hear of it."""

log = logging.getLogger(__name__)


class LoopWatch:
    """`look` is called again and again from a thread of its own; `loop` answers, or is reported once until it does.

    Emits ``loop_blocked`` (`blocked_ms`, `labels` of what runs, `at`: file, line and function the loop is in) and
    ``loop_ticked_again`` (`blocked_ms`).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, labels: Callable[[], Iterable[str]]) -> None:
        self._loop = loop
        self._clock = clock
        self._labels = labels
        self._asked_ms: int | None = None
        self._reported = False
        self._thread: int | None = None

    def look(self) -> bool:
        """Ask the loop to tick, or see how long it has not; False when it is closed and need not be watched any more."""
        now_ms = self._clock.monotonic_ms()
        asked_ms = self._asked_ms
        if asked_ms is None:
            self._asked_ms = now_ms
            try:
                self._loop.call_soon_threadsafe(self._tick)
            except RuntimeError:
                return False
        elif now_ms - asked_ms >= BLOCKED_MS and not self._reported:
            self._reported = True
            labels = ",".join(self._labels())
            log.warning("loop_blocked blocked_ms=%d labels=%s at=%s", now_ms - asked_ms, labels, self._place())
        return not self._loop.is_closed()

    def _tick(self) -> None:
        self._thread = threading.get_ident()
        asked_ms, self._asked_ms = self._asked_ms, None
        if self._reported and asked_ms is not None:
            self._reported = False
            log.warning("loop_ticked_again blocked_ms=%d", self._clock.monotonic_ms() - asked_ms)

    def _place(self) -> str:
        frame = sys._current_frames().get(self._thread or 0)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it is documented
        return f"{frame.f_code.co_filename}:{frame.f_lineno}:{frame.f_code.co_name}" if frame else "unknown"
