"""Queues of doorbells, as lossy as a broker may be."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from deuz_workers.core.change import Bell
from deuz_workers.core.window import Look
from deuz_workers.testing.virtual.network import ask

if TYPE_CHECKING:
    from deuz_workers.testing.virtual.process import VirtualProcess
    from deuz_workers.testing.virtual.world import World


class Broker:
    """First in, first out for each queue. A message that a process has taken is nowhere else."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queues: dict[str, deque[Bell]] = {}
        self._takers: dict[str, deque[tuple[VirtualProcess, asyncio.Future[Bell]]]] = {}
        self.delivered = 0

    def count(self, queue: str) -> int:
        """Doorbells that nobody has taken yet."""
        return len(self._queues.get(queue, ()))

    def look(self, queue: str) -> Look:
        """What is in the queue now."""
        return Look(self.count(queue), self._world.window)

    def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        """What fits into the windows is in the queues, the first ones; the others. One moment.

        Of what was accepted some is lost, some comes twice, some late; what comes late may find the window full, and is lost.
        """
        fate, faults = self._world.fate, self._world.fate.faults
        left: list[Bell] = []
        for bell in bells:
            if any(other.queue == bell.queue for other in left):
                left.append(bell)
            elif fate.happens(faults.lost_bells):
                continue
            elif fate.happens(faults.late_bells):
                self._world.outside_later(fate.chance.uniform(0.05, 3.0), self._push, bell, spare)
            elif not self._push(bell, spare):
                left.append(bell)
            if fate.happens(faults.doubled_bells):
                self._world.outside_later(fate.delay_s(), self._push, bell, spare)
        return tuple(left)

    def _push(self, bell: Bell, spare: bool) -> bool:
        """It is in its queue, or with a process that waits for one; False: there is no room."""
        takers = self._takers.get(bell.queue)
        while takers:
            process, taker = takers.popleft()
            if process.is_alive and not taker.done():
                self.delivered += 1
                taker.set_result(bell)
                return True
        look = self.look(bell.queue)
        if look.room + (look.spare if spare else 0) == 0:
            return False
        self._queues.setdefault(bell.queue, deque()).append(bell)
        if self.count(bell.queue) > self._world.window:
            self._world.complain(f"{bell.queue} holds {self.count(bell.queue)} doorbells, its window is {self._world.window}")
        return True

    async def take(self, process: VirtualProcess) -> Bell:
        """The bell that has waited longest in the queue of `process`."""
        queue = self._queues.get(process.role.queue)
        if queue:
            self.delivered += 1
            return queue.popleft()
        taker: asyncio.Future[Bell] = asyncio.get_running_loop().create_future()
        self._takers.setdefault(process.role.queue, deque()).append((process, taker))
        return await taker


class ProcessBell:
    """The `Doorbell` of one process, over the network."""

    def __init__(self, process: VirtualProcess, *, is_sweep: bool = False) -> None:
        self._process = process
        self._is_sweep = is_sweep

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        if not bells:
            return ()
        process, world = self._process, self._process.world

        async def push() -> tuple[Bell, ...]:
            return world.broker.offer(bells, spare=spare) if self._is_sweep or not world.only_sweeps else ()

        return await ask(process, "ring", push, unreachable=lambda: None, lost=lambda: None)

    def leave(self, queues: Collection[str]) -> None:
        self._process.leave(queues)

    async def has_room(self, queue: str) -> bool:
        return self._process.world.broker.look(queue).room > 0
