"""The doorbell of an application: drivers in this process, and workers behind the broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from deuz_workers.app.bell import BrokerBell, SilentBell
from deuz_workers.core.change import Bell
from deuz_workers.core.window import Look


class Listener(Protocol):
    async def ring(self, bells: Sequence[Bell]) -> None:
        """Look at these runs, as far as they are its own."""
        ...


class AppDoorbell:
    """Rings the drivers that are open in this process, each for its own queues, and `outer` for everybody else."""

    def __init__(self, outer: BrokerBell | SilentBell) -> None:
        self._outer = outer
        self._local: tuple[Listener, ...] = ()
        self.feeders: list[Callable[[Collection[str]], None]] = []
        """Called with the queues of runs that were left as rows."""

    def add(self, local: Listener) -> None:
        self._local = (*self._local, local)

    def discard(self, local: Listener) -> None:
        self._local = tuple(other for other in self._local if other is not local)

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        """Ask for a look as far as the queues have room; the others, for the sweep. Never raises."""
        await self.ring_here(bells)
        return await self._outer.offer(bells, spare=spare)

    def leave(self, queues: Collection[str]) -> None:
        """Runs of these queues wait as rows: whoever feeds them in this process looks as soon as there may be room."""
        for feeder in self.feeders:
            feeder(queues)

    async def ring_here(self, bells: Sequence[Bell]) -> None:
        """Ring the drivers in this process alone."""
        for local in self._local:
            await local.ring(bells)

    async def has_room(self, queue: str) -> bool:
        """The broker holds fewer doorbells for `queue` than everybody may put there."""
        return await self._outer.has_room(queue)

    async def discard_queue(self, queue: str) -> None:
        """`queue` and what waits in it are gone from the broker; never raises."""
        await self._outer.discard_queue(queue)

    async def look(self, queue: str, *, size: int | None = None, apart_ms: int = 0) -> Look | None:
        """What waits in `queue` at the broker, see `BrokerBell.look`; None: nobody knows."""
        return await self._outer.look(queue, size=size, apart_ms=apart_ms)
