"""One model call: its reservation, the request, and what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

from deuz_workers.core.candidate import candidate
from deuz_workers.core.delegation import path_of
from deuz_workers.core.effects import CallModel
from deuz_workers.core.estimate import usage_bound
from deuz_workers.core.events import ContextOverflowed, Event, ModelCallStarted, ModelFailedOver, ModelReplied, Warned
from deuz_workers.core.failover import moves_on, repeats_first
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import system
from deuz_workers.core.pairing import paired
from deuz_workers.core.run import Run
from deuz_workers.core.transient import TransientKind, transient_kind
from deuz_workers.engine.asking import (
    Ended,
    ask,
    binding_event,
    call_to_open,
    failed_call,
    limit_of_call_ms,
    limits_of,
    priced,
    repeated_call,
)
from deuz_workers.engine.binding import Bindings
from deuz_workers.engine.candidates import following, id_of, selected
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.reply_check import asked_wait_ms, check_reply, failure_record, stored_reply
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.telling import Telling
from deuz_workers.engine.weight import HEAVY_SIZE, message_size
from deuz_workers.errors import ModelBreakerOpenError, ModelContextOverflowError, ModelError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.guard import StepPlan
from deuz_workers.ports.live import Silence
from deuz_workers.ports.model import Model, ModelRequest, OutputFormat, ToolChoice, ToolSpec
from deuz_workers.ports.output import OutputType

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelCall:
    gear: Gear
    agent: AgentDefinition
    run: Run
    effect: CallModel
    bindings: Bindings
    plan: StepPlan = field(default_factory=StepPlan)

    @property
    def model(self) -> Model:
        """Which is called: the call's own, or a fallback once that failed."""
        return selected(self.agent, self._own, self.run)

    @property
    def _own(self) -> Model:
        """Which the call is meant for."""
        return self.plan.model or self.agent.model

    @property
    def _rejects(self) -> Collection[str]:
        return getattr(self.model, "rejects", ())

    @property
    def _max_output_tokens(self) -> int | None:
        """None also for a model that does not take it; then nothing but its own limit bounds the answer."""
        return None if "max_output_tokens" in self._rejects else self.agent.max_output_tokens

    @property
    def request_id(self) -> str:
        """Stable for this admitted attempt, in whichever process it is made."""
        return f"{self.run.envelope.rid.hex}:{self.effect.step}:{self.effect.attempt}"

    @property
    def limits(self) -> Limits:
        return limits_of(self.agent, self.run)

    def opening(self) -> tuple[Event, ...]:
        """Events that have to be saved before the request leaves."""
        size_bytes = self.run.history.size_bytes + self.bindings.fixed_bytes(self.agent)
        most = usage_bound(size_bytes, self._max_output_tokens, writes_cache=getattr(self.model, "writes_cache", False))
        tokens = most.input_tokens
        call = call_to_open(self.gear, self.agent, self.model, self.request_id, self.effect.attempt, most, input_tokens=tokens)
        return (*binding_event(self.agent, self.run, self.bindings), *self._repair(), ModelCallStarted(call))

    def _repair(self) -> tuple[Warned, ...]:
        """What is said about a history that is not sent as it is stored."""
        if self.run.history.is_paired:
            return ()
        repaired = paired(self.run.history)
        text = f"sent with {len(repaired.answered)} missing results added and {len(repaired.dropped)} without a call left out"
        log.warning(
            "history_repaired run=%s answered=%s dropped=%s", self.run.envelope.run_id, repaired.answered, repaired.dropped
        )
        return (Warned("history", text),)

    async def send(self, stop: Stop, revision: int, deadline_in_ms: int | None) -> Event | None:
        """Make the call; `revision` is that of the commit which allowed it, `deadline_in_ms` counts from the step's load.

        None: ended at once because the lease is lost, the run cancelled or the drain's grace over; nobody knows the outcome.
        """
        envelope = self.run.envelope
        limit_ms = limit_of_call_ms(self.limits, stop, deadline_in_ms)
        history = tuple(self.run.history) if self.run.history.is_sendable else paired(self.run.history).messages
        messages = (system(self.agent.instructions), *history) if self.agent.instructions else history
        tools, tool_choice, output_format = self._offer()
        model, agent = self.model, self.agent
        request = ModelRequest(
            self.request_id,
            messages,
            tools,
            tool_choice,
            output_format=output_format,
            max_output_tokens=self._max_output_tokens,
            temperature=None if "temperature" in self._rejects else agent.temperature,
            timeout_ms=limit_ms,
            extra=agent.model_extra if model is self._own else {},
            attempt=self.effect.attempt,
        )

        # What a guardrail may still suppress or replace is shown to nobody before it has been asked.
        sink = Silence() if self.agent.guardrails.on_output else self.gear.sink
        first = partial(self.gear.breakers.heard, model.name)
        below, path = envelope.parent, path_of(envelope)
        telling = Telling(sink, envelope.scope, envelope.run_id, self.effect.step, revision, first, below, path)
        try:
            event = await self._replied(await ask(self.gear, model, request, stop, self.limits, telling))
        except Ended:
            return None
        except ModelError as error:
            return self._failed(error, after_content=telling.has_told or error.after_content)
        if not telling.has_told:
            telling(event.message.text)
        return event

    @property
    def _output(self) -> OutputType | None:
        """What the reply has to be; None: this call belongs to the tool loop."""
        envelope, output = self.run.envelope, self.agent.output
        if envelope.binding is None:
            return None if self.agent.tools else output
        return output if envelope.phase == "finalizing" else None

    def _offer(self) -> tuple[tuple[ToolSpec, ...], ToolChoice, OutputFormat | None]:
        """What the model may call, and what it has to answer (FIN-003, FIN-010)."""
        allowed = self.run.envelope.policy.narrowed(
            self.agent.policy
        ).allowed_tools  # offered, the others would only end the run
        tools = tuple(tool.spec for tool in self.agent.tools.values() if allowed is None or tool.name in allowed)
        output = self._output
        if output is None:
            active = self.plan.active_tools
            offered = tools if active is None else tuple(spec for spec in tools if spec.name in active)
            return offered, self.plan.tool_choice or "auto", None
        if self._asks_by_tool(output):
            return (ToolSpec(output.name, "Give the final answer.", output.schema),), "required", None
        return tools, "none" if tools else "auto", OutputFormat(output.name, output.schema)

    def _asks_by_tool(self, output: OutputType) -> bool:
        return (output.mode or getattr(self.model, "output_mode", "json")) == "tool"

    async def _replied(self, given: object) -> ModelReplied:
        """What the model handed over, as it will be read back. Raises `ModelResponseError` where it cannot be stored."""
        reply = check_reply(given)
        heavy = message_size(reply.message) > HEAVY_SIZE
        reply = await asyncio.to_thread(stored_reply, reply) if heavy else stored_reply(reply)
        output = self._output
        if output is not None:
            reply = replace(reply, message=candidate(reply.message, output.name if self._asks_by_tool(output) else None))
        usage = priced(self.gear, self.run, reply.model, reply.usage)
        return ModelReplied(reply.message, reply.finish_reason, usage, self.model.name)

    def _failed(self, error: ModelError, *, after_content: bool) -> Event:
        """A request that was refused as too long is shortened and sent once more, whatever the agent says about compaction.

        Any other call is repeated first, then made of the next candidate, if its failure is one that another may not have.
        """
        if isinstance(error, ModelContextOverflowError) and self.run.envelope.checkpoint.overflow == "none":
            return ContextOverflowed(failure_record(error), error.billed)
        call = (self.gear, self.run, self.limits, self.request_id, error)
        kind = transient_kind(error)
        following_model = following(self.agent, self._own, self.run, self.model)
        if kind is None or following_model is None or not moves_on(kind, after_content=after_content):
            return failed_call(*call)
        repeated = repeated_call(*call) if repeats_first(kind, asked_wait_ms(error)) else None
        return repeated or self._failed_over(error, kind, following_model)

    def not_sent(self, error: ModelError) -> tuple[Event, ...]:
        """Nothing was reserved. Behind an open breaker the next candidate is called, without a repeat."""
        to = following(self.agent, self._own, self.run, self.model)
        if to is not None and isinstance(error, ModelBreakerOpenError):
            return (self._failed_over(error, "breaker-open", to),)
        failed = failed_call(self.gear, self.run, self.limits, self.request_id, error)
        return (*binding_event(self.agent, self.run, self.bindings), failed)

    def _failed_over(self, error: ModelError, kind: TransientKind, to: Model) -> ModelFailedOver:
        step, attempt = self.effect.step, self.effect.attempt
        models, record, wait_ms = (id_of(self.model), id_of(to)), failure_record(error), asked_wait_ms(error)
        return ModelFailedOver(step, attempt, *models, kind, record, error.billed, wait_ms)
