"""The cancel signal of one tool call."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from deuz_workers.errors import Interruption


class Signal:
    """Set once, with the reason; implements `CancelSignal`. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._reason: Interruption | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def set(self, reason: Interruption) -> None:
        """Afterwards the signal is set. The first reason stays: what came first is why the call ends."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            self._event.set()
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed, so nobody waits any more
                future.get_loop().call_soon_threadsafe(_wake, future)

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    @property
    def reason(self) -> Interruption | None:
        return self._reason

    def raise_if_set(self) -> None:
        """Raises the reason: a new instance, since one that many threads raise collects all their tracebacks."""
        if self._reason is not None:
            raise type(self._reason)(*self._reason.args)

    def wait(self, timeout_ms: int) -> bool:
        """Block this thread until the signal is set, at most `timeout_ms`; True if it is set."""
        return self._event.wait(timeout_ms / 1000)

    async def wait_async(self) -> None:
        """Return once the signal is set. For async tools, beside what they wait for."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._reason is not None:
                return
            self._waiting.add(future)
        try:
            await future
        finally:
            with self._lock:
                self._waiting.discard(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
