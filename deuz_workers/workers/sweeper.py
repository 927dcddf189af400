"""The sweep of a pool of workers: for each queue one pass at a time over all processes, once per interval.

A queue holds a short window of doorbells, so that a backlog is rows and not messages that are rung again and again
(architecture D13): a pass takes as many rows as the window has room for. Queues that no worker takes from are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from deuz_workers.core.unclean_ends import quarantine_queue
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.sweep import sweep_pass
from deuz_workers.errors import DeuzError
from deuz_workers.ports.leases import Lease

LEAST = 16
"""Rows that a pass takes although the window is full: under a load that never lets it empty, a lost doorbell is found too."""
FULL_WINDOWS = 4
"""From here on nothing is added: what is rung now would only be taken after everything that waits already."""

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
        on_suspicious: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`waiting`: doorbells that are in a queue, None if nobody knows. `window`: how many the sweep lets it have.

        `on_suspicious`: called when runs were rung that have to be executed alone.
        """
        self._gear = gear
        self._queues = queues
        self._waiting = waiting
        self._interval_ms = interval_ms
        self._window = window
        self._on_suspicious = on_suspicious
        self._outage = False

    async def run(self) -> None:
        """Pass at once, then whenever the interval is over and no other process was faster."""
        while True:
            try:
                for queue in self._queues:
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
            await self._gear.clock.sleep_ms(self._interval_ms)

    async def sweep(self, queue: str) -> int:
        """Ring what is due in `queue` and its quarantine queue, unless another process did within the interval.

        Returns how many were rung. Raises what store and leases raise.
        """
        # Its lease is never given back: it lapses when the next pass is due, and whoever comes first then has it. `force`: a
        # memory that knows no earlier pass may let two run, which costs a look at some rows.
        gear = self._gear
        claim = await gear.leases.acquire(f"sweep:{queue}", gear.ids.token(), self._interval_ms, force=True)
        if not isinstance(claim, Lease):
            return 0
        waiting = await self._waiting(queue)
        if waiting is None or waiting >= FULL_WINDOWS * self._window:
            return 0  # what cannot be rung now would only be looked at later for it
        alone = quarantine_queue(queue)
        rung = await sweep_pass(gear, list({queue, alone}), batch=max(LEAST, self._window - waiting))
        if self._on_suspicious is not None and any(bell.queue == alone for bell in rung):
            await self._on_suspicious()
        return len(rung)
