"""A connection to a server over the official client library.

The library's sessions are entered and left by one and the same task, so each connection has a task of its own, which lives as
long as the connection; calls come from any other task of the loop. What the library or a server does in there ends at most that
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import httpx2
import mcp
import mcp_types
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from deuz_workers.core.failure import bounded
from deuz_workers.errors import McpUnavailableError, ToolError
from deuz_workers.ports.mcp import McpConnectionLost, Wire
from deuz_workers.tools.mcp.server import McpServer

T = TypeVar("T")

CLOSE_PATIENCE_S = 8.0
"""For a server's process to end: the library itself waits 2 s for it to leave, 2 s after SIGTERM and 2 s after SIGKILL."""
NOT_FOUND = 404
SESSION = "mcp-session-id"
"""Header of a request within a session."""
LISTEN_AGAIN_S = 1.0
"""Between a stream of changes that broke off and the next."""
WRITE_TIMEOUT_S = 30.0
STDERR = 2
MOST_REASON = 300
"""Characters of what the library says."""
MOST_PAGES = 100
"""Of a list; a server whose list never ends is one that fails."""

log = logging.getLogger(__name__)


class McpConnection:
    """Implements `McpClient`. Made by `connect`."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._client: mcp.Client | None = None
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cause: BaseException | None = None
        self._told: list[Callable[[], None]] = []
        self._is_modern = False
        self._listens = False
        # what is bound in the context of the run that happened to connect is none of the connection's
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="deuz-mcp", context=contextvars.Context())

    async def opened(self) -> McpConnection:
        """Raises `McpUnavailableError` that says why there is no connection."""
        limit_ms = self._server.connect_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await asyncio.wait([self._ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await self.close()
            raise McpUnavailableError(f"MCP server {self._server.label!r} did not answer within {limit_ms} ms") from None
        except asyncio.CancelledError:
            self._end()
            raise
        if not self.is_open:
            raise McpUnavailableError(f"MCP server {self._server.label!r} cannot be reached: {_reason(self._cause)}")
        return self

    @property
    def name(self) -> str | None:
        info = None if self._client is None else self._client.server_info
        return None if info is None else info.name

    @property
    def is_open(self) -> bool:
        return self._client is not None and not self._closing.is_set()

    @property
    def tells_changes(self) -> bool:
        return self._listens if self._is_modern else self._announces_changes

    async def list_tools(self) -> Sequence[Wire]:
        return await self._pages(lambda client, cursor: client.list_tools(cursor=cursor), "tools")

    async def call_tool(self, name: str, arguments: Mapping[str, object]) -> Wire:
        result = await self._asked(lambda client: client.call_tool(name, dict(arguments)))
        wire = _wire(result)
        if result.structured_content is not None:
            wire["structuredContent"] = result.structured_content  # as it came, with whatever is null in it
        return wire

    async def list_resources(self) -> Sequence[Wire]:
        return await self._pages(lambda client, cursor: client.list_resources(cursor=cursor), "resources")

    async def read_resource(self, uri: str) -> Wire:
        return _wire(await self._asked(lambda client: client.read_resource(uri)))

    async def list_prompts(self) -> Sequence[Wire]:
        return await self._pages(lambda client, cursor: client.list_prompts(cursor=cursor), "prompts")

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Wire:
        given = None if arguments is None else dict(arguments)
        return _wire(await self._asked(lambda client: client.get_prompt(name, given)))

    def on_tools_changed(self, told: Callable[[], None]) -> Callable[[], None]:
        self._told.append(told)
        return lambda: self._told.remove(told) if told in self._told else None

    async def close(self) -> None:
        self._end()
        await asyncio.wait([self._task], timeout=CLOSE_PATIENCE_S)
        if not self._task.done():
            log.error("mcp_left_open server=%s", self._server.label)
            self._task.cancel()

    def _end(self) -> None:
        self._closing.set()
        if not self._ready.done():  # it does not look at that before it is connected
            self._task.cancel()

    # -- the connection's own task -------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            async with self._made() as client:
                self._client = client
                self._is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
                async with anyio.create_task_group() as beside:
                    if self._is_modern and self._announces_changes:
                        beside.start_soon(self._listen, client)
                    if self._server.keep_alive_ms is not None:
                        beside.start_soon(self._keep_alive, client, self._server.keep_alive_ms / 1000)
                    self._ready.set_result(None)
                    await self._closing.wait()
                    beside.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - whatever the library or a server does ends this connection alone
            self._cause = error
        finally:
            self._closing.set()
            self._client = None
            self._tell_changes()  # whoever connects again has to look

    @contextlib.asynccontextmanager
    async def _made(self) -> AsyncGenerator[mcp.Client]:
        server = self._server
        async with contextlib.AsyncExitStack() as stack:
            if server.url is not None:
                timeout = httpx2.Timeout(WRITE_TIMEOUT_S, connect=server.connect_timeout_ms / 1000, read=None)
                http = _Client(headers=dict(server.headers), auth=server.auth, timeout=timeout)
                transport = streamable_http_client(server.url, http_client=await stack.enter_async_context(http))
            else:
                assert server.command is not None
                started = StdioServerParameters(
                    command=server.command, args=list(server.args), env=dict(server.env), cwd=server.cwd
                )
                # not sys.stderr, which Celery and others replace by what is no file
                errors = stack.enter_context(os.fdopen(os.dup(STDERR), "w"))
                transport = stdio_client(started, errlog=errors)
            client = mcp.Client(
                _Watched(transport, self._closing.set),
                mode=server.protocol,
                cache=None,
                message_handler=self._heard,
                sampling_callback=None if server.sampling is None else server.sampling.answer,
                elicitation_callback=server.elicitation,
                list_roots_callback=server.roots,
            )
            yield await stack.enter_async_context(client)

    @property
    def _announces_changes(self) -> bool:
        tools = None if self._client is None else self._client.server_capabilities.tools
        return tools is not None and tools.list_changed is True

    async def _heard(self, message: object) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._tell_changes()

    async def _listen(self, client: mcp.Client) -> None:
        """Changes of the newer protocol come in a stream that has to be asked for; what it missed is looked up."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._listens = True
                    self._tell_changes()
                    async for _ in changes:
                        self._tell_changes()
            except (ListenNotSupportedError, mcp.MCPError):
                return
            except SubscriptionLost:
                pass
            finally:
                self._listens = False
            await anyio.sleep(LISTEN_AGAIN_S)

    async def _keep_alive(self, client: mcp.Client, every_s: float) -> None:
        while True:
            await anyio.sleep(every_s)
            try:
                with anyio.fail_after(every_s):
                    await (
                        client.session.send_discover(client.protocol_version) if self._is_modern else client.session.send_ping()
                    )
            except (TimeoutError, mcp.MCPError):
                log.warning("mcp_silent server=%s", self._server.label)
                self._closing.set()
                return

    def _tell_changes(self) -> None:
        for told in tuple(self._told):
            told()

    # -- calls, from other tasks ---------------------------------------------------------------------------------------

    async def _asked(self, ask: Callable[[mcp.Client], Any]) -> Any:
        client = self._client
        if client is None or self._closing.is_set():
            raise McpConnectionLost(f"the connection to MCP server {self._server.label!r} has ended", sent=False)
        fate = _Fate(began=self._server.url is None)
        place = _FATE.set(fate)
        try:
            return await ask(client)
        except mcp.MCPError as error:
            raise self._failed(error, fate) from error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise self._lost(fate) from error
        except (RuntimeError, ValidationError) as error:  # the library refuses the result
            raise ToolError(bounded(f"the result cannot be used: {error}")) from error
        finally:
            _FATE.reset(place)

    def _failed(self, error: mcp.MCPError, fate: _Fate) -> Exception:
        if error.code == mcp_types.CONNECTION_CLOSED or not fate.began:
            return self._lost(fate)
        return ToolError(bounded(f"MCP server {self._server.label!r} answered: {error.message}"))

    def _lost(self, fate: _Fate) -> McpConnectionLost:
        self._closing.set()
        text = f"the connection to MCP server {self._server.label!r} was lost during the call"
        return McpConnectionLost(text, sent=fate.began)

    async def _pages(self, ask: Callable[[mcp.Client, str | None], Any], items: str) -> Sequence[Wire]:
        found: list[Wire] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            at = cursor
            page = await self._asked(lambda client, at=at: ask(client, at))
            found += map(_wire, getattr(page, items))
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise McpUnavailableError(f"MCP server {self._server.label!r} lists {items} without an end")


class _Fate:
    """What became of the request of one call; the library hands the caller's context on to where it is sent."""

    def __init__(self, *, began: bool) -> None:
        self.began = began
        """The server may have got it. False: it was not sent, nobody took the connection, or the server does not know the
        session, since it was started anew."""


_FATE: contextvars.ContextVar[_Fate | None] = contextvars.ContextVar("deuz_mcp_fate", default=None)


class _Client(httpx2.AsyncClient):
    """Notes what the library's errors do not say."""

    async def send(self, request: httpx2.Request, **given: Any) -> httpx2.Response:
        fate = _FATE.get() if request.method == "POST" else None
        if fate is None:
            return await super().send(request, **given)
        fate.began = True
        try:
            response = await super().send(request, **given)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            fate.began = False
            raise
        fate.began = not (response.status_code == NOT_FOUND and SESSION in request.headers)
        return response


class _Watched:
    """A transport that says when the server's side of it has ended, which the library tells nobody who makes no call."""

    def __init__(self, transport: Any, ended: Callable[[], None]) -> None:
        self._transport = transport
        self._ended = ended

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._ended), write

    async def __aexit__(self, *given: Any) -> Any:
        return await self._transport.__aexit__(*given)


class _WatchedStream:
    """Hands on what it reads."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._ended()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *given: Any) -> Any:
        return await self._stream.__aexit__(*given)


async def connect(server: McpServer) -> McpConnection:
    """An open connection, which the caller closes. Raises `McpUnavailableError`."""
    return await McpConnection(server).opened()


def _wire(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [] if error is None else [error]


def _reason(error: BaseException | None) -> str:
    """Its type and first words: what is behind a URL may be anything."""
    leaves = _leaves(error)
    if not leaves:
        return "it closed the connection"
    return f"{type(leaves[0]).__name__}: {str(leaves[0])[:MOST_REASON]}"
