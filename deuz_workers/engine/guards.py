"""Asking guardrails and the hooks of a step, and what their answers come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deuz_workers.core.effects import PlannedCall
from deuz_workers.core.events import Event, GuardrailFired
from deuz_workers.core.failure import describe
from deuz_workers.core.messages import Message, TextPart, ToolUsePart
from deuz_workers.core.run import Run
from deuz_workers.engine.hooks import Hooks
from deuz_workers.engine.user_code import Broken, LimitPassed
from deuz_workers.errors import HookError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.guard import Block, GuardContext, GuardHook, Guardrail, Rewrite, StepInfo, StepPlan


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the guardrails of one hook made of a value."""

    value: Any
    is_rewritten: bool = False
    blocked: str | None = None
    """What is said instead of the value."""
    by: str = ""
    reason: str = ""
    fired: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Guards:
    """Those of one run's agent, for one executor. Raises `HookError` where a function raises or returns what means nothing."""

    agent: AgentDefinition
    hooks: Hooks
    runtime_context: Any

    async def look(self, hook: GuardHook, value: Any, run: Run, call: ToolUsePart | None = None) -> Guarded:
        rails: Sequence[Guardrail] = getattr(self.agent.guardrails, hook)
        envelope = run.envelope
        context = GuardContext(
            envelope.scope, envelope.run_id, envelope.agent, run.step, run.history, self.runtime_context, call, run.driver
        )
        guarded = Guarded(value)
        for rail in rails:
            name = getattr(rail, "__name__", type(rail).__name__)
            verdict = await self._ask(f"guardrail {name!r}", rail, guarded.value, context)
            call_id = None if call is None else call.call_id
            match verdict:
                case None:
                    continue
                case Block(reason):
                    fired = GuardrailFired(hook, "block", name, reason, call_id)
                    text = f"Blocked by guardrail '{name}': {reason}"
                    return replace(guarded, blocked=text, by=name, reason=reason, fired=(*guarded.fired, fired))
                case Rewrite(rewritten):
                    if not isinstance(rewritten, Mapping if hook == "on_tool_call" else str):
                        raise HookError(f"guardrail {name!r} rewrote a value of {hook} to a {type(rewritten).__name__}")
                    fired = GuardrailFired(hook, "rewrite", name, None, call_id)
                    guarded = Guarded(rewritten, is_rewritten=True, fired=(*guarded.fired, fired))
                case _:
                    raise HookError(f"guardrail {name!r} returned a {type(verdict).__name__}; return None, Block or Rewrite")
        return guarded

    async def of_call(self, planned: PlannedCall, run: Run) -> tuple[PlannedCall, Guarded]:
        """The call with the arguments that it is approved and executed with; the history keeps the model's."""
        guarded = await self.look("on_tool_call", planned.call.arguments, run, planned.call)
        if not guarded.is_rewritten:
            return planned, guarded
        return replace(planned, call=replace(planned.call, arguments=dict(guarded.value))), guarded

    async def stop_condition(self, run: Run, step: int) -> str | None:
        """The name of the condition that ends the loop before the step."""
        info = self._info(run, step)
        for name, condition in self.agent.stop_when.items():
            if await self._ask(f"stop condition {name!r}", condition, info):
                return name
        return None

    async def prepared(self, run: Run, step: int) -> StepPlan:
        """What the step is to be."""
        if self.agent.prepare_step is None:
            return StepPlan()
        plan = await self._ask("prepare_step", self.agent.prepare_step, self._info(run, step))
        if plan is not None and not isinstance(plan, StepPlan):
            raise HookError(f"prepare_step returned a {type(plan).__name__}; return a StepPlan or None")
        return plan or StepPlan()

    def _info(self, run: Run, step: int) -> StepInfo:
        envelope = run.envelope
        return StepInfo(
            envelope.scope, envelope.run_id, envelope.agent, step, run.history, envelope.usage, self.runtime_context, run.driver
        )

    async def _ask(self, what: str, function: Any, *given: object) -> Any:
        try:
            return await self.hooks.ask(what, function, *given)
        except Broken as broken:
            raise HookError(f"{what} raised {describe(broken.error)}") from None
        except LimitPassed:
            raise HookError(f"{what} took longer than {self.hooks.limit_ms} ms") from None


def with_text(message: Message, text: str) -> Message:
    """The message with `text` in place of what it said."""
    kept = tuple(part for part in message.parts if not isinstance(part, TextPart))
    return replace(message, parts=(*kept, TextPart(text)))


def newest_input(run: Run) -> int | None:
    """Place of the newest user message."""
    places = (place for place in range(len(run.history) - 1, -1, -1) if run.history[place].role == "user")
    return next(places, None)


def replaced(run: Run, place: int, message: Message) -> tuple[Message, ...]:
    """The history with another message at `place`."""
    messages = list(run.history)
    messages[place] = message
    return tuple(messages)
