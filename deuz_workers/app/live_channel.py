"""Where live parts of an application go, and where its readers get them."""

from __future__ import annotations

from deuz_workers.live.hub import LiveHub
from deuz_workers.ports.live import LiveSink, LiveSource


class LiveChannel:
    """Nothing is connected before somebody reads, or a run of this process has something to tell."""

    def __init__(self) -> None:
        self.hub = LiveHub()
        """Readers in this process of runs that it executes."""
        self.sink: LiveSink = self.hub
        """For whoever executes runs."""
        self.source: LiveSource = self.hub
        """For readers of runs that any process executes."""
