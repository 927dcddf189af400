"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio


class FakeClock:
    """Both times start at a fixed moment and move together."""

    def __init__(self, unix_ms: int = 1_750_000_000_000) -> None:
        self._unix_ms = unix_ms
        self._passed_ms = 0

    def advance(self, ms: int) -> None:
        self._passed_ms += ms

    def monotonic_ms(self) -> int:
        return self._passed_ms

    def unix_ms(self) -> int:
        return self._unix_ms + self._passed_ms

    async def sleep_ms(self, ms: int) -> None:
        self.advance(ms)
        await asyncio.sleep(0)
