"""The sweep of a pool of workers: for each queue one pass at a time over all processes, once per interval.

A queue holds a short window of doorbells (`core.window`), so that a backlog is rows and not messages that are rung again and
again (architecture D13). While more runs wait than there is room for, the process that has the right to pass looks at the queue
several times per interval and fills it up. Queues that no worker takes from are left alone.

Beside it every process looks after what it had to leave as rows itself, such as the next step of a run whose queue was full:
until nothing more waits it looks for room, first after a moment, and feeds what is entitled to it. Nobody needs the right to
pass for that. Should the process die, the next pass finds the rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeVar

from deuz_workers.core.change import Bell
from deuz_workers.core.unclean_ends import quarantine_queue
from deuz_workers.core.window import Look, Window
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.sweep import feed, sweep_pass, take
from deuz_workers.errors import DeuzError
from deuz_workers.ports.leases import Lease

LOOKS = 8
"""At a queue per interval, while more waits than it has room for: the slots of a step of an eighth are never idle for long."""
FIRST_LOOK_MS = 5
"""After a run was left as a row; the next look comes twice as late, up to an eighth of the interval."""
APART_MS = 10
"""Between two feedings outside the passes, over all processes, at least."""
APART_TIMES = 4
"""As many times as the last feeding took, if that is more: feeding keeps the store busy a fifth of the time at most."""

Fed = Literal["fed", "empty", "full", "away"]
"""Of a queue with room: all of it was given away, or nothing more waits. `full`: none was free, or somebody else has just fed
it; `away`: nobody can be rung, which the passes look after."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Ringing(Protocol):
    async def __call__(
        self, gear: Gear, queues: Sequence[str] | None = None, *, batch: int, spare: int = 0
    ) -> tuple[Bell, ...]:
        """See `sweep_pass`."""
        ...


class Looking(Protocol):
    async def __call__(self, queue: str, *, size: int | None = None, apart_ms: int = 0) -> Look | None:
        """See `BrokerBell.look`."""
        ...


class Sweeper:
    """Passes from the start of the process on, until `run` is cancelled.

    Events: ``sweep_unreachable`` (`error`, once per outage), ``sweep_reachable``, ``sweep_failed`` (`error`, a defect).
    """

    def __init__(
        self,
        gear: Gear,
        queues: Sequence[str],
        look: Looking,
        *,
        interval_ms: int,
        window: int,
        most: int | None = None,
        on_suspicious: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`look`: at what waits in a queue, None if nobody knows. `window`: what it holds at least, and up to `most` while that
        is taken faster than it looks; None: never more.

        `on_suspicious`: called when runs were rung that have to be executed alone.
        """
        self._gear = gear
        self._look = look
        self._interval_ms = interval_ms
        self._queues = tuple(queues)
        self._windows = {queue: Window(window, most or window) for queue in queues}
        for queue in map(quarantine_queue, queues):
            self._windows.setdefault(queue, Window(window, window))
        self._left = {queue: asyncio.Event() for queue in self._windows}
        self._on_suspicious = on_suspicious
        self._outage = False
        self._loop = asyncio.get_running_loop()

    def leave(self, queues: Collection[str]) -> None:
        """Runs of these queues wait as rows now. From any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, tuple(queues))

    async def run(self) -> None:
        """Pass at once, then whenever the interval is over and no other process was faster; and look after what is left."""
        await asyncio.gather(*map(self._go_on, self._queues), self.attend())

    async def attend(self) -> None:
        """Feed queues of which this process left runs as rows; without passes."""
        await asyncio.gather(*map(self._attend, self._left))

    def _note(self, queues: Collection[str]) -> None:
        for queue in queues:
            if queue in self._left:
                self._left[queue].set()

    async def _go_on(self, queue: str) -> None:
        while True:
            await self._try(self.sweep(queue))
            await self._gear.clock.sleep_ms(self._interval_ms // LOOKS if self._windows[queue].is_short else self._interval_ms)

    async def _attend(self, queue: str) -> None:
        left, longest_ms = self._left[queue], max(FIRST_LOOK_MS, self._interval_ms // LOOKS)
        while True:
            await left.wait()
            pause_ms, apart_ms, found = FIRST_LOOK_MS, APART_MS, "full"
            while found in ("fed", "full") or left.is_set():
                await self._gear.clock.sleep_ms(pause_ms)
                left.clear()
                began_ms = self._gear.clock.monotonic_ms()
                found = await self._try(self.feed(queue, apart_ms))
                pause_ms = min(longest_ms, 2 * pause_ms)
                if found == "fed":
                    took_ms = self._gear.clock.monotonic_ms() - began_ms
                    pause_ms = min(longest_ms, max(FIRST_LOOK_MS, APART_TIMES * took_ms))
                    apart_ms = max(APART_MS, pause_ms)

    async def _try(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What it returns; None if a server is away, which is told once per outage."""
        try:
            done = await work
        except DeuzError as error:
            if not self._outage:
                log.warning("sweep_unreachable error=%s", error.code)
            self._outage = True
        except Exception as error:  # noqa: BLE001 - the process goes on without this pass, the next one comes anyway
            log.error("sweep_failed error=%s", type(error).__name__)
        else:
            if self._outage:
                log.info("sweep_reachable")
            self._outage = False
            return done
        return None

    async def sweep(self, queue: str) -> int:
        """Ring what is due in `queue` and its quarantine queue, unless another process does within this interval.

        While more waits than there is room for, until the interval is over. Returns how many of `queue` were rung for. Raises
        what store and leases raise.
        """
        # Its lease is never given back: it lapses when the next pass is due, and whoever comes first then has it. `force`: a
        # memory that knows no earlier pass may let two run, which costs a look at some rows.
        gear, window = self._gear, self._windows[queue]
        claim = await gear.leases.acquire(f"sweep:{queue}", gear.ids.token(), self._interval_ms, force=True)
        if not isinstance(claim, Lease):
            return 0
        between_ms = self._interval_ms // LOOKS
        until_ms = gear.clock.monotonic_ms() + self._interval_ms - between_ms
        alone = quarantine_queue(queue)
        if alone != queue:
            await self._pass(alone, feed)
        rung = await self._pass(queue, sweep_pass)
        while window.is_short and between_ms > 0 and gear.clock.monotonic_ms() < until_ms:
            await gear.clock.sleep_ms(between_ms)
            rung += await self._pass(queue, sweep_pass)
        return rung

    async def feed(self, queue: str, apart_ms: int = APART_MS) -> Fed:
        """Ring what is entitled to the room in `queue`. Raises what store and leases raise."""
        look = await self._look(queue, apart_ms=apart_ms)
        if look is None:
            return "away"
        if not look.may_feed or look.room == 0:
            return "full"
        taken = await take(self._gear, [queue], batch=look.room, spare=look.spare)
        rung = await self._rung(queue, look, taken.bells)
        return "fed" if taken.held or rung >= look.room else "empty"

    async def _pass(self, queue: str, ring: Ringing) -> int:
        """One look; how many were rung for, 0 while the window is full."""
        window = self._windows[queue]
        look = await self._look(queue)
        if look is not None and (size := window.fit(look)) != look.size:
            look = await self._look(queue, size=size)
        if look is None:
            return 0
        window.see(look)
        rung = await self._ring(queue, look, ring)
        if look.room > 0:
            window.fed(rung)
        return rung

    async def _ring(self, queue: str, look: Look, ring: Ringing) -> int:
        """How many were rung for; what cannot be rung is not looked at for it."""
        rung = await ring(self._gear, [queue], batch=look.room, spare=look.spare) if look.room or look.spare else ()
        return await self._rung(queue, look, rung)

    async def _rung(self, queue: str, look: Look, rung: Sequence[Bell]) -> int:
        if self._on_suspicious is not None and queue == quarantine_queue(queue) and (rung or look.waiting):
            await self._on_suspicious()
        return sum(bell.queue == queue for bell in rung)
