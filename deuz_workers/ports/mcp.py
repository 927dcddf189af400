"""A connected tool server (MCP): what an agent asks of it, and what stands in for it in tests.

Definitions and results are plain values as the protocol spells them (`inputSchema`, `structuredContent`, `isError`), so that
nothing here depends on a client library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from deuz_workers.errors import McpUnavailableError

Wire = Mapping[str, Any]
"""A JSON object as the protocol has it."""


class McpConnectionLost(McpUnavailableError):
    """The connection ended before the answer came."""

    code = "mcp_connection_lost"

    def __init__(self, message: str | None = None, *, sent: bool = True, **given: Any) -> None:
        """`sent` False: the server certainly never began the call."""
        super().__init__(message, sent=sent, **{name: value for name, value in given.items() if name != "sent"})

    @property
    def was_sent(self) -> bool:
        return self.fields.get("sent") is not False


class McpClient(Protocol):
    """One connection. An object with these operations is used as a server of an agent like one that was configured."""

    @property
    def name(self) -> str | None:
        """What the server calls itself; None where it does not say."""
        ...

    @property
    def is_open(self) -> bool:
        """Calls can be made. One that has closed never opens again."""
        ...

    @property
    def tells_changes(self) -> bool:
        """Whoever asked with `on_tools_changed` is told; False: the tools have to be listed again to know."""
        ...

    async def list_tools(self) -> Sequence[Wire]:
        """All tools: `name`, `description`, `inputSchema`, `outputSchema`."""
        ...

    async def call_tool(self, name: str, arguments: Mapping[str, object]) -> Wire:
        """`content`, `structuredContent`, `isError`.

        Raises `McpConnectionLost`, `ToolError` with what the server or the client says against the call or its result.
        Cancelling ends the wait and tells the server.
        """
        ...

    async def list_resources(self) -> Sequence[Wire]: ...

    async def read_resource(self, uri: str) -> Wire: ...

    async def list_prompts(self) -> Sequence[Wire]: ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Wire: ...

    def on_tools_changed(self, told: Callable[[], None]) -> Callable[[], None]:
        """`told` is called whenever the server says that its tools changed, until the returned function is called."""
        ...

    async def close(self) -> None:
        """The connection has ended; a process that was started for it, too."""
        ...
