"""How long the event loop of a test kept others waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

LOOK_S = 0.01


@dataclass(slots=True)
class LoopLag:
    longest_s: float = 0.0
    """The longest that a task which sleeps for `LOOK_S` again and again was away."""


@asynccontextmanager
async def loop_lag() -> AsyncGenerator[LoopLag]:
    """Other work of the running loop, until this is left."""
    lag = LoopLag()

    async def other_work() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(LOOK_S)
            lag.longest_s = max(lag.longest_s, time.monotonic() - began)

    beside = asyncio.create_task(other_work())
    try:
        yield lag
    finally:
        beside.cancel()
