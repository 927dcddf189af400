"""Agents and reducers of an application by name: what this process can run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from deuz_workers.errors import ConfigurationError, UnknownAgentError
from deuz_workers.ports.definition import AgentDefinition, ReducerDefinition

D = TypeVar("D", AgentDefinition, ReducerDefinition)


class AppRegistry:
    """Implements `Registry`. Names are unique over agents and reducers together, since doorbells name either."""

    def __init__(self, agents: Iterable[AgentDefinition] = (), reducers: Iterable[ReducerDefinition] = ()) -> None:
        """Raises `ConfigurationError` for a name that is there twice."""
        self._agents = _by_name(agents, "agent")
        self._reducers = _by_name(reducers, "reducer")
        if both := sorted(self._agents.keys() & self._reducers.keys()):
            raise ConfigurationError(f"{both[0]!r} is an agent and a reducer; give one of them another name")

    def agent(self, name: str) -> AgentDefinition | None:
        return self._agents.get(name)

    def reducer(self, name: str) -> ReducerDefinition | None:
        return self._reducers.get(name)

    @property
    def agents(self) -> tuple[AgentDefinition, ...]:
        return tuple(self._agents.values())

    @property
    def reducers(self) -> tuple[ReducerDefinition, ...]:
        return tuple(self._reducers.values())

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._agents) | frozenset(self._reducers)

    @property
    def is_client(self) -> bool:
        """It knows nothing, and so cannot say that a name is wrong."""
        return not self.names

    def check_agent(self, name: str) -> None:
        """Raises `UnknownAgentError` that names the nearest known one. A client app accepts every name."""
        if self.is_client or name in self._agents:
            return
        near = difflib.get_close_matches(name, self._agents, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(self._agents)) or 'none'}."
        raise UnknownAgentError(f"there is no agent {name!r}: {hint} Agents are given to Deuz([...])", agent=name)


def _by_name(definitions: Iterable[D], what: str) -> Mapping[str, D]:
    found: dict[str, D] = {}
    for definition in definitions:
        if definition.name in found:
            raise ConfigurationError(f"{what} {definition.name!r} is there twice; give one of them another name")
        found[definition.name] = definition
    return found
