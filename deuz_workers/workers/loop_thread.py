"""Where threads meet coroutines: one event loop per process, in a thread of its own (architecture D8).

HTTP pools, database pools and leases of a process live on this loop, so there is one, made at the first use after a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deuz_workers.errors import ConfigurationError

TICK_S = 0.5
"""How long a waiting thread sleeps at most. An exception that another thread raises in it (a soft time limit) needs bytecode
to be noticed at; signals wake the main thread at once."""
STOP_TIMEOUT_S = 5.0
"""For coroutines to end after they were cancelled; the thread is a daemon, so nothing waits for it longer."""

T = TypeVar("T")


@dataclass(slots=True)
class _Here:
    """The loop of one process. A forked child gets its own: threads, selectors and locks do not cross a fork."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop | None = None
    thread: threading.Thread | None = None


class LoopThread:
    """Runs coroutines for threads. Nothing is started before the first `call` or `spawn` in a process."""

    def __init__(self, name: str = "deuz-loop") -> None:
        self._name = name
        self._processes: dict[int, _Here] = {}

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop and wait for its outcome.

        An exception that reaches the waiting thread from outside (a signal, `SystemExit`, a soft time limit) ends the waiting
        and leaves the coroutine running: an effect that has begun is to be recorded. Raises `ConfigurationError` on the
        loop's own thread, which would wait for itself.
        """
        future = self.spawn(coroutine)
        while True:
            try:
                return future.result(TICK_S)
            except TimeoutError:
                if future.done():
                    return future.result()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it on the loop and return at once. Raises `ConfigurationError` on the loop's own thread."""
        here = self._start()
        assert here.loop is not None
        if here.thread is threading.current_thread():
            coroutine.close()
            raise ConfigurationError(
                "this was called on the thread of the event loop, which would wait for itself for ever; "
                "await the coroutine instead, or call it from a thread (asyncio.to_thread)"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, here.loop)

    def stop(self) -> None:
        """What still runs on the loop of this process is cancelled, and its thread has ended. Nothing happens if none runs."""
        here = self._processes.pop(os.getpid(), None)
        if here is None or here.loop is None or here.thread is None:
            return
        here.loop.call_soon_threadsafe(here.loop.stop)
        here.thread.join(STOP_TIMEOUT_S)

    def _start(self) -> _Here:
        here = self._processes.get(os.getpid()) or self._processes.setdefault(os.getpid(), _Here())
        if here.loop is None:
            with here.lock:
                if here.loop is None:
                    loop = asyncio.new_event_loop()
                    here.thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
                    here.thread.start()
                    here.loop = loop
        return here


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=STOP_TIMEOUT_S / 2))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
