"""Live parts of a run from before it begins or goes on, kept until its recorder takes them."""

from __future__ import annotations

from collections.abc import Sequence

from deuz_workers.core.live import LivePart
from deuz_workers.ports.live import LiveSource, LiveSubscription, OnParts


class EarlyParts:
    """A `LiveSource` with one reader, subscribed to ahead of it."""

    def __init__(self, live: LiveSource, scope: str, run_id: str) -> None:
        self._live = live
        self._name = (scope, run_id)
        self._held: list[LivePart] = []
        self._on_parts: OnParts | None = None
        self._subscription: LiveSubscription | None = None

    async def open(self) -> None:
        """Every part that is put from now on is kept."""
        self._subscription = await self._live.subscribe(*self._name, self._take)

    async def subscribe(self, scope: str, run_id: str, on_parts: OnParts) -> LiveSubscription:
        """With what came before."""
        assert (scope, run_id) == self._name
        assert self._subscription is not None
        self._on_parts = on_parts
        if self._held:
            on_parts(self._held)
            self._held = []
        return self._subscription

    async def close(self) -> None:
        """Nobody wants them."""
        if self._subscription is not None:
            await self._subscription.close()

    def _take(self, parts: Sequence[LivePart]) -> None:
        if self._on_parts is None:
            self._held.extend(parts)
        else:
            self._on_parts(parts)
