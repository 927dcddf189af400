"""Fingerprints that a resume must match (BND-001): what the model is and what it is offered."""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.core.catalog import without_catalog
from deuz_workers.core.codec import canonical, digest
from deuz_workers.core.envelope import CATALOG
from deuz_workers.core.estimate import text_bytes, tool_bytes
from deuz_workers.core.limits import Limits
from deuz_workers.core.memory import MemoryScope
from deuz_workers.ports.definition import AgentDefinition, driven
from deuz_workers.ports.tool import Tool


def binding_of(agent: AgentDefinition) -> dict[str, object]:
    """Model, tools by name with a digest of what the model sees of them, limits, and the agent's own `binding_id`.

    That there is a verifier is part of it, what it does is not: nothing that began with one completes without one. Of everybody
    whom a run may be handed to, so are model, instructions and tools (BND-003). What tool servers offer has a key of its own in
    the copy of an agent that a step goes on with.
    """
    binding: dict[str, object] = {"binding_id": agent.binding_id, "limits": _limits(agent.limits), "model": agent.model.name}
    if agent.output is not None:
        binding["output"] = digest(agent.output.record)
    if agent.verify is not None:
        binding["verifies"] = True
    if agent.fallback_models:
        binding["fallback"] = [model.name for model in agent.fallback_models]
    if agent.memory is not None:
        scope = agent.memory.scope
        binding["memory"] = scope.to_record() if isinstance(scope, MemoryScope) else {}
    if agent.team:
        binding["handoffs"] = {name: _of_member(driven(agent, name)) for name in sorted(agent.team)}
    if agent.catalog is not None:
        binding[CATALOG] = dict(agent.catalog.fingerprints)
    return {**binding, "tools": _tools(agent.own_tools)}


def _of_member(member: AgentDefinition) -> dict[str, object]:
    return {
        "binding_id": member.binding_id,
        "model": member.model.name,
        "instructions": digest(member.instructions),
        "tools": _tools(member.tools),
    }


def _tools(tools: Mapping[str, Tool]) -> dict[str, object]:
    return {
        name: digest({"parameters": tool.spec.parameters, "description": tool.spec.description})
        for name, tool in sorted(tools.items())
    }


FIRST_LIMITS = frozenset(("max_steps", "max_retries", "model_timeout_ms", "tool_timeout_ms"))


def _limits(limits: Limits) -> dict[str, object]:
    """Those that came later are part of it where they differ from their defaults, so that older bindings still match."""
    usual = Limits().to_record()
    return {name: value for name, value in limits.to_record().items() if name in FIRST_LIMITS or value != usual[name]}


class Bindings:
    """What follows from the agents of a process and never changes, made once for each definition."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str, bool], tuple[AgentDefinition, dict[str, object], int]] = {}
        self._driven: dict[tuple[str, str], tuple[AgentDefinition, AgentDefinition]] = {}

    def of(self, agent: AgentDefinition) -> dict[str, object]:
        return self._entry(agent)[1]

    def fixed_bytes(self, agent: AgentDefinition) -> int:
        """UTF-8 bytes of instructions and tools, which every request of the agent repeats."""
        return self._entry(agent)[2]

    def driven(self, agent: AgentDefinition, driver: str) -> AgentDefinition:
        """`agent` as its run is executed while `driver` has it; the same object each time."""
        if driver == agent.name:
            return agent
        known = self._driven.get((agent.name, driver))
        if known is None or known[0] is not agent:
            known = self._driven[agent.name, driver] = (agent, driven(agent, driver))
        return known[1]

    def _entry(self, agent: AgentDefinition) -> tuple[AgentDefinition, dict[str, object], int]:
        place = (agent.name, agent.driver, agent.catalog is not None)
        known = self._made.get(place)
        if known is None or known[0] is not agent:
            size_bytes = text_bytes(agent.instructions or "") + tool_bytes(tool.spec for tool in agent.tools.values())
            if agent.output is not None:
                size_bytes += text_bytes(canonical(agent.output.schema))
            known = self._made[place] = (agent, {} if agent.driver else binding_of(agent), size_bytes)
        return known

    def match(self, stored: Mapping[str, object] | None, agent: AgentDefinition) -> bool:
        """A run that has not begun has no binding and matches every build; an unknown key matches none (ENV-012).

        `agent` as it is registered. What tool servers offer is compared by `engine.offering`.
        """
        return stored is None or without_catalog(stored) == self.of(agent)
