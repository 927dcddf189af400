"""An application whose model writes the time: what a reader is shown says how long it was under way."""

from __future__ import annotations

import asyncio
import time

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.providers.mock import MockModel


class Ticking(MockModel):
    """Writes the nanoseconds of the machine's monotonic clock, which all its processes share.

    The prompt says how often a second, and for how many seconds.
    """

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        assert on_text is not None
        per_second, seconds = map(float, request.messages[0].text.split())
        written: list[str] = []
        begin = time.monotonic()
        for tick in range(round(per_second * seconds)):
            await asyncio.sleep(max(0.0, begin + tick / per_second - time.monotonic()))
            written.append(f"{time.monotonic_ns()} ")
            on_text(written[-1])
        return await MockModel(["".join(written)]).call(request)


app = Deuz([Agent("ticker", model=Ticking(["unused"]))])
