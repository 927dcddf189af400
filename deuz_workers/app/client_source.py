"""A stream over a run that workers execute: live parts from the channel, everything that counts from the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deuz_workers.app.access import FIRST_POLL_MS, LONGEST_POLL_MS, POLL_GROWTH, Access
from deuz_workers.app.below import reports
from deuz_workers.app.results import AgentResult, ResultWarning
from deuz_workers.app.stream_events import Missed
from deuz_workers.core.change import Head
from deuz_workers.core.live import LivePart
from deuz_workers.core.live_order import LiveOrder
from deuz_workers.core.receipts import MISSING, fold_receipts
from deuz_workers.errors import DeuzError
from deuz_workers.ports.live import LiveSource, LiveSubscription, OnParts
from deuz_workers.ports.output import OutputType

GAP_MS = 1_000
"""A part that others overtook comes within one interval of its sender, 50 ms, and a busy machine's delay; then it is lost."""
TRAIL_MS = 1_000
"""When the store says that the run has ended, its last parts come within a few intervals of their sender, or never."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What beginning a stream gave: the run, and the revision from which on all of it was subscribed to; None: the reader came
    late, to whatever revision the run is at."""

    run_id: str
    since: int | None = None
    warnings: tuple[ResultWarning, ...] = ()


class ClientSource:
    """`begin` writes what makes the run go on; it is called once the channel is subscribed to."""

    def __init__(
        self, access: Access, live: LiveSource, scope: str, run_id: str, agent: str, begin: Callable[[], Awaitable[Begun]]
    ) -> None:
        self.scope = scope
        self.run_id = run_id
        self.agent = agent
        self._access = access
        self._live = live
        self._begin = begin
        self._inbox: asyncio.Queue[Sequence[LivePart]] = asyncio.Queue()
        self._order = LiveOrder()
        self._heard_end = asyncio.Event()
        self._subscription: LiveSubscription | None = None
        self._pump: asyncio.Task[None] | None = None
        self._tells_end = True
        self._missed: Callable[[Missed], None] = lambda _: None

    def output_type(self) -> OutputType | None:
        return self._access.output_type(self.agent)

    async def run(self, on_parts: OnParts, missed: Callable[[Missed], None]) -> AgentResult[Any]:
        self._missed = missed
        await self._subscribe()
        begun = await self._begin()
        if begun.run_id != self.run_id:
            self.run_id = begun.run_id
            await self._subscribe()
        head = await self._access.head(self.scope, self.run_id)
        self.agent = head.agent
        if begun.since is None:
            self._order.came_at(head.revision)
            self._tells_end = not await reports(self._access.store, head)
            if head.revision:
                missed(Missed("late"))
        else:
            self._order.came_at(begun.since)
        self._pump = asyncio.create_task(self._deliver(on_parts), name="deuz-stream-parts")
        head = await self._report()
        self._tells_end = self._tells_end and head.parked is None and not head.waits_for_children
        result = await self._access.result(self.scope, self.run_id)
        return replace(result, warnings=(*result.warnings, *begun.warnings))

    async def trail(self, has_ended: Callable[[], bool]) -> None:
        if not self._tells_end or self._subscription is None:
            return
        until_ms = self._access.clock.monotonic_ms() + TRAIL_MS
        while not has_ended() and self._subscription.is_connected:
            left_ms = until_ms - self._access.clock.monotonic_ms()
            if left_ms <= 0:
                break
            await self._wait_for_end(left_ms)
        if not has_ended():
            self._missed(Missed("lost"))

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait((self._pump,))
        if self._subscription is not None:
            await self._subscription.close()

    async def _subscribe(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()
        self._subscription = await self._live.subscribe(self.scope, self.run_id, self._inbox.put_nowait)

    async def _report(self) -> Head:
        """The head once it has something to report; looked at ever less often, and at once when the channel says so."""
        pause_ms: float = FIRST_POLL_MS
        while not await reports(self._access.store, head := await self._access.head(self.scope, self.run_id)):
            await self._wait_for_end(pause_ms)
            pause_ms = min(pause_ms * POLL_GROWTH, LONGEST_POLL_MS)
        return head

    async def _wait_for_end(self, ms: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ms / 1000):
                await self._heard_end.wait()
        self._heard_end.clear()

    async def _deliver(self, on_parts: OnParts) -> None:
        loop = asyncio.get_running_loop()
        lost_at_s: float | None = None
        while True:
            if not self._order.is_waiting:
                lost_at_s = None
            elif lost_at_s is None:
                lost_at_s = loop.time() + GAP_MS / 1000
            try:
                async with asyncio.timeout_at(lost_at_s):
                    parts = await self._inbox.get()
            except TimeoutError:
                ready, lost_at_s = self._order.give_up(), None
            else:
                ready = self._order.take(parts)
            if ready:
                on_parts([await self._whole(part) if part.data.get("elsewhere") is True else part for part in ready])
            if any(part.kind == "end" for part in ready):
                self._heard_end.set()

    async def _whole(self, part: LivePart) -> LivePart:
        """With the raw result that was too large for the channel, from its receipt."""
        try:
            loaded = await self._access.store.load(self.scope, self.run_id)
            receipt = None if loaded is None else fold_receipts(loaded.receipts).get((part.step, str(part.data["call_id"])))
        except DeuzError:
            receipt = None
        if receipt is None or receipt.value is MISSING:
            self._missed(Missed("lost"))
            return part
        return replace(part, data={**part.data, "value": receipt.value})
