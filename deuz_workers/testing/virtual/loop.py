"""An event loop whose time jumps and whose order is drawn: the ground that a simulation stands on.

Callbacks of one *lane* run in the order in which they became ready, as asyncio promises to every thread with a loop. Which lane
goes on next is drawn. A process has a lane for its event loop and one for each of its threads. Time passes only when nothing
can run, and then at once to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, cast

T = TypeVar("T")


class StandsStill(AssertionError):
    """Nothing can run and no timer is set, although something is waited for."""


class Lane:
    """One thread of a process, as far as its order goes. `open` False: nothing of it runs before it is opened again."""

    __slots__ = ("dead", "label", "open", "ready")

    def __init__(self, label: str) -> None:
        self.label = label
        self.ready: deque[Call] = deque()
        self.open = True
        self.dead = False
        """Nothing of it will ever run."""


_lane: ContextVar[Lane] = ContextVar("deuz_virtual_lane")


class Call(asyncio.TimerHandle):
    """A callback that waits for its turn, perhaps after a timer."""

    __slots__ = ("_at", "_does", "_given", "_where")

    def __init__(self, does: Callable[..., object] | None, given: tuple[Any, ...], where: Context, at: float) -> None:
        self._does = does
        self._given = given
        self._where = where
        self._at = at

    def cancel(self) -> None:
        self._does = None
        self._given = ()

    def cancelled(self) -> bool:
        return self._does is None

    def when(self) -> float:
        return self._at

    @property
    def where(self) -> Context:
        return self._where

    def run(self) -> None:
        if self._does is not None:
            self._where.run(self._does, *self._given)


class _Task(asyncio.Task[T]):
    """Has a hash that is the same whenever a schedule is replayed, so that sets of tasks have the same order then."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, T], **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.AbstractEventLoop):
    """Implements what coroutines, tasks, futures and timeouts ask of a loop; there is no I/O.

    `steadiness`: how likely a lane goes on for another callback before the next one is drawn, from 0 to below 1.
    """

    def __init__(self, chance: random.Random, *, steadiness: float = 0.0) -> None:
        self._chance = chance
        self._steadiness = steadiness
        self._now = 0.0
        self._timers: list[tuple[float, int, Call]] = []
        self._waiting: list[Lane] = []
        """Lanes that have something ready."""
        self._has_shut = False
        """A lane among them may have been closed or ended."""
        self._at: Lane | None = None
        self._numbers = 0
        self._unfinished: dict[int, _Task[Any]] = {}
        self._closed = False
        self.outside = Lane("outside")
        """Servers, networks, people: everything that no process of ours can take down."""
        self.turns = 0
        """Callbacks that ran."""
        self.failures: list[BaseException] = []
        """What callbacks raised, which nobody else would see."""

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def start(self, lane: Lane, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Begin `work` on `lane`; everything that it begins is on that lane too."""
        where = copy_context()
        where.run(_lane.set, lane)
        return self.create_task(work, name=name or lane.label, context=where)

    @staticmethod
    def here() -> Lane | None:
        """The lane of the calling code, None outside of any."""
        return _lane.get(None)

    def close_lane(self, lane: Lane) -> None:
        """Nothing of `lane` runs until it is opened again; what becomes ready meanwhile waits."""
        lane.open = False
        self._has_shut = True

    def open_lane(self, lane: Lane) -> None:
        lane.open = True
        if lane.ready and not lane.dead and lane not in self._waiting:
            self._waiting.append(lane)

    def end_lane(self, lane: Lane) -> None:
        """Nothing of it runs any more, not even code that would clean up."""
        lane.dead = True
        lane.ready.clear()
        self._has_shut = True

    # -- what runs -----------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], *, most_turns: int = 1_000_000) -> T:
        """Go on until `work`, begun outside of every process, has ended; returns or raises what it does.

        Raises `StandsStill`; AssertionError after `most_turns`, or for a callback that raised.
        """
        asyncio._set_running_loop(self)  # noqa: SLF001 - documented for implementations of loops
        try:
            main = self.start(self.outside, work, "main")
            while not main.done():
                self._turn()
                if self.turns > most_turns:
                    raise AssertionError(f"{most_turns} callbacks at {self._now:.3f} s, and no end")
            return main.result()
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001

    def _turn(self) -> None:
        lane = self._next_lane()
        while lane is None:
            self._advance()
            lane = self._next_lane()
        call = lane.ready.popleft()
        if not lane.ready:
            self._waiting.remove(lane)
        self.turns += 1
        try:
            call.run()
        except Exception as error:  # noqa: BLE001 - a defect of a callback: the schedule has failed
            self.failures.append(error)

    def _next_lane(self) -> Lane | None:
        waiting = self._waiting
        if self._has_shut:
            self._has_shut = False
            waiting[:] = [lane for lane in waiting if lane.open and not lane.dead]
        if not waiting:
            return None
        if self._at is None or self._at not in waiting or self._chance.random() >= self._steadiness:
            self._at = waiting[0] if len(waiting) == 1 else waiting[self._chance.randrange(len(waiting))]
        return self._at

    def _advance(self) -> None:
        """Time jumps to the next timer, and what is due by then becomes ready."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise StandsStill(f"nothing can run after {self._now:.3f} s")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._make_ready(heapq.heappop(timers)[2])

    def _make_ready(self, call: Call) -> None:
        if call.cancelled():
            return
        lane = call.where.get(_lane, self.outside)
        if lane.dead:
            return
        if not lane.ready and lane.open:
            self._waiting.append(lane)
        lane.ready.append(call)

    # -- what asyncio asks of a loop -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Call:
        call = Call(callback, args, copy_context() if context is None else context, self._now)
        self._make_ready(call)
        return call

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Call:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Call:
        call = Call(callback, args, copy_context() if context is None else context, when)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, call))
        return call

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        self._numbers += 1
        number = self._numbers
        task = _Task(number, cast(Coroutine[Any, Any, T], coro), loop=self, name=name, context=context)
        self._unfinished[number] = task
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.pop(hash(task), None)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """At once: what is ours and takes long has no order of its own in a simulation."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            done.set_exception(error)
        return done

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What asyncio says about tasks and futures that nobody looked at: in a process that died, that is most of them."""

    def close(self) -> None:
        """Every coroutine that never ended is closed; whatever it still wants to do finds a dead process."""
        self._closed = True
        for task in list(self._unfinished.values()):
            coroutine = task.get_coro()
            for _ in range(8):
                try:
                    coroutine.close()
                except BaseException:  # noqa: BLE001, S112 - it has no say any more
                    continue
                break
        self._unfinished.clear()
        self._timers.clear()
        self._waiting.clear()
