"""The real clock and real ids. No other file of the package reads the wall clock or makes random numbers for ids."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from uuid import UUID

from deuz_workers.ports.runtime import Clock

_TAIL_BITS = 74
"""Of a UUIDv7 after the 48 of the time, the 4 of the version and the 2 of the variant."""
_STEP_BITS = 32
"""A second id of the same millisecond follows the one before it by a random step of up to this many bits."""


class SystemClock:
    """The clocks of this machine."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


class SystemIds:
    """Ids that nobody can guess; usable from any thread, and in forked children of the process that made it.

    `clock` dates the UUIDv7s (RFC 9562, monotonic random method); they grow within a process even if the clock goes back.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._rids: dict[int, _Rids] = {}

    def rid(self) -> UUID:
        # Keyed by process id, so that a child continues neither its parent's sequence nor a lock that was held at the fork.
        mine = self._rids.get(os.getpid()) or self._rids.setdefault(os.getpid(), _Rids())
        return mine.after(self._clock.unix_ms())

    def commit_id(self) -> UUID:
        return UUID(bytes=secrets.token_bytes(16), version=4)

    def token(self) -> str:
        return secrets.token_hex(16)


class _Rids:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = 0

    def after(self, unix_ms: int) -> UUID:
        """A UUIDv7 of that millisecond, or of a later one where that is needed to be greater than all before it."""
        with self._lock:
            fresh = (unix_ms << _TAIL_BITS) | secrets.randbits(_TAIL_BITS)
            if unix_ms <= self._newest >> _TAIL_BITS:
                fresh = self._newest + 1 + secrets.randbits(_STEP_BITS)  # an overflow of the tail is the next millisecond
            self._newest = fresh
        tail = fresh & ((1 << _TAIL_BITS) - 1)
        high = (fresh >> _TAIL_BITS) << 16 | 7 << 12 | tail >> 62
        return UUID(int=high << 64 | 0b10 << 62 | tail & ((1 << 62) - 1))
