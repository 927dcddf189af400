"""The one path of every tool call: gate, `executing` saved, execution, raw result saved, projection, `completed` saved.

Calls of a turn run side by side. Each outcome is saved as it arrives, except the last one: that is left to the caller, whose
next commit carries it together with what follows from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deuz_workers.core.change import Head, ItemRow
from deuz_workers.core.codec import decode, digest, encode
from deuz_workers.core.effects import PlannedCall, RunCalls
from deuz_workers.core.events import (
    CallCompleted,
    CallExecuted,
    CallFailed,
    CallRejected,
    CallStarted,
    CallUnprojectable,
    Event,
)
from deuz_workers.core.run import Run
from deuz_workers.engine.committer import Committer, StepOver
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.weight import is_heavy
from deuz_workers.errors import CodecError, DeadlinePassed, Interruption, ToolArgumentsError, ToolError, ToolResultError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.tool import CancelSignal, Tool, ToolContext


@dataclass(frozen=True, slots=True)
class Gate:
    """What the batch may do. With `items` none of it starts before they are answered (CLT-008)."""

    opening: tuple[Event, ...]
    """To be saved before any effect begins."""
    running: tuple[PlannedCall, ...]
    items: tuple[ItemRow, ...] = ()
    item_call_ids: tuple[str, ...] = ()


def runs_user_code_first(effect: RunCalls, agent: AgentDefinition) -> bool:
    """A predicate of the user's decides about one of the calls, so what was paid for is saved before it runs."""
    tools = (agent.tools.get(planned.call.name) for planned in effect.calls if planned.action == "start")
    return any(tool is not None and tool.has_predicate for tool in tools)


async def gate(effect: RunCalls, agent: AgentDefinition, run: Run) -> Gate:
    """Check every call that has not run: known tool, valid arguments, verdict or approval."""
    opening: list[Event] = []
    running: list[PlannedCall] = []
    items: list[ItemRow] = []
    item_call_ids: list[str] = []
    for planned in effect.calls:
        call = planned.call
        if planned.action == "project":
            running.append(planned)
            continue
        tool = agent.tools.get(call.name)
        rejection = _rejection(planned, tool, agent)
        if rejection is not None:
            if planned.action == "start":
                opening.append(CallRejected(call.call_id, call.name, rejection))
            else:
                opening.append(CallFailed(call.call_id, rejection))
            continue
        assert tool is not None
        assert call.arguments is not None
        if planned.action == "start" and planned.verdict == "none" and await _needs_approval(tool, call.arguments):
            items.append(_approval(planned, run, effect.step))
            item_call_ids.append(call.call_id)
            continue
        opening.append(CallStarted(call.call_id, call.name, tool.replay == "idempotent"))
        running.append(planned)
    if items:
        return Gate((), (), tuple(items), tuple(item_call_ids))
    return Gate(tuple(opening), tuple(running))


def _rejection(planned: PlannedCall, tool: Tool | None, agent: AgentDefinition) -> str | None:
    """What the model is told instead of a result, None where the call may go on."""
    call = planned.call
    if tool is None:
        known = ", ".join(sorted(agent.tools)) or "none"
        return f"There is no tool named {call.name!r}. Available tools: {known}."
    if call.arguments is None:
        return f"The arguments of {call.name} are not a JSON object. Send the call again with valid JSON."
    try:
        tool.validate(call.arguments)
    except ToolArgumentsError as error:
        return error.message
    if planned.verdict == "denied":
        return f"Tool call denied. Reason: {planned.denial_reason or 'No reason given.'}"
    return None


async def _needs_approval(tool: Tool, arguments: Mapping[str, object]) -> bool:
    if tool.has_predicate:
        return await asyncio.to_thread(tool.needs_approval, arguments)
    return tool.needs_approval(arguments)


def _approval(planned: PlannedCall, run: Run, step: int) -> ItemRow:
    call = planned.call
    bound = {
        "run_id": run.envelope.run_id,
        "step": step,
        "call_id": call.call_id,
        "tool": call.name,
        "arguments": dict(call.arguments or {}),
    }
    sealed = digest(bound)
    return ItemRow(f"{call.call_id}@{sealed[:16]}", "approval", encode(bound), sealed)


@dataclass(slots=True)
class Calls:
    gear: Gear
    head: Head
    agent: AgentDefinition
    committer: Committer
    stop: Stop
    step: int

    async def run(self, running: tuple[PlannedCall, ...]) -> tuple[Event, ...]:
        """Run them side by side and save every outcome but the last, which is returned.

        Raises `StepOver` when the lease was lost: whatever the tools did is for the next holder to find out.
        """
        left = {asyncio.ensure_future(self._one(planned)) for planned in running}
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
                last = outcomes.pop() if outcomes and not left else None
                saving |= {asyncio.ensure_future(self.committer.commit(*outcome)) for outcome in outcomes}
                if last is not None:
                    await asyncio.gather(*saving)
                    return last
            return ()
        finally:
            for task in (*left, *saving):
                task.add_done_callback(_taken)
                task.cancel()

    async def _one(self, planned: PlannedCall) -> tuple[Event, ...]:
        """The events that end one call; everything before them is saved."""
        call_id = planned.call.call_id
        tool = self.agent.tools.get(planned.call.name)
        if planned.action == "project":
            value = planned.receipt.value if planned.receipt is not None else None
            return await self._projected(call_id, tool, value)
        assert tool is not None
        try:
            value = await self._execute(planned, tool)
        except _Failed as failure:
            return (CallFailed(call_id, failure.text),)
        if not tool.has_projection:
            return (CallExecuted(call_id, value), CallCompleted(call_id))
        await self.committer.commit(CallExecuted(call_id, value))
        return await self._projected(call_id, tool, value)

    async def _execute(self, planned: PlannedCall, tool: Tool) -> object:
        """The raw value as the store gives it back. Raises `_Failed` with the text for the model."""
        limit_ms = tool.timeout_ms or self.committer.run.envelope.limits.tool_timeout_ms
        signal = self.stop.signal()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                returned = await tool.run(planned.call.arguments or {}, self._context(planned, tool, signal))
        except TimeoutError as error:
            signal.set(_limit_passed(limit_ms))
            raise _Failed(f"{tool.name} took longer than {limit_ms} ms; whether it had an effect is not known.") from error
        except ToolError as error:
            raise _Failed(error.message) from error
        except Interruption as ended:
            raise _Failed(f"{tool.name} was ended: {ended}") from ended
        except (Exception, SystemExit) as error:
            raise _Failed(f"{type(error).__name__}: {error}") from error
        finally:
            self.stop.forget(signal)
        try:
            return await stored_form(returned, tool.max_result_bytes)
        except CodecError as error:
            raise _Failed(f"{tool.name} returned what cannot be stored: {error.message}") from error

    def _context(self, planned: PlannedCall, tool: Tool, signal: CancelSignal) -> ToolContext:
        envelope = self.committer.run.envelope
        receipt = self.committer.run.receipts[planned.call.call_id]
        left = self.head.deadline_in_ms
        return ToolContext(
            scope=envelope.scope,
            run_id=envelope.run_id,
            agent=envelope.agent,
            model_step=self.step,
            tool_call_id=planned.call.call_id,
            tool_name=tool.name,
            attempt=receipt.attempt,
            deadline_in_ms=None if left is None else left - self.stop.elapsed_ms,
            signal=signal,
            deps=self.agent.deps,
        )

    async def _projected(self, call_id: str, tool: Tool | None, value: object) -> tuple[Event, ...]:
        if tool is None or not tool.has_projection:
            return (CallCompleted(call_id),)
        try:
            return (CallCompleted(call_id, await asyncio.to_thread(tool.project, value)),)
        except ToolResultError as error:
            return (CallUnprojectable(call_id, "validation-failed", error.message),)
        except Exception as error:  # noqa: BLE001 - the user's code; its failure is the call's answer
            return (CallUnprojectable(call_id, "projection-failed", f"{type(error).__name__}: {error}"),)


def _taken(task: asyncio.Task[Any]) -> None:
    """Looks at how a task ended whose step is over; nobody else will."""
    if not task.cancelled():
        task.exception()


class _Failed(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _limit_passed(limit_ms: int) -> Interruption:
    return DeadlinePassed(f"the call took longer than {limit_ms} ms")


async def stored_form(value: object, max_bytes: int) -> object:
    """The value as it reads back from its receipt, so that a live result and a resumed one are the same."""
    if is_heavy(value):
        return await asyncio.to_thread(lambda: decode(encode(value, max_bytes=max_bytes)))
    text = encode(value, max_bytes=max_bytes)
    return value if isinstance(value, str | bool | int | float | None) else decode(text)
