"""The doorbell of an application: drivers in this process, and workers behind the broker."""

from __future__ import annotations

from collections.abc import Sequence

from deuz_workers.app.bell import BrokerBell, SilentBell
from deuz_workers.core.change import Bell
from deuz_workers.ports.runtime import Doorbell


class AppDoorbell:
    """Rings the drivers that are open in this process, each for its own queues, and `outer` for everybody else."""

    def __init__(self, outer: BrokerBell | SilentBell) -> None:
        self._outer = outer
        self._local: tuple[Doorbell, ...] = ()

    def add(self, local: Doorbell) -> None:
        self._local = (*self._local, local)

    def discard(self, local: Doorbell) -> None:
        self._local = tuple(other for other in self._local if other is not local)

    async def ring(self, bells: Sequence[Bell]) -> None:
        """Ask for a look at these runs; never raises."""
        for local in self._local:
            await local.ring(bells)
        await self._outer.ring(bells)

    async def discard_queue(self, queue: str) -> None:
        """`queue` and what waits in it are gone from the broker; never raises."""
        await self._outer.discard_queue(queue)

    async def waiting(self, queue: str) -> int | None:
        """Doorbells that no worker has taken from `queue` yet; None: nobody knows."""
        return await self._outer.waiting(queue)
