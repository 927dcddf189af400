"""The path of every tool call behind the gate: `executing` saved, execution, raw result saved, projection, `completed` saved.

Calls of a turn run side by side. Each outcome is saved as it arrives, except the last one: that is left to the caller, whose
next commit carries it together with what follows from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deuz_workers.core.effects import PlannedCall
from deuz_workers.core.events import CallCompleted, CallExecuted, CallFailed, CallUnprojectable, Event, HandedOff
from deuz_workers.core.failure import describe, text_of
from deuz_workers.core.outcomes import CallOutcome
from deuz_workers.engine.committer import CancelFirst, Committer, StepOver
from deuz_workers.engine.contexts import Contexts
from deuz_workers.engine.gate import limit_ms, start_of
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.user_code import Broken, LimitPassed, look_at_end, outcome_of, stored_form
from deuz_workers.errors import CodecError, DeadlinePassed, Interruption, ToolArgumentsError, ToolError, ToolResultError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.tool import Tool

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Calls:
    gear: Gear
    agent: AgentDefinition
    committer: Committer
    stop: Stop
    contexts: Contexts
    may_begin: Callable[[Sequence[PlannedCall]], Awaitable[bool]]
    """Asked before further calls begin; it vouches for the time that they take."""
    on_end: Callable[[str], None] = lambda call_id: None
    """Called with the id of each call whose tool has ended."""
    left_some: bool = False
    """Some calls of the batch have not begun."""
    _waiting: deque[PlannedCall] = field(default_factory=deque[PlannedCall])
    _alone: asyncio.Lock | None = None
    """Around every commit of a batch of which some wait: one that begins a call may be refused, alone."""

    async def run(self, running: tuple[PlannedCall, ...]) -> tuple[Event, ...]:
        """Run them side by side, `tool_concurrency` at a time, and save every outcome but the last, which is returned.

        Calls that have not begun stay so when a cancel came, the worker drains, the time of the run is over or the lease is not
        confirmed. Raises `StepOver` when the lease was lost: whatever the tools did is for the next holder to find out.
        """
        most = self.committer.run.envelope.limits.tool_concurrency
        self._waiting = deque(running[most:])
        self._alone = asyncio.Lock() if self._waiting else None
        left = {asyncio.ensure_future(self._one(planned)) for planned in running[:most]}
        saving: set[asyncio.Task[None]] = set()
        try:
            while left:
                waited: set[asyncio.Future[Any]] = {*left, *saving, self.stop.lost}
                done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if self.stop.is_lost:
                    raise StepOver("the lease is gone")
                for saved in done & saving:
                    saving.discard(saved)
                    saved.result()
                ended = done & left
                left -= ended
                outcomes = [task.result() for task in ended]
                if outcomes and self._waiting and (begun := await self._begin(outcomes, most - len(left))):
                    left |= {asyncio.ensure_future(self._one(planned)) for planned in begun}
                    outcomes = []
                last = outcomes.pop() if outcomes and not left else None
                saving |= {asyncio.ensure_future(self._save(*outcome)) for outcome in outcomes}
                if last is not None:
                    await asyncio.gather(*saving)
                    return last
            return ()
        finally:
            for task in (*left, *saving):
                task.add_done_callback(look_at_end)
                task.cancel()

    async def _begin(self, outcomes: list[tuple[Event, ...]], room: int) -> list[PlannedCall]:
        """Save outcomes together with the start of calls that waited; none: they stay as they are, and nothing was saved."""
        begun = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        starts = [start_of(planned, self.agent.tools[planned.call.name]) for planned in begun if planned.action != "project"]
        if await self.may_begin(begun):
            try:
                await self._save(*(event for outcome in outcomes for event in outcome), *starts)
            except CancelFirst:
                pass
            else:
                return begun
        self._waiting.clear()
        self.left_some = True
        return []

    async def _save(self, *events: Event) -> None:
        async with self._alone or contextlib.nullcontext():
            await self.committer.commit(*events)

    async def _one(self, planned: PlannedCall) -> tuple[Event, ...]:
        """The events that end one call; everything before them is saved."""
        call_id = planned.call.call_id
        tool = self.agent.tools.get(planned.call.name)
        if planned.action == "project":
            value = planned.receipt.value if planned.receipt is not None else None
            return await self._projected(call_id, tool, value)
        assert tool is not None
        try:
            with self.gear.telemetry.tool_call(self.committer.run, planned.call) as ended:
                value = await self._execute(planned, tool)
                ended(value)
        except _Failed as failure:
            self.on_end(call_id)
            return (CallFailed(call_id, failure.text, failure.outcome),)
        self.on_end(call_id)
        if tool.transfers_to is not None:
            return (CallExecuted(call_id, value), HandedOff(call_id, tool.transfers_to), CallCompleted(call_id))
        if not tool.has_projection:
            return (CallExecuted(call_id, value), CallCompleted(call_id))
        await self._save(CallExecuted(call_id, value))
        return await self._projected(call_id, tool, value)

    async def _execute(self, planned: PlannedCall, tool: Tool) -> object:
        """The raw value as the store gives it back. Raises `_Failed` with the text for the model."""
        most_ms = limit_ms(tool, self.committer.run)
        signal = self.stop.signal()
        run = self.committer.run
        context = self.contexts.of(planned, tool, signal, run, run.receipts[planned.call.call_id].attempt)
        try:
            returned = await outcome_of(
                lambda: tool.run(planned.call.arguments or {}, context),
                most_ms,
                on_limit=lambda: signal.set(DeadlinePassed(f"the call took longer than {most_ms} ms")),
            )
        except LimitPassed as passed:
            if passed.left:
                log.warning("tool_left run=%s tool=%s", run.envelope.run_id, tool.name)
            text = f"{tool.name} took longer than {most_ms} ms; whether it had an effect is not known."
            raise _Failed(text, "timeout") from None
        except Broken as broken:
            raise _failed(tool, broken.error) from broken
        finally:
            self.stop.forget(signal)
        try:
            return await stored_form(returned, tool.max_result_bytes)
        except CodecError as error:
            raise _Failed(f"{tool.name} returned what cannot be stored: {text_of(error)}") from error
        except Broken as broken:
            raise _Failed(f"{tool.name} returned what cannot be stored: {describe(broken.error)}") from broken

    async def _projected(self, call_id: str, tool: Tool | None, value: object) -> tuple[Event, ...]:
        if tool is None or not tool.has_projection:
            return (CallCompleted(call_id),)
        most_ms = limit_ms(tool, self.committer.run)
        signal = self.stop.signal()
        try:
            text = await outcome_of(lambda: self.gear.threads.call(tool.name, lambda: tool.project(value)), most_ms, signal)
        except LimitPassed:
            problem = f"the projection of {tool.name} took longer than {most_ms} ms"
        except Interruption as ended:
            problem = f"the projection of {tool.name} was ended: {ended}"
        except Broken as broken:
            if isinstance(broken.error, ToolResultError):
                return (CallUnprojectable(call_id, "validation-failed", text_of(broken.error)),)
            problem = describe(broken.error)
        else:
            return (CallCompleted(call_id, str.__str__(text)),)
        finally:
            self.stop.forget(signal)
        return (CallUnprojectable(call_id, "projection-failed", problem),)


class _Failed(Exception):
    """`text`: what the model is told."""

    def __init__(self, text: str, outcome: CallOutcome = "error") -> None:
        super().__init__(text)
        self.text = text
        self.outcome: CallOutcome = outcome


def _failed(tool: Tool, error: BaseException) -> _Failed:
    if isinstance(error, ToolArgumentsError):
        return _Failed(text_of(error), "invalid-arguments")
    if isinstance(error, ToolError):
        return _Failed(text_of(error))
    if isinstance(error, Interruption):
        outcome: CallOutcome = "timeout" if isinstance(error, DeadlinePassed) else "cancelled"
        return _Failed(f"{tool.name} was ended: {text_of(error)}", outcome)
    return _Failed(describe(error))
