"""Who is asked for a run's memory, as a model: what it costs, who is charged, and how it is asked."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import cast

from deuz_workers.core.envelope import OpenCall
from deuz_workers.core.estimate import usage_bound
from deuz_workers.core.messages import Message, assistant, system, user
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.shared_budget import SharedBudget, shared_keys
from deuz_workers.core.usage import Usage
from deuz_workers.engine.asking import ask, call_to_open, priced
from deuz_workers.engine.leg import Leg
from deuz_workers.engine.reply_check import check_reply, known_cost
from deuz_workers.errors import ModelResponseError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.memory import Memory, MemoryLlm, MemoryReply
from deuz_workers.ports.model import Model, ModelReply, ModelRequest, OnText

MAX_OUTPUT_TOKENS = 2_048
"""Of one answer of a memory LLM."""
PROMPT_BYTES = 24_000
"""Assumed of instructions and known memories in both questions together."""


@dataclass(frozen=True, slots=True)
class FunctionModel:
    """A function of system and user text as a model; its usage is known where it returns `MemoryReply`s."""

    function: MemoryLlm
    name: str

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        said, asked = (message.text for message in request.messages)
        given = cast(object, self.function(said, asked))
        given = await given if inspect.isawaitable(given) else given
        reply = given if isinstance(given, MemoryReply) else MemoryReply(cast(str, given))
        if not isinstance(cast(object, reply.text), str):
            raise ModelResponseError("a memory LLM returns text or a MemoryReply", code="memory_reply")
        return ModelReply(assistant(reply.text), "stop", reply.usage, self.name)

    async def close(self) -> None: ...


def llm_of(agent: AgentDefinition, memory: Memory) -> Model:
    """The memory's own, else the agent's model."""
    given = memory.seams.llm
    if given is None:
        return agent.model
    if callable(getattr(given, "call", None)):
        return cast(Model, given)
    function = cast(MemoryLlm, given)
    return FunctionModel(function, f"memory:{getattr(function, '__name__', type(function).__name__)}")


def memory_call(leg: Leg, agent: AgentDefinition, memory: Memory, model: Model, request_id: str, most: Usage) -> OpenCall:
    """As it is reserved: with the run, or where the memory's own execution says. Raises `ExecutionPolicyError`."""
    policy_of(leg, memory).check_model(model.name)
    scopes, shared = _charged(memory)
    return call_to_open(leg.gear, agent, model, request_id, 1, most, purpose="memory", scopes=scopes, shared=shared)


def embedder_call(leg: Leg, agent: AgentDefinition, memory: Memory, name: str, request_id: str, most: Usage) -> OpenCall:
    """The same for an embedder; what the agent says about its own calls is not about this one."""
    policy_of(leg, memory).check_model(name)
    scopes, shared = _charged(memory)
    settings, cost = leg.gear.settings, known_cost(leg.gear.prices.cost_micros(name, most))
    return OpenCall(
        request_id,
        1,
        most.total_tokens,
        cost,
        purpose="memory",
        model=name,
        charged_model=name,
        uncounted=settings.unknown_prices == "allow",
        warn_percent=settings.budget_warn_percent,
        scopes=scopes,
        shared=shared,
    )


def policy_of(leg: Leg, memory: Memory) -> ExecutionPolicy:
    """That has to allow the memory's models."""
    return leg.run.envelope.policy if memory.seams.execution is None else memory.seams.execution.policy


def _charged(memory: Memory) -> tuple[tuple[str, ...] | None, tuple[SharedBudget, ...]]:
    """Scopes and budgets that stand in for the run's; None: the run's."""
    elsewhere = memory.seams.execution
    return (None, ()) if elsewhere is None else (shared_keys(elsewhere.shared_budgets), elsewhere.shared_budgets)


def extraction_bound(conversation_bytes: int) -> Usage:
    """Of both questions together; what they use is settled afterwards."""
    return usage_bound(conversation_bytes + PROMPT_BYTES, 2 * MAX_OUTPUT_TOKENS)


@dataclass(slots=True)
class Questions:
    """Questions of one extraction, under one reservation; `used` is None once one of them did not say what it used."""

    leg: Leg
    model: Model
    request_id: str
    used: Usage | None = field(default_factory=lambda: Usage())
    asked: int = 0

    async def ask(self, instructions: str, text: str) -> str:
        """The answer. Raises `ModelError` however it fails, and `Ended` where it was ended at once."""
        leg, limits = self.leg, self.leg.committer.run.envelope.limits
        self.asked += 1
        messages: tuple[Message, ...] = (system(instructions), user(text))
        request = ModelRequest(
            f"{self.request_id}.{self.asked}",
            messages,
            max_output_tokens=None if "max_output_tokens" in getattr(self.model, "rejects", ()) else MAX_OUTPUT_TOKENS,
            timeout_ms=limits.model_timeout_ms,
        )
        leg.hold_for(limits.model_timeout_ms, "memory")
        reply = check_reply(await ask(leg.gear, self.model, request, leg.stop, limits, None))
        self.add(priced(leg.gear, leg.run, reply.model or self.model.name, reply.usage))
        return reply.message.text

    def add(self, used: Usage | None) -> None:
        """Of one call under the reservation."""
        self.used = None if self.used is None or used is None else self.used + used
