"""Slots of tools: of a tool with such a limit, only so many calls run at a time over the whole pool.

A slot is a lease, so one that a dead worker held is free again within the TTL, without a row that somebody would have to count.
It limits, and fences nothing: whether an effect may happen is decided by the run's own commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deuz_workers.core.messages import ToolUsePart
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.hold import Hold
from deuz_workers.errors import LeaseStoreUnavailableError
from deuz_workers.ports.leases import Lease, Young

log = logging.getLogger(__name__)


class NoSlot(Exception):
    """All slots of the tool are taken, or nobody can say; none of the group was taken. Try again after `wait_ms`."""

    def __init__(self, tool: str, wait_ms: int) -> None:
        super().__init__(tool)
        self.tool = tool
        self.wait_ms = wait_ms


BUSY_MS = 250
"""Until a run looks again for a slot that others hold."""
AWAY_MS = 1_000


def slot_key(tool: str, number: int) -> str:
    """Of the lease of one slot; no run's has it."""
    return f"tool:{tool}/{number}"


@dataclass(slots=True)
class ToolSlots:
    """What one step holds, by call id."""

    gear: Gear
    limit_ms: int
    """How long a call may hold one."""
    _held: dict[str, tuple[str, Hold]] = field(default_factory=dict[str, tuple[str, Hold]])
    _returning: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def take(self, calls: Sequence[ToolUsePart], limits: Mapping[str, int]) -> None:
        """One for each of the calls whose tool is in `limits`, or none. Raises `NoSlot`."""
        wanted = [call for call in calls if call.name in limits]
        if not wanted:
            return
        if self._returning:
            await asyncio.gather(*self._returning)
        taken: list[str] = []
        try:
            for call in wanted:
                self._held[call.call_id] = (call.name, await self._one(call.name, limits[call.name]))
                taken.append(call.call_id)
        except BaseException:
            for call_id in taken:
                self.ended(call_id)
            raise

    def ended(self, call_id: str) -> None:
        """The call has ended; its slot, if it had one, is on its way back."""
        held = self._held.pop(call_id, None)
        if held is not None:
            task = asyncio.ensure_future(self._give_back(held[1]))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def close(self) -> None:
        """Nothing is held any more. The slot of a call that goes on in a thread lapses instead of being given back."""
        left = self.gear.threads.running()
        for call_id, (tool, hold) in list(self._held.items()):
            if left.get(tool):
                self.gear.heartbeat.drop(hold)
                del self._held[call_id]
            else:
                self.ended(call_id)
        if self._returning:
            await asyncio.gather(*self._returning)

    async def _one(self, tool: str, slots: int) -> Hold:
        gear = self.gear
        owner = f"{gear.process}#{gear.ids.token()}"
        first = int(gear.ids.token()[:8], 16)
        try:
            for place in range(slots):
                key = slot_key(tool, (first + place) % slots)
                claim = await gear.leases.acquire(key, owner, gear.settings.lease_ttl_ms)
                if isinstance(claim, Young):  # a living holder may not have said so yet
                    raise NoSlot(tool, claim.ms_until_old)
                if isinstance(claim, Lease):
                    return gear.heartbeat.hold(
                        claim, limit_ms=self.limit_ms, on_lost=_ignore, on_cancel=_ignore, label=f"slot of {tool}"
                    )
        except LeaseStoreUnavailableError:
            raise NoSlot(tool, AWAY_MS) from None
        raise NoSlot(tool, BUSY_MS)

    async def _give_back(self, hold: Hold) -> None:
        self.gear.heartbeat.drop(hold)
        with contextlib.suppress(LeaseStoreUnavailableError):  # it lapses
            await self.gear.leases.release(hold.lease)


def _ignore() -> None:
    """The call goes on; its run's own lease decides about the step."""
