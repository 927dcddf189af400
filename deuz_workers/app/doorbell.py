"""The doorbell of an application: drivers in this process, and workers behind the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from deuz_workers.app.bell import BrokerBell, SilentBell
from deuz_workers.core.change import Bell


class Listener(Protocol):
    async def ring(self, bells: Sequence[Bell]) -> None:
        """Look at these runs, as far as they are its own."""
        ...


class AppDoorbell:
    """Rings the drivers that are open in this process, each for its own queues, and `outer` for everybody else."""

    def __init__(self, outer: BrokerBell | SilentBell) -> None:
        self._outer = outer
        self._local: tuple[Listener, ...] = ()

    def add(self, local: Listener) -> None:
        self._local = (*self._local, local)

    def discard(self, local: Listener) -> None:
        self._local = tuple(other for other in self._local if other is not local)

    async def ring(self, bells: Sequence[Bell]) -> None:
        """Ask for a look at these runs; never raises."""
        await self.ring_here(bells)
        await self._outer.ring(bells)

    async def offer(self, bells: Sequence[Bell]) -> tuple[Bell, ...]:
        """Ask for a look as far as the queues have room; the others, for the sweep. Never raises."""
        await self.ring_here(bells)
        return await self._outer.offer(bells)

    async def ring_here(self, bells: Sequence[Bell]) -> None:
        """Ring the drivers in this process alone."""
        for local in self._local:
            await local.ring(bells)

    async def has_room(self, queue: str) -> bool:
        """The broker holds fewer doorbells for `queue` than its window."""
        return await self._outer.has_room(queue)

    async def discard_queue(self, queue: str) -> None:
        """`queue` and what waits in it are gone from the broker; never raises."""
        await self._outer.discard_queue(queue)

    async def waiting(self, queue: str) -> int | None:
        """Doorbells that no worker has taken from `queue` yet; None: nobody knows."""
        return await self._outer.waiting(queue)
