"""Time and ids of a simulation: read from its loop, drawn from its seed."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

from deuz_workers.testing.virtual.loop import VirtualLoop

EPOCH_MS = 1_800_000_000_000
"""Unix time at which every simulation begins."""


class LoopClock:
    """Implements `Clock` over a virtual loop; one for processes and servers, since what they compare is never each other's."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1_000)

    def unix_ms(self) -> int:
        return EPOCH_MS + self.monotonic_ms()

    async def sleep_ms(self, ms: int) -> None:
        await asyncio.sleep(ms / 1_000)


class DrawnIds:
    """Implements `Ids`: the same ones in every replay of a seed, no two alike, rids growing with time."""

    def __init__(self, chance: random.Random, clock: LoopClock) -> None:
        self._chance = chance
        self._clock = clock
        self._count = 0

    def rid(self) -> UUID:
        self._count += 1
        tail = (self._count << 42) | self._chance.getrandbits(42)
        return UUID(
            int=(self._clock.unix_ms() << 80) | (7 << 76) | ((tail >> 62 & 0xFFF) << 64) | (2 << 62) | (tail & (1 << 62) - 1)
        )

    def commit_id(self) -> UUID:
        return UUID(int=self._chance.getrandbits(128), version=4)

    def token(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"
