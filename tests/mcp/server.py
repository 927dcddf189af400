"""A real tool server of the official library, over standard input and output or streamable HTTP.

`python -m tests.mcp.server stdio FOLDER`, or `http FOLDER`, which writes its port into the folder. Each call of a tool leaves a
line in the folder's file `calls`; tools that wait do so until a file is there.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import SamplingMessage, TextContent


def server_at(folder: Path) -> MCPServer:
    server = MCPServer("shop")

    def count(tool: str) -> None:
        with (folder / "calls").open("a") as calls:
            calls.write(f"{tool}\n")

    @server.tool()
    def lookup(item: str) -> dict[str, Any]:
        """Price of an item."""
        count("lookup")
        return {"item": item, "price": 3, "note": None}

    @server.tool(structured_output=False)
    def say(text: str) -> str:
        """Says it."""
        count("say")
        return text

    @server.tool()
    def fail() -> str:
        """Fails."""
        count("fail")
        raise ToolError("no such order")

    @server.tool(structured_output=False)
    async def wait() -> str:
        """Waits until it may go on."""
        count("wait")
        while not (folder / "go").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        return "went on"

    @server.tool(structured_output=False)
    def die() -> str:
        """The server ends in the middle of the call."""
        count("die")
        os._exit(1)

    @server.tool(structured_output=False)
    async def learn(ctx: Context) -> str:
        """From now on there is one tool more."""
        count("learn")

        def refund() -> str:
            """Pays back."""
            count("refund")
            return "paid back"

        server.add_tool(refund, structured_output=False)
        await ctx.notify_tools_changed()
        session: Any = ctx.session
        await session.send_tool_list_changed()
        return "learned"

    @server.tool(structured_output=False)
    async def ask(ctx: Context, question: str, tokens: int) -> str:
        """What the client's model says."""
        count("ask")
        content = TextContent(type="text", text=question)
        session: Any = ctx.session
        answer = await session.create_message([SamplingMessage(role="user", content=content)], max_tokens=tokens)
        return f"{answer.model}: {answer.content.text}"

    @server.tool(structured_output=False)
    def can(ctx: Context) -> list[TextContent]:
        """What the client says that it can do."""
        able = ctx.client_capabilities
        names = [name for name in ("elicitation", "roots", "sampling") if able is not None and getattr(able, name) is not None]
        return [TextContent(type="text", text=" ".join(names))]

    return server


def main(how: str, folder: Path) -> None:
    server = server_at(folder)
    if how == "stdio":
        (folder / "pid").write_text(str(os.getpid()))
        with (folder / "started").open("a") as starts:
            starts.write("once\n")
        server.run("stdio")
        return
    wanted = folder / "port"
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", int(wanted.read_text()) if wanted.exists() else 0))
    listening.listen()
    new = folder / "port.new"
    new.write_text(str(listening.getsockname()[1]))
    new.rename(folder / "port")
    config = uvicorn.Config(server.streamable_http_app(), log_level="warning", lifespan="on")
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
