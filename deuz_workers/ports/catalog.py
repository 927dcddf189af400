"""Tools of servers outside (MCP): what an agent declares of them, and what a step offers the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from deuz_workers.core.catalog import Fingerprints
from deuz_workers.ports.tool import Tool

if TYPE_CHECKING:
    from deuz_workers.ports.definition import AgentDefinition

OnCatalogChange = Literal["stop", "accept"]

_NO_TOOLS: Mapping[str, Tool] = MappingProxyType({})
_NO_FINGERPRINTS: Fingerprints = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ToolServers:
    """What an agent says of its servers; never stored."""

    entries: tuple[Any, ...]
    """In the order in which the agent lists them; what they are is known to `Catalogs` alone."""
    on_change: OnCatalogChange = "stop"
    pool: Any = None
    """Owns the connections; None: whoever executes the runs."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What the servers of one agent offered when they were last asked."""

    tools: Mapping[str, Tool] = field(default_factory=lambda: _NO_TOOLS)
    """By the name that the model knows, those left out whose name a tool of the agent's own has."""
    fingerprints: Fingerprints = field(default_factory=lambda: _NO_FINGERPRINTS)
    """Of the same tools."""
    clashes: tuple[str, ...] = ()
    """A sentence for each tool that cannot be offered, since its name is taken or its schema is none."""
    agent: AgentDefinition | None = None
    """The one whose servers these are, as it is registered."""


NO_CATALOG = Catalog()


class Catalogs(Protocol):
    """Connections to the servers of a process, and what they offer."""

    async def offered(self, agent: AgentDefinition) -> AgentDefinition:
        """The agent with the tools of its servers among its own, and `catalog` set.

        The same object as long as nothing changed. Servers are connected to where they are not; they are asked again where
        they said that their tools changed, or cannot say it. One that fails then counts as unchanged, and is asked again the
        next time. Raises `McpUnavailableError` where one cannot be reached of which nothing is known.
        """
        ...

    async def close(self) -> None:
        """Subscriptions are given up, connections that belong to nobody else are closed."""
        ...


class NoCatalogs:
    """Of a process whose agents have no servers."""

    async def offered(self, agent: AgentDefinition) -> AgentDefinition:
        return agent

    async def close(self) -> None:
        """There is nothing to close."""
