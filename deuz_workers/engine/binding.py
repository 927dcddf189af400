"""Fingerprints that a resume must match (BND-001): what the model is and what it is offered."""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.core.codec import digest
from deuz_workers.ports.definition import AgentDefinition


def binding_of(agent: AgentDefinition) -> dict[str, object]:
    """Model, tools by name with a digest of what the model sees of them, and the agent's own `binding_id`."""
    tools = {
        name: digest({"parameters": tool.spec.parameters, "description": tool.spec.description})
        for name, tool in sorted(agent.tools.items())
    }
    return {"binding_id": agent.binding_id, "model": agent.model.name, "tools": tools}


class Bindings:
    """Bindings of the agents of a process, made once for each definition."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[AgentDefinition, dict[str, object]]] = {}

    def of(self, agent: AgentDefinition) -> dict[str, object]:
        known = self._made.get(agent.name)
        if known is None or known[0] is not agent:
            known = self._made[agent.name] = (agent, binding_of(agent))
        return known[1]

    def match(self, stored: Mapping[str, object] | None, agent: AgentDefinition) -> bool:
        """A run that has not begun has no binding and matches every build; an unknown key matches none (ENV-012)."""
        return stored is None or dict(stored) == self.of(agent)
