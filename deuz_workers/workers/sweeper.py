"""The sweep of a pool of workers: one pass at a time over all processes, once per interval."""

from __future__ import annotations

import logging

from deuz_workers.engine.gear import Gear
from deuz_workers.engine.sweep import sweep_pass
from deuz_workers.errors import DeuzError
from deuz_workers.ports.leases import Lease

KEY = "sweep"
"""Its lease is never given back: it lapses when the next pass is due, and whoever comes first then has it."""

log = logging.getLogger(__name__)


class Sweeper:
    """Passes from the start of the process on, until `run` is cancelled.

    Events: ``sweep_unreachable`` (`error`, once per outage), ``sweep_reachable``, ``sweep_failed`` (`error`, a defect).
    """

    def __init__(self, gear: Gear, *, interval_ms: int, batch: int) -> None:
        self._gear = gear
        self._interval_ms = interval_ms
        self._batch = batch
        self._outage = False

    async def run(self) -> None:
        """Pass at once, then whenever the interval is over and no other process was faster."""
        while True:
            try:
                await self.sweep()
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

    async def sweep(self) -> int:
        """Ring everything that is due, unless another process did within the interval; returns how many were rung.

        Raises what store and leases raise.
        """
        # `force`: a memory that knows no earlier pass may let two run, which costs a look at some rows.
        claim = await self._gear.leases.acquire(KEY, self._gear.ids.token(), self._interval_ms, force=True)
        if not isinstance(claim, Lease):
            return 0
        rang = found = len(await sweep_pass(self._gear, batch=self._batch))
        while found >= self._batch:
            found = len(await sweep_pass(self._gear, batch=self._batch))
            rang += found
        return rang
