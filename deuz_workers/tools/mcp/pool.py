"""Connections to servers, shared by everything in a process that names the same server."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Coroutine
from typing import Any

from deuz_workers.ports.mcp import McpClient
from deuz_workers.tools.mcp.server import McpServer

Connect = Callable[[McpServer], Coroutine[Any, Any, McpClient]]
Key = tuple[object, ...]


class McpPool:
    """Owns connections: runs borrow them, and whoever made the pool closes it. Usable from any loop and behind a fork; a
    connection belongs to the loop it was made on."""

    def __init__(self, connect: Connect | None = None) -> None:
        """`connect` takes the place of the client library; for tests and for clients of one's own."""
        self._connect = connect or connect_mcp
        self._kept: dict[Key, tuple[McpServer, asyncio.Task[McpClient]]] = {}

    async def borrow(self, server: McpServer) -> McpClient:
        """The open connection to `server`, or a new one. Those who ask at the same time share one attempt; one that failed or
        has closed is not kept. A live client of the caller's is handed back as it is.

        Raises `McpUnavailableError`, `ConfigurationError` where the client library is not installed.
        """
        if server.client is not None:
            return server.client
        key = (os.getpid(), id(asyncio.get_running_loop()), *server.pool_key)
        kept = self._kept.get(key)
        if kept is None or _is_over(kept[1]):
            connecting = asyncio.ensure_future(self._connect(server))
            connecting.add_done_callback(_heard)
            # the entry is kept with it: its functions count by identity, which must not come to mean another object
            kept = self._kept[key] = (server, connecting)
        try:
            return await asyncio.shield(kept[1])
        except BaseException:
            if kept[1].done() and self._kept.get(key) is kept:
                del self._kept[key]
            raise

    @property
    def open_connections(self) -> int:
        """Made on any loop."""
        return sum(not _is_over(task) for _, task in self._kept.values())

    async def close(self) -> None:
        """Connections of the running loop have ended. The pool can be used again."""
        here = (os.getpid(), id(asyncio.get_running_loop()))
        mine = {key: kept for key, kept in self._kept.items() if key[:2] == here}
        for key in mine:
            del self._kept[key]
        await asyncio.gather(*(_close(task) for _, task in mine.values()))


def _is_over(task: asyncio.Task[McpClient]) -> bool:
    """Failed, or closed since."""
    if not task.done():
        return False
    return task.cancelled() or task.exception() is not None or not task.result().is_open


def _heard(task: asyncio.Task[McpClient]) -> None:
    """Whoever waited may be gone; nobody else complains of what it raised."""
    if not task.cancelled():
        task.exception()


async def _close(task: asyncio.Task[McpClient]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    elif not task.cancelled() and task.exception() is None:
        await task.result().close()


async def connect_mcp(server: McpServer) -> McpClient:
    """An open connection of yours, for agents of this loop and for whatever else a server offers; close it when done.

    Raises `McpUnavailableError`, `ConfigurationError` where the client library is not installed.
    """
    # The library takes half a second and more to import, in which nothing else of the loop would go on; it is imported once.
    module = await asyncio.to_thread(importlib.import_module, "deuz_workers.tools.mcp.connection")
    return await module.connect(server)
