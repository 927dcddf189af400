"""One event loop in a thread, per process: where the synchronous functions have their work done (architecture D8)."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from deuz_workers.errors import ConfigurationError

T = TypeVar("T")

TICK_S = 0.5
"""A waiting thread looks up this often, so that Ctrl-C, or what another thread raises in it, ends the wait everywhere."""
STOP_TIMEOUT_S = 5.0
"""For coroutines to end after they were cancelled; the thread is a daemon, so nothing waits for it longer."""


class LoopThread:
    """A loop that runs from the first call on and ends with the process. A forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ends_with_interpreter = False

    def run(self, coroutine: Coroutine[Any, Any, T], *, outlive: bool = False) -> T:
        """The coroutine's result, awaited on the loop; an interrupt of the waiting thread cancels it.

        With `outlive` an interrupt (a signal, `SystemExit`, a soft time limit) ends the waiting and leaves the coroutine
        running: what it has begun is to be recorded. Raises `ConfigurationError` when it is called on the loop itself, where
        waiting would be for ever.
        """
        future = self.spawn(coroutine)
        try:
            return _wait(future)
        except BaseException:
            if not outlive:
                future.cancel()
            raise

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it on the loop and return at once. Raises `ConfigurationError` as `run` does."""
        loop = self._running()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ConfigurationError(
                "a synchronous function of deuz_workers was called on the event loop that would have to do its work, for "
                "example by an async tool; await the function of the same name on app.aio instead"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def stop(self) -> None:
        """What still runs on the loop of this process is cancelled and its thread has ended; the next call starts another."""
        if self._pid != os.getpid():
            return
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(STOP_TIMEOUT_S)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():  # threads do not survive a fork, and the lock may have been held at that moment
            self._lock, self._pid, self._loop = threading.Lock(), os.getpid(), None
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="deuz-loop", daemon=True)
                self._thread.start()
                if not self._ends_with_interpreter:  # else what waits on the loop is complained of when the interpreter goes
                    atexit.register(self.stop)
                    self._ends_with_interpreter = True
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=STOP_TIMEOUT_S / 2))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


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
