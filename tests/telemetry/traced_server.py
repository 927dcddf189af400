"""`python -m tests.telemetry.traced_server`: a tool server that says which trace a call of its tool belongs to."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import Context, MCPServer


def main() -> None:
    server = MCPServer("traced")

    @server.tool(structured_output=False)
    def whereabouts(ctx: Context) -> str:
        """The trace of this call."""
        meta: Any = ctx.request_context.meta
        return str((meta or {}).get("traceparent"))

    server.run("stdio")


if __name__ == "__main__":
    main()
