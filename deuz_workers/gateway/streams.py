"""The recorders of a gateway process: one for each run that somebody reads, however many do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from deuz_workers.app.access import Access
from deuz_workers.app.agent_stream import AgentStream
from deuz_workers.app.below import reports
from deuz_workers.app.client_source import Begun, ClientSource
from deuz_workers.app.ui_journal import StoredJournal
from deuz_workers.app.ui_legs import StoredLeg
from deuz_workers.app.ui_recorder import UiRecorder, is_end
from deuz_workers.core.change import Head
from deuz_workers.gateway.early import EarlyParts


class Streams:
    """Belongs to one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._recorders: dict[tuple[str, str], UiRecorder] = {}

    @property
    def recorders(self) -> int:
        """Under way now."""
        return len(self._recorders)

    def journal(self, head: Head) -> StoredJournal:
        """What readers of the run were shown; by its internal key, which no other run ever has."""
        return StoredJournal(self._access.store, head.scope, str(head.rid))

    async def is_recorded(self, head: Head) -> bool:
        """All there is to show of the run is in its journal."""
        if (head.scope, head.run_id) in self._recorders or not await reports(self._access.store, head):
            return False
        last = await self.journal(head).last()
        if last is None or not is_end(last.body):
            return False
        part: dict[str, Any] = json.loads(last.body)
        return part.get("revision") == head.revision

    async def early(self, scope: str, run_id: str) -> EarlyParts:
        """What the run will show, before anything makes it begin or go on; for `follow`, or to be closed."""
        assert self._access.live is not None
        parts = EarlyParts(self._access.live, scope, run_id)
        await parts.open()
        return parts

    async def follow(self, head: Head, early: EarlyParts, since: int) -> None:
        """Record the leg that began behind revision `since`, for readers who come later."""
        found = self._recorders.get((head.scope, head.run_id))
        if found is not None and not found.is_over:  # somebody reads it already
            await early.close()
            return

        async def begin() -> Begun:
            return Begun(head.run_id, since)

        source = ClientSource(self._access, early, head.scope, head.run_id, head.agent, begin)
        self.recorder(head, AgentStream(source))

    def recorder(self, head: Head, stream: AgentStream | None = None) -> UiRecorder:
        """The one that is under way, or a new one. It goes on to the end of the leg, whoever reads."""
        key = (head.scope, head.run_id)
        found = self._recorders.get(key)
        if found is None or found.is_over:
            made = UiRecorder(StoredLeg(self._access, head.scope, head.run_id, stream), self.journal(head))
            self._recorders[key] = made

            def forget(_: asyncio.Task[None]) -> None:
                if self._recorders.get(key) is made:
                    del self._recorders[key]

            made.start().add_done_callback(forget)
            return made
        return found

    async def close(self) -> None:
        """Nothing is recorded any more; whoever opens a stream again completes it."""
        await asyncio.gather(*(recorder.close() for recorder in tuple(self._recorders.values())))
