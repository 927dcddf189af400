"""The sweep of a pool of workers: for each queue one pass at a time over all processes, once per interval.

A queue holds a short window of doorbells (`core.window`), so that a backlog is rows and not messages that are rung again and
again (architecture D13). While more runs wait than there is room for, the process that has the right to pass looks at the queue
several times per interval and fills it up. Queues that no worker takes from are left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from deuz_workers.core.unclean_ends import quarantine_queue
from deuz_workers.core.window import Window
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.sweep import sweep_pass
from deuz_workers.errors import DeuzError
from deuz_workers.ports.leases import Lease

LEAST = 16
"""Places beside a full window, per interval: for runs at work whose doorbell was lost, and for the first run of each scope of
which nothing runs. A window that runs at work never let empty would shut both out."""
FULL_WINDOWS = 4
"""From here on nothing is added: what is rung now would only be taken after everything that waits already."""
LOOKS = 8
"""At a queue per interval, while more waits than it has room for: the slots of a step of an eighth are never idle for long."""

log = logging.getLogger(__name__)


class Sweeper:
    """Passes from the start of the process on, until `run` is cancelled.

    Events: ``sweep_unreachable`` (`error`, once per outage), ``sweep_reachable``, ``sweep_failed`` (`error`, a defect).
    """

    def __init__(
        self,
        gear: Gear,
        queues: Sequence[str],
        waiting: Callable[[str], Awaitable[int | None]],
        *,
        interval_ms: int,
        window: int,
        most: int | None = None,
        on_suspicious: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`waiting`: doorbells that are in a queue, None if nobody knows. `window`: how many the sweep lets it have, and up to
        `most` while they are taken faster than it looks; None: never more.

        `on_suspicious`: called when runs were rung that have to be executed alone.
        """
        self._gear = gear
        self._waiting = waiting
        self._interval_ms = interval_ms
        self._windows = {queue: Window(window, most or window) for queue in queues}
        self._on_suspicious = on_suspicious
        self._outage = False

    async def run(self) -> None:
        """Pass at once, then whenever the interval is over and no other process was faster."""
        await asyncio.gather(*map(self._go_on, self._windows))

    async def _go_on(self, queue: str) -> None:
        while True:
            try:
                await self.sweep(queue)
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
            await self._gear.clock.sleep_ms(self._interval_ms // LOOKS if self._windows[queue].is_short else self._interval_ms)

    async def sweep(self, queue: str) -> int:
        """Ring what is due in `queue` and its quarantine queue, unless another process does within this interval.

        While more waits than there is room for, until the interval is over. Returns how many were rung. Raises what store and
        leases raise.
        """
        # Its lease is never given back: it lapses when the next pass is due, and whoever comes first then has it. `force`: a
        # memory that knows no earlier pass may let two run, which costs a look at some rows.
        gear, window = self._gear, self._windows[queue]
        claim = await gear.leases.acquire(f"sweep:{queue}", gear.ids.token(), self._interval_ms, force=True)
        if not isinstance(claim, Lease):
            return 0
        between_ms = self._interval_ms // LOOKS
        until_ms = gear.clock.monotonic_ms() + self._interval_ms - between_ms
        rung = await self._pass(queue, window, LEAST)
        while window.is_short and between_ms > 0 and gear.clock.monotonic_ms() < until_ms:
            await gear.clock.sleep_ms(between_ms)
            rung += await self._pass(queue, window, 0)
        return rung

    async def _pass(self, queue: str, window: Window, spare: int) -> int:
        """One look, with `spare` places beside the window; 0: nothing is done while it is full."""
        waiting = await self._waiting(queue)
        if waiting is None:
            return 0
        room = window.look(waiting)
        if (room == 0 and spare == 0) or waiting >= FULL_WINDOWS * window.size:
            return 0  # what cannot be rung now would only be looked at later for it
        alone = quarantine_queue(queue)
        rung = await sweep_pass(self._gear, list({queue, alone}), batch=room, spare=spare)
        if room > 0:
            window.fed(sum(bell.queue == queue for bell in rung))
        if self._on_suspicious is not None and any(bell.queue == alone for bell in rung):
            await self._on_suspicious()
        return len(rung)
