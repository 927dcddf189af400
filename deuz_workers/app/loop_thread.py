"""One event loop in a thread, per process: where the synchronous functions have their work done (architecture D8)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deuz_workers.core.failure import place_of
from deuz_workers.errors import ConfigurationError, DeuzError, LoopDiedError

T = TypeVar("T")

TICK_S = 0.5
"""A waiting thread looks up this often, so that Ctrl-C, or what another thread raises in it, ends the wait everywhere."""
STOP_TIMEOUT_S = 5.0
"""For coroutines to end after they were cancelled; the thread is a daemon, so nothing waits for it longer."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Serving:
    """One loop in its thread."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    thread: threading.Thread | None = None
    asked: set[Future[Any]] = field(default_factory=lambda: set[Future[Any]]())
    """What others wait for."""
    has_died: bool = False


class LoopThread:
    """A loop that runs from the first call on and ends with the process. A forked child starts its own.

    A task that user code started beside its own can end a loop, by `SystemExit` or `KeyboardInterrupt`. That is logged as
    ``loop_died`` (`error`, `at`); what was waited for raises `LoopDiedError`, and the next call starts another loop.
    """

    def __init__(self) -> None:
        self.on_death: Callable[[], None] | None = None
        """Called first when a loop has died, on its thread."""
        self._lock = threading.Lock()
        self._pid = 0
        self._serving: _Serving | None = None
        self._ends_with_interpreter = False

    def run(self, coroutine: Coroutine[Any, Any, T], *, outlive: bool = False) -> T:
        """The coroutine's result, awaited on the loop; an interrupt of the waiting thread cancels it.

        With `outlive` an interrupt (a signal, `SystemExit`, a soft time limit) ends the waiting and leaves the coroutine
        running: what it has begun is to be recorded. Raises `ConfigurationError` when it is called on the loop itself, where
        waiting would be for ever.
        """
        future, serving = self._spawn(coroutine)
        try:
            return _wait(future, serving)
        except BaseException:
            if not outlive:
                future.cancel()
            raise

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it on the loop and return at once. Raises `ConfigurationError` as `run` does."""
        return self._spawn(coroutine)[0]

    def stop(self) -> None:
        """What still runs on the loop of this process is cancelled and its thread has ended; the next call starts another."""
        if self._pid != os.getpid():
            return
        with self._lock:
            serving, self._serving = self._serving, None
        if serving is not None and serving.thread is not None:
            serving.loop.call_soon_threadsafe(serving.loop.stop)
            serving.thread.join(STOP_TIMEOUT_S)

    def _spawn(self, coroutine: Coroutine[Any, Any, T]) -> tuple[Future[T], _Serving]:
        if self._pid != os.getpid():  # threads do not survive a fork, and the lock may have been held at that moment
            self._lock, self._pid, self._serving = threading.Lock(), os.getpid(), None
        with self._lock:
            serving = self._serving
            if serving is None:
                self._serving = serving = _Serving()
                serving.thread = threading.Thread(target=self._serve, args=(serving,), name="deuz-loop", daemon=True)
                serving.thread.start()
                if not self._ends_with_interpreter:  # else what waits on the loop is complained of when the interpreter goes
                    atexit.register(self.stop)
                    self._ends_with_interpreter = True
            if threading.current_thread() is not serving.thread:
                future = asyncio.run_coroutine_threadsafe(_contained(coroutine), serving.loop)
                serving.asked.add(future)
                future.add_done_callback(serving.asked.discard)
                return future, serving
        coroutine.close()
        raise ConfigurationError(
            "a synchronous function of deuz_workers was called on the event loop that would have to do its work, for "
            "example by an async tool; await the function of the same name on app.aio instead"
        )

    def _serve(self, serving: _Serving) -> None:
        try:
            serving.loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - a task of the user's raised what no task keeps to itself
            serving.has_died = True
            log.error("loop_died error=%s at=%s", type(error).__name__, place_of(error))
            if self.on_death is not None:
                self.on_death()
            with self._lock:
                if self._serving is serving:
                    self._serving = None
        _wind_up(serving.loop)
        for future in list(serving.asked):
            with contextlib.suppress(InvalidStateError):  # whoever waited has given up
                future.set_exception(LoopDiedError())


async def _contained(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:  # of the user's code; it would end the loop
        raise DeuzError(f"user code raised {type(error).__name__}", code="user_code") from error


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """What still ran was cancelled and had a moment to end; the loop is closed, whatever user code did about it."""
    until_s = loop.time() + STOP_TIMEOUT_S / 2
    told: set[asyncio.Task[Any]] = set()
    while (left := asyncio.all_tasks(loop)) and loop.time() < until_s:
        for task in left - told:
            task.cancel()
        told |= left
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.wait(left, timeout=until_s - loop.time()))
    with contextlib.suppress(BaseException):
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _wait(future: Future[T], serving: _Serving) -> T:
    while True:
        try:
            return future.result(TICK_S)
        except TimeoutError:
            if future.done():
                raise
        except CancelledError:
            if serving.has_died:
                raise LoopDiedError from None
            raise RuntimeError("the work was cancelled on its loop") from None


LOOP = LoopThread()
"""The process's own."""
