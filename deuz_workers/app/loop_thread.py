"""One event loop in a thread, per process: where the synchronous functions have their work done (architecture D8)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from deuz_workers.errors import ConfigurationError

T = TypeVar("T")

TICK_S = 0.5
"""A waiting main thread looks up this often, so that Ctrl-C ends the wait on every platform."""


class LoopThread:
    """A loop that runs from the first call on and ends with the process. A forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, awaited on the loop; an interrupt of the waiting thread cancels it.

        Raises `ConfigurationError` when it is called on the loop itself, where waiting would be for ever.
        """
        loop = self._running()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ConfigurationError(
                "a synchronous function of deuz_workers was called on the event loop that would have to do its work, for "
                "example by an async tool; await the function of the same name on app.aio instead"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return _wait(future)
        except BaseException:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():  # threads do not survive a fork, and the lock may have been held at that moment
            self._lock, self._pid, self._loop = threading.Lock(), os.getpid(), None
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="deuz-loop", daemon=True)
                self._thread.start()
            return self._loop


def _wait(future: Future[T]) -> T:
    while True:
        try:
            return future.result(TICK_S)
        except TimeoutError:
            if future.done():
                raise
        except CancelledError:
            raise RuntimeError("the work was cancelled on its loop") from None


LOOP = LoopThread()
"""The process's own."""
