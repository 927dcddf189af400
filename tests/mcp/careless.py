"""A real tool server that does not keep to the output schema it declares, over standard input and output.

`python -m tests.mcp.careless`: the library's own higher layer checks results before they leave, so this one stands below it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool

PRICE = {"type": "object", "properties": {"price": {"type": "integer"}}, "required": ["price"]}
RESULTS: dict[str, dict[str, Any]] = {
    "good": {"structured_content": {"price": 3}},
    "missing": {},
    "misfit": {"structured_content": {"price": "three"}},
}


async def listed(ctx: Any, params: Any) -> ListToolsResult:
    return ListToolsResult(tools=[Tool(name=name, input_schema={"type": "object"}, output_schema=PRICE) for name in RESULTS])


async def called(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text="three")], **RESULTS[params.name])


async def main() -> None:
    server = Server("careless", on_list_tools=listed, on_call_tool=called)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
