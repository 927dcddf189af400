"""A tool server in memory: the twin of a connection, with functions for tools and faults on demand."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deuz_workers.errors import McpUnavailableError, ToolError
from deuz_workers.ports.mcp import McpConnectionLost, Wire

Function = Callable[..., Any]

OBJECT: Mapping[str, Any] = {"type": "object"}


class MemoryMcpServer:
    """What a server offers, and what was asked of it. `client()` makes one connection after the other."""

    def __init__(self, name: str | None = None, *, tells_changes: bool = True) -> None:
        self.name = name
        self.tells_changes = tells_changes
        self.definitions: dict[str, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        """Calls that began, by tool."""
        self.counts: Counter[str] = Counter()
        """`connect`, `list`, `close`, `subscribe`, `unsubscribe`."""
        self.order: list[str] = []
        """The same and calls, in order."""
        self.is_away = False
        self.failing_lists = 0
        """So many more times a list fails."""
        self._functions: dict[str, Function] = {}
        self._clients: list[MemoryMcpClient] = []

    def add(self, name: str, function: Function, *, description: str = "", schema: Wire = OBJECT, **definition: Any) -> None:
        """Or put another in its place. The function's return value is the result, whole if it has `content`."""
        self.definitions[name] = {"name": name, "description": description, "inputSchema": dict(schema), **definition}
        self._functions[name] = function

    def remove(self, name: str) -> None:
        del self.definitions[name], self._functions[name]

    def announce(self) -> None:
        """Every connection is told that the tools changed."""
        for client in self._clients:
            client.tell()

    def restart(self) -> None:
        """Connections are gone; what is asked of them next finds that out before anything begins."""
        for client in self._clients:
            client.is_open = False
        self._clients.clear()

    def client(self) -> MemoryMcpClient:
        """Raises `McpUnavailableError` while it is away."""
        if self.is_away:
            raise McpUnavailableError(f"MCP server {self.name!r} cannot be reached: it is away")
        self.note("connect")
        made = MemoryMcpClient(self)
        self._clients.append(made)
        return made

    async def connect(self, _: object = None) -> MemoryMcpClient:
        """For `McpPool(connect)`."""
        return self.client()

    def note(self, what: str) -> None:
        self.counts[what] += 1
        self.order.append(what)

    async def call(self, name: str, arguments: Mapping[str, object]) -> Wire:
        function = self._functions.get(name)
        if function is None:
            raise ToolError(f"MCP server {self.name!r} answered: Unknown tool: {name}")
        self.calls[name] += 1
        self.order.append(f"call {name}")
        returned = function(**arguments)
        value = await returned if inspect.isawaitable(returned) else returned
        if isinstance(value, Mapping) and "content" in value:
            return value
        if isinstance(value, Mapping):
            return {"content": [{"type": "text", "text": str(dict(value))}], "structuredContent": dict(value)}
        return {"content": [{"type": "text", "text": str(value)}]}


class MemoryMcpClient:
    """Implements `McpClient`."""

    def __init__(self, server: MemoryMcpServer) -> None:
        self._server = server
        self._told: list[Callable[[], None]] = []
        self.is_open = True

    @property
    def name(self) -> str | None:
        return self._server.name

    @property
    def tells_changes(self) -> bool:
        return self._server.tells_changes

    async def list_tools(self) -> Sequence[Wire]:
        self._check()
        self._server.note("list")
        if self._server.failing_lists:
            self._server.failing_lists -= 1
            raise ToolError("the list is not there")
        return [dict(definition) for definition in self._server.definitions.values()]

    async def call_tool(self, name: str, arguments: Mapping[str, object]) -> Wire:
        self._check()
        return await self._server.call(name, arguments)

    async def list_resources(self) -> Sequence[Wire]:
        return ()

    async def read_resource(self, uri: str) -> Wire:
        raise ToolError(f"there is no resource {uri}")

    async def list_prompts(self) -> Sequence[Wire]:
        return ()

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Wire:
        raise ToolError(f"there is no prompt {name}")

    def on_tools_changed(self, told: Callable[[], None]) -> Callable[[], None]:
        self._server.note("subscribe")
        self._told.append(told)

        def leave() -> None:
            if told in self._told:
                self._told.remove(told)
                self._server.note("unsubscribe")

        return leave

    def tell(self) -> None:
        for told in tuple(self._told):
            told()

    async def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._server.note("close")

    def _check(self) -> None:
        if not self.is_open or self._server.is_away:
            self.is_open = False
            raise McpConnectionLost("the connection has ended", sent=False)
