"""A tool of a server, as the engine knows it: it takes the same path as every other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from deuz_workers.core.catalog import object_schema
from deuz_workers.ports.mcp import Wire
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.arguments import Arguments
from deuz_workers.tools.declared import DeclaredTool
from deuz_workers.tools.mcp.result import value_of
from deuz_workers.tools.mcp.server import McpServer
from deuz_workers.tools.options import Options
from deuz_workers.tools.projection import Projection

Call = Callable[[str, Mapping[str, object], bool], Awaitable[Wire]]
"""The server's tool by its own name, arguments, and whether the call may be repeated on a new connection."""


class McpTool(DeclaredTool):
    """Implements `Tool`. `definition`: as the server sent it; `output_schema` is kept and not checked here: that is up to the
    client, and a value that it lets pass is recorded as it came."""

    def __init__(self, name: str, definition: Wire, server: McpServer, call: Call) -> None:
        """Raises `ConfigurationError` where the server's schema is none."""
        spelled = str(definition["name"])
        options = Options(
            name,
            str(definition.get("description") or ""),
            server.replay_of(spelled),
            server.asks_for(spelled),
            server.timeout_ms,
            server.max_result_bytes,
        )
        arguments = Arguments.from_schema(name, object_schema(definition.get("inputSchema")))
        super().__init__(options, arguments, Projection(name, None, None, None))
        self.spelled = spelled
        """As the server has it."""
        self.output_schema: Mapping[str, Any] | None = definition.get("outputSchema")
        self._label = server.label
        self._call = call

    def __repr__(self) -> str:
        return f"<tool {self.name} of server {self._label}>"

    @property
    def replay(self) -> Literal["idempotent"] | None:
        return self._options.replay

    @property
    def timeout_ms(self) -> int | None:
        return self._options.timeout_ms

    @property
    def is_client(self) -> bool:
        return False

    @property
    def is_scoped(self) -> bool:
        return False

    def read_context(self, value: Any) -> Any:
        """Nothing is read."""
        return value

    async def run(self, arguments: Mapping[str, object], context: ToolContext) -> object:
        """What the server returned. Raises `ToolError` for what it calls an error, and where the connection was lost."""
        given = self._arguments.converted(arguments)
        return value_of(await self._call(self.spelled, given, self.replay == "idempotent"))
