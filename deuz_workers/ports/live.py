"""Live parts of runs, from whoever executes them to whoever reads along. Best effort on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from deuz_workers.core.live import LivePart

OnParts = Callable[[Sequence[LivePart]], None]
"""Called on the loop that subscribed; must not wait."""


class LiveSink(Protocol):
    """Where the executor of a run puts parts. Callable from any thread; never waits, never raises."""

    def wants(self, scope: str, run_id: str) -> bool:
        """False: nobody can be listening, so parts need not be made."""
        ...

    def put(self, scope: str, run_id: str, *parts: LivePart) -> None:
        """Readers are told soon, in this order, or some of it is dropped."""
        ...


class LiveSubscription(Protocol):
    @property
    def is_connected(self) -> bool:
        """False: nothing comes at the moment, because the channel is away or there is none."""
        ...

    async def close(self) -> None:
        """Nothing more is delivered."""
        ...


class LiveSource(Protocol):
    async def subscribe(self, scope: str, run_id: str, on_parts: OnParts) -> LiveSubscription:
        """Every part that is put after this returned is delivered, or a part `lost` or `dropped` says that some are not.

        Never raises for a channel that is away.
        """
        ...


class Silence:
    """A `LiveSink` that nobody listens to."""

    def wants(self, scope: str, run_id: str) -> bool:
        """Never."""
        return False

    def put(self, scope: str, run_id: str, *parts: LivePart) -> None:
        """Dropped."""
