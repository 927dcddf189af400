"""MCP servers of agents as an application names them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.catalog import Catalogs, NoCatalogs, OnCatalogChange, ToolServers
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.mcp import McpClient
from deuz_workers.ports.runtime import Clock
from deuz_workers.tools.mcp.catalogs import McpCatalogs
from deuz_workers.tools.mcp.pool import McpPool
from deuz_workers.tools.mcp.server import McpServer

OPERATIONS = ("list_tools", "call_tool", "on_tools_changed", "is_open", "close")


def servers_of(agent: str, given: object, on_change: str, pool: object) -> ToolServers | None:
    """None: the agent has none. Raises `ConfigurationError` for what is neither a server nor a connected client."""
    if isinstance(given, str | McpServer) or not isinstance(given, Iterable):
        raise ConfigurationError(f"agent {agent!r}: mcp is a list of servers, not a {type(given).__name__}")
    entries = tuple(_entry(agent, item) for item in cast(Iterable[object], given))
    if on_change not in get_args(OnCatalogChange):
        raise ConfigurationError(f"agent {agent!r}: on_catalog_change is 'stop' or 'accept', not {on_change!r}")
    if pool is not None and not isinstance(pool, McpPool):
        raise ConfigurationError(f"agent {agent!r}: mcp_pool is a {type(pool).__name__}; pass McpPool()")
    return ToolServers(entries, cast(OnCatalogChange, on_change), pool) if entries else None


def _entry(agent: str, item: object) -> McpServer:
    if isinstance(item, McpServer):
        return item
    if missing := [name for name in OPERATIONS if not hasattr(item, name)]:
        raise ConfigurationError(
            f"agent {agent!r}: a {type(item).__name__} is no MCP server, it lacks {', '.join(missing)}; pass McpServer(...) or "
            "an object with the operations of McpClient"
        )
    return McpServer(client=cast(McpClient, item))


def catalogs_of(agents: Iterable[AgentDefinition], clock: Clock) -> Catalogs:
    """What connects to the servers of these agents in this process."""
    return McpCatalogs(clock) if any(agent.mcp is not None for agent in agents) else NoCatalogs()


def check_namespaces(agents: Iterable[AgentDefinition]) -> None:
    """Each of several servers of an agent has a namespace of its own: names that depend on the list would change with it, in
    every process at another moment (MCN-004). Raises `ConfigurationError`."""
    for agent in agents:
        entries = () if agent.mcp is None else cast(tuple[McpServer, ...], agent.mcp.entries)
        bare = [entry.label for entry in entries if entry.namespace is None]
        if len(entries) > 1 and bare:
            raise ConfigurationError(
                f"agent {agent.name!r} has {len(entries)} MCP servers; workers need McpServer(namespace=...) for each, and "
                f"{bare[0]!r} has none"
            )
