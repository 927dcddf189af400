"""Queues of doorbells, as lossy as a broker may be."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deuz_workers.core.change import Bell

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

    def has_room(self, queue: str) -> bool:
        """The queue is shorter than its window."""
        return self.count(queue) < self._world.window

    def offer(self, bells: Sequence[Bell]) -> tuple[Bell, ...]:
        """Publish what fits into the windows; the others."""
        room = {bell.queue: self._world.window - self.count(bell.queue) for bell in bells}
        rung: list[Bell] = []
        left: list[Bell] = []
        for bell in bells:
            (rung if room[bell.queue] > 0 else left).append(bell)
            room[bell.queue] -= 1
        self.publish(rung)
        return tuple(left)

    def publish(self, bells: Sequence[Bell]) -> None:
        """Some are lost, some come twice, some late."""
        fate, faults = self._world.fate, self._world.fate.faults
        for bell in bells:
            if fate.happens(faults.lost_bells):
                continue
            times = 2 if fate.happens(faults.doubled_bells) else 1
            for _ in range(times):
                late_s = fate.chance.uniform(0.05, 3.0) if fate.happens(faults.late_bells) else fate.delay_s()
                self._world.outside_later(late_s, self._arrive, bell)

    def _arrive(self, bell: Bell) -> None:
        takers = self._takers.get(bell.queue)
        while takers:
            process, taker = takers.popleft()
            if process.is_alive and not taker.done():
                self.delivered += 1
                taker.set_result(bell)
                return
        self._queues.setdefault(bell.queue, deque()).append(bell)

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
    """The `Doorbell` of one process; `heard` says whether the broker still listens to it."""

    def __init__(self, process: VirtualProcess, *, is_sweep: bool = False) -> None:
        self._process = process
        self._is_sweep = is_sweep

    async def ring(self, bells: Sequence[Bell]) -> None:
        if not bells:
            return
        await self._process.point("before ring")
        world = self._process.world
        if self._is_sweep or not world.only_sweeps:
            world.broker.publish(bells)
        await self._process.point("after ring")

    async def offer(self, bells: Sequence[Bell]) -> tuple[Bell, ...]:
        await self._process.point("before ring")
        world = self._process.world
        left = () if world.only_sweeps else world.broker.offer(bells)
        await self._process.point("after ring")
        return left

    async def has_room(self, queue: str) -> bool:
        return self._process.world.broker.has_room(queue)
