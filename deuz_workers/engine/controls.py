"""Brakes and rates as this process knows them: read when something is about to begin, and then for half a second used by all.

So a brake holds everywhere within half a second and the time that one read takes, while a turn asks the store nothing more.
"""

from __future__ import annotations

import asyncio

from deuz_workers.core.controls import Controls
from deuz_workers.ports.runtime import Clock
from deuz_workers.ports.store import RunStore

FRESH_MS = 500
"""Of the second in which a brake holds everywhere; the rest is for the read and the commit behind it."""


class KnownControls:
    """Of one process and loop."""

    def __init__(self) -> None:
        self._controls: Controls | None = None
        self._read_ms = 0
        self._reading: asyncio.Lock | None = None

    async def read(self, store: RunStore, clock: Clock) -> Controls:
        """As of half a second ago at the earliest; one of many callers asks the store. Raises `StoreUnavailableError`."""
        if (known := self._fresh(clock)) is not None:
            return known
        if self._reading is None:
            self._reading = asyncio.Lock()
        async with self._reading:
            if (known := self._fresh(clock)) is not None:
                return known
            asked_ms = clock.monotonic_ms()
            self._controls = read = await store.controls()
            self._read_ms = asked_ms
            return read

    def store_ms(self, clock: Clock) -> int:
        """Unix time by the store's clock, as far as that was ever read, else by this process'."""
        if self._controls is None:
            return clock.unix_ms()
        return self._controls.now_ms + clock.monotonic_ms() - self._read_ms

    def _fresh(self, clock: Clock) -> Controls | None:
        is_fresh = clock.monotonic_ms() - self._read_ms < FRESH_MS
        return self._controls if is_fresh else None
