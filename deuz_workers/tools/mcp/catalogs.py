"""Tools of servers joined with an agent's own: names, clashes, fingerprints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from deuz_workers.core.catalog import fingerprint_tools
from deuz_workers.core.failure import text_of
from deuz_workers.errors import CodecError, ConfigurationError
from deuz_workers.ports.catalog import Catalog, ToolServers
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.mcp import Wire
from deuz_workers.ports.runtime import Clock
from deuz_workers.ports.tool import Tool
from deuz_workers.tools.mcp.mount import Mount
from deuz_workers.tools.mcp.names import namespaces, tool_name
from deuz_workers.tools.mcp.pool import McpPool
from deuz_workers.tools.mcp.server import McpServer
from deuz_workers.tools.mcp.tool import McpTool

Lists = tuple[tuple[Wire, ...], ...]


class McpCatalogs:
    """Implements `Catalogs`. `pool`: for agents that name none; closed with this where it is its own."""

    def __init__(self, clock: Clock, pool: McpPool | None = None) -> None:
        self._clock = clock
        self._pool = pool or McpPool()
        self._is_owner = pool is None
        self._mounts: dict[int, tuple[ToolServers, tuple[Mount, ...]]] = {}
        self._made: dict[int, _Made] = {}

    async def offered(self, agent: AgentDefinition) -> AgentDefinition:
        if agent.mcp is None:
            return agent
        base = (agent.catalog and agent.catalog.agent) or agent
        made = self._made.get(id(base))
        mounts = self._of(agent.mcp)
        if len(mounts) == 1:
            lists: Lists = (await mounts[0].read(),)
        else:
            lists = await _all_read(mounts)
        if made is not None and all(old is new for old, new in zip(made.lists, lists, strict=True)):
            return made.merged
        merged = with_tools(base, mounts, lists)
        self._made[id(base)] = _Made(base, lists, merged)
        return merged

    async def close(self) -> None:
        for _, mounts in self._mounts.values():
            for mount in mounts:
                mount.leave()
        self._mounts.clear()
        self._made.clear()
        if self._is_owner:
            await self._pool.close()

    def _of(self, servers: ToolServers) -> tuple[Mount, ...]:
        known = self._mounts.get(id(servers))
        if known is None:
            pool = cast("McpPool | None", servers.pool) or self._pool
            mounts = tuple(Mount(cast(McpServer, entry), pool, self._clock) for entry in servers.entries)
            known = self._mounts[id(servers)] = (servers, mounts)
        return known[1]


class _Made:
    """A definition with what its servers listed. `base` is kept with it, since it is found by its identity."""

    def __init__(self, base: AgentDefinition, lists: Lists, merged: AgentDefinition) -> None:
        self.base = base
        self.lists = lists
        self.merged = merged


async def _all_read(mounts: Sequence[Mount]) -> Lists:
    """Side by side. Raises what the first one raised that failed, when all have ended."""
    read = await asyncio.gather(*(mount.read() for mount in mounts), return_exceptions=True)
    for one in read:
        if isinstance(one, BaseException):
            raise one
    return cast(Lists, tuple(read))


def with_tools(agent: AgentDefinition, mounts: Sequence[Mount], lists: Lists) -> AgentDefinition:
    """The agent's own tool stands before a server's of its name, and of two servers' the one of the later entry."""
    found: dict[str, Tool] = {}
    fingerprints: dict[str, str] = {}
    clashes: list[str] = []
    for mount, name, definition in _named(mounts, lists):
        label = mount.server.label
        if name is None:
            clashes.append(f"a tool of MCP server {label!r} is not offered: it has no name")
            continue
        if name in agent.tools:
            clashes.append(f"tool {name!r} of MCP server {label!r} is not offered: the agent has a tool of that name")
            continue
        try:
            made = McpTool(name, definition, mount.server, mount.call)
            fingerprint = fingerprint_tools((made,))[name]
        except ConfigurationError as error:
            clashes.append(f"tool {name!r} of MCP server {label!r} is not offered: {error.message}")
            continue
        except (CodecError, RecursionError) as error:  # its other tools are none the worse for it
            problem = text_of(error).rpartition(": ")[2]
            clashes.append(f"tool {name!r} of MCP server {label!r} is not offered: its schema cannot be recorded, {problem}")
            continue
        if name in found:
            clashes.append(f"tool {name!r} of MCP server {label!r} takes the place of an earlier tool of that name")
        found[name], fingerprints[name] = cast(Tool, made), fingerprint
    catalog = Catalog(found, fingerprints, tuple(clashes), agent)
    return replace(agent, tools={**found, **agent.tools}, catalog=catalog)


def _named(mounts: Sequence[Mount], lists: Lists) -> Iterator[tuple[Mount, str | None, Mapping[str, object]]]:
    """Without a name where a client hands over what no server may list."""
    prefixes = namespaces([mount.server.namespace for mount in mounts], [mount.name for mount in mounts])
    for mount, prefix, tools in zip(mounts, prefixes, lists, strict=True):
        for definition in tools:
            spelled = definition.get("name")
            yield mount, tool_name(prefix, spelled) if isinstance(spelled, str) else None, definition
