"""What a stream is over: a run that this process executes itself, or one that workers execute."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from deuz_workers.app.results import AgentResult
from deuz_workers.app.stream_events import Missed
from deuz_workers.ports.live import LiveSubscription, OnParts
from deuz_workers.ports.output import OutputType

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz

Named = Callable[[str], Awaitable[None]]
"""Told the id of the run that a start gave: another one than was asked for, where an idempotency key was known."""


class EmbeddedSource:
    """A run that is executed on the loop of its reader. `work` does it, `owned`: the application ends with the stream."""

    def __init__(
        self,
        app: Deuz,
        scope: str,
        run_id: str,
        agent: str,
        work: Callable[[Named], Awaitable[AgentResult[Any]]],
        *,
        owned: bool,
    ) -> None:
        self.scope = scope
        self.run_id = run_id
        self.agent = agent
        self._app = app
        self._work = work
        self._owned = owned
        self._subscription: LiveSubscription | None = None

    def output_type(self) -> OutputType | None:
        return self._app.output_type(self.agent)

    async def run(self, on_parts: OnParts, missed: Callable[[Missed], None]) -> AgentResult[Any]:
        hub = self._app.live.hub

        async def named(run_id: str) -> None:
            if run_id != self.run_id and self._subscription is not None:
                await self._subscription.close()
                self.run_id = run_id
                self._subscription = await hub.subscribe(self.scope, run_id, on_parts)

        self._subscription = await hub.subscribe(self.scope, self.run_id, on_parts)
        return await self._work(named)

    async def trail(self, has_ended: Callable[[], bool]) -> None:
        """What was put stands in the queue of this loop."""
        await asyncio.sleep(0)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()
        if self._owned:
            await self._app.aclose()
