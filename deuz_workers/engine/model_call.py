"""One model call: its reservation, the request, and what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass, field, replace

from deuz_workers.core.candidate import candidate
from deuz_workers.core.change import BudgetExceeded
from deuz_workers.core.effects import CallModel
from deuz_workers.core.envelope import OpenCall
from deuz_workers.core.estimate import usage_bound
from deuz_workers.core.events import Bound, Event, Finished, ModelCallFailed, ModelCallStarted, ModelReplied
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import system
from deuz_workers.core.run import Run
from deuz_workers.core.transient import transient_kind
from deuz_workers.core.usage import Usage
from deuz_workers.engine.binding import Bindings
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.reply_check import asked_wait_ms, check_reply, failure_record, known_cost, stored_reply
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.telling import Telling
from deuz_workers.engine.user_code import Broken, apart
from deuz_workers.engine.weight import HEAVY_SIZE, message_size
from deuz_workers.errors import ExecutionPolicyError, ModelError, ModelResponseError, ModelTimeoutError, as_record
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
        return self.plan.model or self.agent.model

    @property
    def request_id(self) -> str:
        """Stable for this admitted attempt, in whichever process it is made."""
        return f"{self.run.envelope.rid.hex}:{self.effect.step}:{self.effect.attempt}"

    @property
    def limits(self) -> Limits:
        """Of the run; of the agent while the run has not begun."""
        envelope = self.run.envelope
        return self.agent.limits if envelope.binding is None else envelope.limits

    def opening(self) -> tuple[Event, ...]:
        """Events that have to be saved before the request leaves."""
        size_bytes = self.run.history.size_bytes + self.bindings.fixed_bytes(self.agent)
        most = usage_bound(size_bytes, self.agent.max_output_tokens)
        cost = self.gear.prices.cost_micros(self.model.name, most)
        started = ModelCallStarted(OpenCall(self.request_id, self.effect.attempt, most.total_tokens, cost))
        if self.run.envelope.binding is None:
            agent = self.agent
            bound = Bound(
                self.bindings.of(agent),
                agent.limits,
                finalizes=agent.output is not None,
                has_loop=bool(agent.tools),
                verifies=agent.verify is not None,
            )
            return (bound, started)
        return (started,)

    def refused(self, refusal: BudgetExceeded) -> Finished:
        """The run ends because a budget has no room for this call."""
        error = ExecutionPolicyError(
            f"the budget of scope {refusal.scope!r} has no room for this model call; raise the budget or start a new run",
            code=refusal.reason,
            scope=refusal.scope,
        )
        return Finished("failed", error=as_record(error))

    async def send(self, stop: Stop, revision: int, deadline_in_ms: int | None) -> Event | None:
        """Make the call; `revision` is that of the commit which allowed it, `deadline_in_ms` counts from the step's load.

        None: ended at once because the lease is lost, the run cancelled or the drain's grace over; nobody knows the outcome.
        """
        envelope = self.run.envelope
        limit_ms = self.limits.model_timeout_ms
        if deadline_in_ms is not None:
            limit_ms = max(1, min(limit_ms, deadline_in_ms - stop.elapsed_ms))
        history = tuple(self.run.history)
        messages = (system(self.agent.instructions), *history) if self.agent.instructions else history
        tools, tool_choice, output_format = self._offer()
        request = ModelRequest(
            self.request_id,
            messages,
            tools,
            tool_choice,
            output_format=output_format,
            max_output_tokens=self.agent.max_output_tokens,
            temperature=self.agent.temperature,
            timeout_ms=limit_ms,
            extra=self.agent.model_extra,
            attempt=self.effect.attempt,
        )

        # What a guardrail may still suppress or replace is shown to nobody before it has been asked.
        sink = Silence() if self.agent.guardrails.on_output else self.gear.sink
        telling = Telling(sink, envelope.scope, envelope.run_id, self.effect.step, revision)
        limit = asyncio.timeout(limit_ms / 1000)
        try:
            async with limit:
                with stop.may_end(limit):
                    reply = await apart(lambda: self.model.call(request, telling))
        except TimeoutError:
            event: Event = self._failed(ModelTimeoutError(f"the model call took longer than {limit_ms} ms"))
        except Broken as broken:  # a model is user code too: whatever it raises ends the call, not the worker
            error = broken.error
            client = f"the model client failed: {type(error).__name__}"
            event = self._failed(error if isinstance(error, ModelError) else ModelResponseError(client, code="model_client"))
        else:
            event = await self._replied(reply)
            if isinstance(event, ModelReplied) and not telling.has_told:
                telling(event.message.text)
        if isinstance(event, ModelCallFailed) and deadline_in_ms is not None and stop.elapsed_ms >= deadline_in_ms:
            event = replace(event, retry_in_ms=event.retry_in_ms or 1)  # the run ends by its time, not by this
        return None if limit.expired() and stop.model_must_end else event

    @property
    def _output(self) -> OutputType | None:
        """What the reply has to be; None: this call belongs to the tool loop."""
        envelope, output = self.run.envelope, self.agent.output
        if envelope.binding is None:
            return None if self.agent.tools else output
        return output if envelope.phase == "finalizing" else None

    def _offer(self) -> tuple[tuple[ToolSpec, ...], ToolChoice, OutputFormat | None]:
        """What the model may call, and what it has to answer (FIN-003, FIN-010)."""
        allowed = self.run.envelope.policy.allowed_tools  # offered, the others would only end the run
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

    async def _replied(self, given: object) -> ModelReplied | ModelCallFailed:
        """What the model handed over, as it will be read back; a failed call where it cannot be stored."""
        try:
            reply = check_reply(given)
            heavy = message_size(reply.message) > HEAVY_SIZE
            reply = await asyncio.to_thread(stored_reply, reply) if heavy else stored_reply(reply)
        except ModelResponseError as error:
            return self._failed(error)
        output = self._output
        if output is not None:
            reply = replace(reply, message=candidate(reply.message, output.name if self._asks_by_tool(output) else None))
        if reply.usage is None:
            return ModelReplied(reply.message, reply.finish_reason, None)
        cost = self._cost_micros(reply.model, reply.usage)
        return ModelReplied(reply.message, reply.finish_reason, replace(reply.usage, cost_micros=cost))

    def _cost_micros(self, model: str, usage: Usage) -> int | None:
        """The reply is paid for: a price list that fails makes its price unknown, nothing else."""
        try:
            return known_cost(self.gear.prices.cost_micros(model, usage))
        except Exception as error:  # noqa: BLE001 - a price list may be the user's
            log.warning("price_unknown run=%s error=%s", self.run.envelope.run_id, type(error).__name__)
            return None

    def _failed(self, error: ModelError) -> ModelCallFailed:
        """The store puts no wait behind the deadline of the run, so none is cut off here."""
        checkpoint, limits, settings = self.run.envelope.checkpoint, self.limits, self.gear.settings
        record, kind = failure_record(error), transient_kind(error)
        if error.retry != "never" and checkpoint.retries < limits.max_retries:
            back_off_ms = self._back_off_ms(settings.retry_base_ms, settings.retry_max_ms, checkpoint.retries)
            return ModelCallFailed(record, error.billed, kind, max(asked_wait_ms(error), back_off_ms))
        if kind is not None and checkpoint.reruns < limits.max_reruns:
            back_off_ms = self._back_off_ms(settings.rerun_base_ms, settings.rerun_max_ms, checkpoint.reruns)
            return ModelCallFailed(record, error.billed, kind, max(asked_wait_ms(error), back_off_ms), reruns=True)
        return ModelCallFailed(record, error.billed, kind, None)

    def _back_off_ms(self, base_ms: int, most_ms: int, before: int) -> int:
        """Full jitter, drawn from the request id so that a repeated decision is the same decision."""
        most = min(base_ms * 2**before, most_ms)
        draw = int.from_bytes(hashlib.sha256(self.request_id.encode()).digest()[:4]) / 2**32
        return max(1, round(most * draw))
