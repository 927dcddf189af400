"""Where live parts of an application go, and where its readers get them."""

from __future__ import annotations

import asyncio

from deuz_workers.live.hub import Both, LiveHub
from deuz_workers.live.redis import RedisLive
from deuz_workers.live.tail import RedisTails
from deuz_workers.ports.live import LiveSink, LiveSource


class LiveChannel:
    """Nothing is connected before somebody reads, or a run of this process has something to tell."""

    def __init__(self, remote: tuple[RedisLive, RedisTails] | None) -> None:
        """`remote`: the way to other processes; None: parts are read in the process that executes the run, or not at all."""
        self.hub = LiveHub()
        """Readers in this process of runs that it executes itself."""
        self.sink: LiveSink = self.hub if remote is None else Both(self.hub, remote[0])
        """For whoever executes runs."""
        self.source: LiveSource = self.hub if remote is None else remote[1]
        """For readers of runs that any process executes."""
        self._writer = None if remote is None else remote[0]

    async def close(self) -> None:
        """What waited to be sent is sent, if the server takes it soon. The next part would connect again."""
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
