"""One server of an agent in this process: its connection, wherever that is, and what it listed last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from deuz_workers.errors import ConfigurationError, McpUnavailableError, ToolError
from deuz_workers.ports.mcp import McpClient, McpConnectionLost, Wire
from deuz_workers.ports.runtime import Clock
from deuz_workers.tools.mcp.pool import McpPool
from deuz_workers.tools.mcp.server import McpServer

LIST_AGAIN_MS = 60_000
"""A server that tells of changes is asked this often all the same: a stream of notices may have died without a word."""

log = logging.getLogger(__name__)


class Mount:
    """Of one entry. What it offers is read again when the server said that it changed, when the connection is another, and
    before every model call where the server tells of no changes."""

    def __init__(self, server: McpServer, pool: McpPool, clock: Clock) -> None:
        self.server = server
        self._pool = pool
        self._clock = clock
        self._client: McpClient | None = None
        self._forget: Callable[[], None] = lambda: None
        self._is_stale = True
        self._listed_at_ms = 0
        self._reading = asyncio.Lock()
        self.tools: tuple[Wire, ...] | None = None
        """As the server sent them, the same object as long as they are the same; None: it was never reached."""
        self.name: str | None = None

    async def read(self) -> tuple[Wire, ...]:
        """Its tools now; what they were, where the server cannot be asked and was before.

        Raises `McpUnavailableError` where it was not.
        """
        async with self._reading:
            try:
                client = await self._connected()
                if self._has_to_ask(client):
                    self._is_stale = False  # a notice that comes while the list is on its way makes it so again
                    self._take(await self._listed(client))
            except Exception as error:  # a client of the user's may raise anything
                self._is_stale = True
                log.warning("mcp_not_listed server=%s error=%s", self.server.label, type(error).__name__)
                if self.tools is None:
                    raise _unavailable(self.server, error) from error
            assert self.tools is not None
            return self.tools

    async def call(self, tool: str, arguments: Mapping[str, object], may_repeat: bool) -> Wire:
        """The server's answer. A call that certainly never began, or `may_repeat`, is made once more on a new connection.

        Raises `ToolError` that tells the model whether there may have been an effect.
        """
        label = self.server.label
        for is_last in (False, True):
            try:
                client = await self._connected()
            except McpUnavailableError as error:
                raise ToolError(f"MCP server {label!r} cannot be reached, so {tool} was not called.") from error
            try:
                return await client.call_tool(tool, arguments)
            except McpConnectionLost as lost:
                if not is_last and (may_repeat or not lost.was_sent):
                    continue
                if not lost.was_sent:
                    raise ToolError(f"MCP server {label!r} cannot be reached, so {tool} was not called.") from lost
                text = (
                    f"The connection to MCP server {label!r} was lost while {tool} ran; whether it had an effect is not known."
                )
                raise ToolError(text) from lost
        raise AssertionError("unreachable")

    def leave(self) -> None:
        """The server's notices are heard no more."""
        self._forget()
        self._client, self._forget = None, lambda: None

    async def _connected(self) -> McpClient:
        client = await self._borrowed()
        if client is not self._client:
            self.leave()
            self._client, self._is_stale, self.name = client, True, client.name
            self._forget = client.on_tools_changed(self._mark_stale)
        return client

    async def _borrowed(self) -> McpClient:
        again = self.server.reconnect
        attempt = 0
        while True:
            try:
                return await self._pool.borrow(self.server)
            except McpUnavailableError:
                attempt += 1
                if again is None or self.tools is None or attempt > again.attempts:
                    raise
                await self._clock.sleep_ms(again.wait_ms(attempt))

    async def _listed(self, client: McpClient) -> tuple[Wire, ...]:
        """Raises `McpUnavailableError` where the list does not come: every run of the process that needs it waits here."""
        limit_ms = self.server.connect_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return tuple(await client.list_tools())
        except TimeoutError:
            raise McpUnavailableError(f"MCP server {self.server.label!r} did not list its tools within {limit_ms} ms") from None

    def _mark_stale(self) -> None:
        self._is_stale = True

    def _has_to_ask(self, client: McpClient) -> bool:
        age_ms = self._clock.monotonic_ms() - self._listed_at_ms
        return self._is_stale or not client.tells_changes or age_ms >= LIST_AGAIN_MS

    def _take(self, tools: tuple[Wire, ...]) -> None:
        self._listed_at_ms = self._clock.monotonic_ms()
        if tools != self.tools:
            self.tools = tools


def _unavailable(server: McpServer, error: Exception) -> McpUnavailableError | ConfigurationError:
    if isinstance(error, McpUnavailableError | ConfigurationError):
        return error
    text = f"the tools of MCP server {server.label!r} cannot be listed: {type(error).__name__}: {error}"
    return McpUnavailableError(text)
