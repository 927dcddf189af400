"""Threads for what is no coroutine of the user's code: tools, predicates, projections, reducers.

Not `concurrent.futures`, for three reasons. Its threads are joined at exit, so that one stuck tool keeps the process alive;
ours are daemons. It has one queue, so that sync tools which start a run in this process and wait for it can occupy every
thread that the inner run's tools need; ours has a pool per nesting depth. And it cannot say which calls nobody waits for
any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from deuz_workers.errors import ToolError

_log = logging.getLogger(__name__)

R = TypeVar("R")

MAX_THREADS = 64
"""Per depth: as many runs as a worker process is expected to hold at once. A waiting thread costs some 50 KB."""

IDLE_MS = 30_000
"""After which an unused thread ends; long enough to span the model call between two tool calls."""

LINGER_MS = 30_000
"""A function whose time has passed, and that was told so, is waited for this much longer: most return soon, and then nothing of
the call is under way any more when the run goes on. Half of what a lease is vouched for beyond the limit. Nothing can end a
thread from outside but the end of its process, which would take the neighbours along."""

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("deuz_tool_thread_depth", default=0)


@dataclass(slots=True, eq=False)
class _Call:
    """One call on its way through a pool. `state` changes under the pool's lock only."""

    label: str
    function: Callable[[], Any]
    context: contextvars.Context
    future: asyncio.Future[Callable[[], Any]]
    state: str = "queued"
    """queued -> running -> done, queued -> dropped, running -> abandoned -> done."""

    def execute(self) -> Callable[[], Any]:
        """Run the function; what comes back gives its result or raises its error.

        A closure and not the future's own exception, because a future refuses StopIteration.
        """
        try:
            result = self.context.run(self.function)
        except (SystemExit, KeyboardInterrupt) as error:
            # Raised into a task, these would end the event loop and with it every other run of the process.
            return _raising(ToolError(f"'{self.label}' raised {type(error).__name__}; a function ends by returning"))
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            return _raising(error)
        return lambda: result

    def deliver(self, outcome: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            self.future.get_loop().call_soon_threadsafe(_settle, self.future, outcome)


def _settle(future: asyncio.Future[Callable[[], Any]], outcome: Callable[[], Any]) -> None:
    if not future.done():
        future.set_result(outcome)


def _raising(error: BaseException) -> Callable[[], Any]:
    def outcome() -> Any:
        raise error

    return outcome


@dataclass(slots=True, eq=False)
class _Pool:
    """The threads of one nesting depth."""

    depth: int
    max_threads: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    queue: deque[_Call] = field(default_factory=lambda: deque[_Call]())
    threads: int = 0
    """Threads that take calls: idle, or running one that somebody waits for."""
    idle: int = 0
    """Threads that take a call next. One counts from before its last outcome is delivered, so that calls one after the other
    need one thread."""
    started: int = 0
    abandoned: Counter[str] = field(default_factory=lambda: Counter[str]())
    running: Counter[str] = field(default_factory=lambda: Counter[str]())

    def submit(self, call: _Call) -> None:
        with self.changed:
            if self.idle > len(self.queue):
                self.changed.notify()
            elif self.threads < self.max_threads:
                self._start_thread()  # raises RuntimeError when there is none to be had: then nothing is queued
            self.queue.append(call)

    def _start_thread(self) -> None:
        self.started += 1
        name = f"deuz-tool-{self.depth}-{self.started}"
        threading.Thread(target=self._work, args=(name,), name=name, daemon=True).start()
        self.threads += 1
        self.idle += 1

    def _work(self, name: str) -> None:
        thread = threading.current_thread()
        while (call := self._take()) is not None:
            thread.name = f"{name}:{call.label}"  # what a stack dump of the process shows
            outcome = call.execute()
            thread.name = name
            if not self._finish(call):
                return
            call.deliver(outcome)
            # Otherwise the last result and context live as long as the thread is idle.
            del call, outcome

    def _take(self) -> _Call | None:
        """The next call; None when there was none for a while and the thread may end."""
        with self.changed:
            found = self.changed.wait_for(lambda: self.queue, IDLE_MS / 1000)
            self.idle -= 1
            if not found:
                self.threads -= 1
                return None
            call = self.queue.popleft()
            call.state = "running"
            self.running[call.label] += 1
            return call

    def _finish(self, call: _Call) -> bool:
        """False when nobody waits for the call: another thread has taken this one's place."""
        with self.changed:
            is_awaited = call.state == "running"
            call.state = "done"
            self.running[call.label] -= 1
            self.running += Counter()  # drops zeroes
            if is_awaited:
                self.idle += 1
                return True
            self.abandoned[call.label] -= 1
            self.abandoned += Counter()  # drops zeroes
        _log.info("abandoned_tool_ended", extra={"tool": call.label})
        return False

    def give_up(self, call: _Call) -> None:
        """Nobody waits for the call any more. Not begun: it never will. Running: it goes on without a place in the pool."""
        with self.changed:
            if call.state == "queued":
                call.state = "dropped"
                self.queue.remove(call)
                return
            if call.state != "running":
                return
            call.state = "abandoned"
            self.abandoned[call.label] += 1
            self.threads -= 1
            if len(self.queue) > self.idle:
                with contextlib.suppress(RuntimeError):  # then the queue waits for a thread that becomes free
                    self._start_thread()
            still_running = self.abandoned.total()
        _log.warning("tool_abandoned", extra={"tool": call.label, "abandoned": still_running})


class ToolThreads:
    """Runs sync functions for coroutines: at most `max_threads` at once per nesting depth, the others wait their turn."""

    def __init__(self, max_threads: int = MAX_THREADS, *, linger_ms: int = LINGER_MS) -> None:
        self._max_threads = max_threads
        self._linger_ms = linger_ms
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._pools: dict[int, _Pool] = {}

    async def call(self, label: str, function: Callable[[], R], lingers: Callable[[], bool] | None = None) -> R:
        """Run `function` in a thread and return or raise what it does; SystemExit and KeyboardInterrupt become a ToolError.

        The function sees the caller's context variables. Cancelling the coroutine returns at once: a function that has not
        begun never will, one that runs goes on as `abandoned`, and its outcome is dropped. Where `lingers` says so then, one
        that runs is waited for first, up to `linger_ms`. `label` names it in the thread's name, in the log and in
        :meth:`abandoned`.
        """
        context = contextvars.copy_context()
        depth = _depth.get()
        context.run(_depth.set, depth + 1)
        pool = self._pool(depth)
        call = _Call(label, function, context, asyncio.get_running_loop().create_future())
        pool.submit(call)
        try:
            outcome = await asyncio.shield(call.future)  # which itself stays as it is when this is cancelled
        except asyncio.CancelledError:
            try:
                if call.state == "running" and lingers is not None and lingers():
                    await asyncio.wait((call.future,), timeout=self._linger_ms / 1000)  # ended by a second cancellation
            finally:
                pool.give_up(call)
            raise
        return cast(R, outcome())

    def abandoned(self) -> dict[str, int]:
        """Calls that still run although nobody waits for them, by label. They end with the process at the latest."""
        return self._sum(lambda pool: pool.abandoned)

    def running(self) -> dict[str, int]:
        """Calls that run now, abandoned or not, by label."""
        return self._sum(lambda pool: pool.running)

    def _sum(self, of: Callable[[_Pool], Counter[str]]) -> dict[str, int]:
        with self._lock:
            pools = list(self._pools.values())
        total = Counter[str]()
        for pool in pools:
            with pool.changed:
                total += of(pool)
        return dict(total)

    def _pool(self, depth: int) -> _Pool:
        if self._pid != os.getpid():  # threads do not survive a fork, and a lock may have been held at that moment
            self._lock, self._pools, self._pid = threading.Lock(), {}, os.getpid()
        with self._lock:
            if depth not in self._pools:
                self._pools[depth] = _Pool(depth, self._max_threads)
            return self._pools[depth]


THREADS = ToolThreads()
"""The process's own, which every tool uses unless it is given another."""
