"""HTTP for model providers: the only module that names the HTTP library.

Its exceptions end here and become the `ModelError` family. What is raised names the host and the kind of failure, never a key,
a URL with its query, a header or a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import functools
import os
import ssl
import time
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, cast
from urllib.parse import urlsplit

import httpx

from deuz_workers.core.limits import MAX_RETRY_AFTER_MS
from deuz_workers.errors import (
    ConfigurationError,
    ModelError,
    ModelResponseError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from deuz_workers.providers.transport import SentRequest, Transport

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""A reply above this is no answer of a model; without a bound one broken server fills the memory of a worker."""
DRAIN_MS = 250
"""After the last event a server has this long to end the body, which gives the connection back for the next call."""
REFUSAL_MS = 5_000
REFUSAL_BYTES = 64 * 1024
KEPT_CONNECTIONS = 100
KEEP_ALIVE_S = 30.0
"""Below the idle limits of common load balancers (60 s and more), so that a kept connection is rarely a dead one."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in milliseconds, of one try unless they say otherwise; a whole call is bounded by the request's `timeout_ms` too.

    Reasoning models are silent for minutes, before the first byte and between chunks; hence the generous defaults.
    """

    connect_ms: int = 10_000
    first_byte_ms: int = 300_000
    """From the request until the status line and headers have arrived."""
    between_chunks_ms: int = 300_000
    total_ms: int | None = None
    """Of a whole call, its retries and the waits between them included; None: the request's `timeout_ms` alone."""


@contextlib.asynccontextmanager
async def within(limit_ms: float | None, what: str) -> AsyncGenerator[None]:
    """End the block after `limit_ms` with `ModelTimeoutError(what)`; None for no limit. A cancellation stays one."""
    scope = asyncio.timeout(None if limit_ms is None else limit_ms / 1000)
    try:
        async with scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise ModelTimeoutError(what) from None


class HttpReply:
    """Status and headers of a reply whose body is still on its way."""

    def __init__(self, response: httpx.Response, host: str, timeouts: Timeouts) -> None:
        self._response = response
        self.host = host
        self._timeouts = timeouts
        self.size_bytes = 0
        """What has arrived of the body."""

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def content_type(self) -> str:
        """Media type in lower case, without parameters; empty where the server gave none."""
        return self.header("content-type").partition(";")[0].strip().lower()

    def header(self, name: str) -> str:
        """Empty where it is missing."""
        return str(self._response.headers.get(name, ""))

    async def chunks(self, max_bytes: int = MAX_REPLY_BYTES) -> AsyncGenerator[bytes]:
        """The body as it arrives. Raises `ModelTimeoutError` between chunks, `ModelUnavailableError` where it is cut off,
        `ModelResponseError` where it is too long, or packed more than once: what arrives in one piece is unpacked in one
        piece, and a kilobyte that was packed twice is gigabytes."""
        if "," in self.header("content-encoding"):
            raise ModelResponseError(f"{self.host} sent a body that is packed more than once")
        silent = f"{self.host} sent nothing for {self._timeouts.between_chunks_ms} ms in the middle of its reply"
        async with contextlib.aclosing(cast(AsyncGenerator[bytes], self._response.aiter_bytes())) as body:
            while True:
                with _translated(self.host):
                    async with within(self._timeouts.between_chunks_ms, silent):
                        chunk = await anext(body, None)
                if chunk is None:
                    return
                self.size_bytes += len(chunk)
                if self.size_bytes > max_bytes:
                    raise ModelResponseError(f"{self.host} sent more than {max_bytes} bytes in one reply")
                yield chunk

    async def beginning(self) -> bytes:
        """What arrives soon of the body of a refusal, at most 64 KiB; nothing that goes wrong hides the refusal itself."""
        read = bytearray()
        with contextlib.suppress(ModelError):
            limit = within(REFUSAL_MS, "the refusal is known; its reason is not waited for")
            async with limit, contextlib.aclosing(self.chunks()) as chunks:
                async for chunk in chunks:
                    read += chunk
                    if len(read) > REFUSAL_BYTES:
                        break
        return bytes(read[:REFUSAL_BYTES])

    async def body(self, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
        async with contextlib.aclosing(self.chunks(max_bytes)) as chunks:
            return b"".join([chunk async for chunk in chunks])


@dataclass(slots=True, eq=False)
class _Client:
    """The connections of one event loop of one process, to all providers."""

    pid: int
    http: httpx.AsyncClient
    users: weakref.WeakSet[HttpPool] = field(default_factory=weakref.WeakSet[Any])
    calls: int = 0
    """On their way."""
    is_left: bool = False
    """Nobody uses it any more: the last call closes it."""


_CLIENTS: dict[asyncio.AbstractEventLoop, _Client] = {}
"""One for each loop. A connection belongs to the loop it was opened on, and after a fork to the parent; both are looked at on
every call."""


class HttpPool:
    """What one model uses of the connections of its process and loop. They are opened when first needed, shared by all models,
    and closed when the last model that used them has given them back."""

    def __init__(self, timeouts: Timeouts, transport: Transport | None = None) -> None:
        """`transport`: answers instead of a network; such a pool shares nothing."""
        self._timeouts = timeouts
        self._imitated = None if transport is None else httpx.AsyncClient(transport=_Imitation(transport), trust_env=False)

    @contextlib.asynccontextmanager
    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes) -> AsyncGenerator[HttpReply]:
        """Send one POST. Leaving the block closes a connection whose reply was not read to its end, and at once.

        Raises: `ModelUnavailableError` and `ModelTimeoutError`; with `billed` `no` where the request was not sent.
        """
        client = self._client()
        # Only connecting is left to the library; the other limits are `within` blocks, which can tell phases apart.
        connecting = httpx.Timeout(None, connect=self._timeouts.connect_ms / 1000)
        request = client.http.build_request("POST", url, headers=dict(headers), content=body, timeout=connecting)
        host = request.url.host
        client.calls += 1
        try:
            async with self._sent(client.http, request, host) as reply:
                yield reply
        finally:
            client.calls -= 1
            if client.is_left and not client.calls:
                await client.http.aclose()

    @contextlib.asynccontextmanager
    async def _sent(self, http: httpx.AsyncClient, request: httpx.Request, host: str) -> AsyncGenerator[HttpReply]:
        silent = f"{host} did not begin to answer within {self._timeouts.first_byte_ms} ms"
        with _translated(host):
            async with within(self._timeouts.first_byte_ms, silent):
                response = await http.send(request, stream=True)
        try:
            yield HttpReply(response, host, self._timeouts)
        finally:
            with _translated(host):
                await response.aclose()

    async def close(self) -> None:
        """Give the connections of the running loop back; the next call takes new ones. Calls on their way go on to their end,
        and the last of them closes what nobody else uses."""
        client = _CLIENTS.get(asyncio.get_running_loop())
        if client is None or client.pid != os.getpid() or self not in client.users:
            return
        client.users.discard(self)
        if client.users:
            return
        del _CLIENTS[asyncio.get_running_loop()]
        client.is_left = True
        if not client.calls:
            await client.http.aclose()

    def _client(self) -> _Client:
        if self._imitated is not None:
            return _Client(os.getpid(), self._imitated)
        loop, here = asyncio.get_running_loop(), os.getpid()
        client = _CLIENTS.get(loop)
        if client is None or client.pid != here:
            # A client of the parent process is dropped, not closed: its sockets are the parent's.
            for ended in [known for known in list(_CLIENTS) if known.is_closed()]:
                _CLIENTS.pop(ended, None)
            kept = httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S)
            client = _CLIENTS[loop] = _Client(here, httpx.AsyncClient(verify=_tls(), limits=kept, cookies=_no_cookies()))
        client.users.add(self)
        return client


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    retry_after_ms: int | None


async def post_pinned(
    url: str,
    *,
    authority: str,
    name: str,
    headers: Mapping[str, str],
    body: bytes,
    most_wait_ms: int = MAX_RETRY_AFTER_MS,
) -> Answered:
    """One POST to `url`, whose host is an address, as if it had the name: in the header `Host`, and for the certificate.

    On a connection of its own, without proxies, cookies and redirects; of the answer the head is read. `most_wait_ms`: that
    it may ask for. Raises `ModelError`.
    """
    none_kept = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(verify=_tls(), limits=none_kept, cookies=_no_cookies(), trust_env=False) as http:
        given = {**headers, "host": authority}
        extensions = {"sni_hostname": name}
        request = http.build_request("POST", url, headers=given, content=body, timeout=None, extensions=extensions)
        with _translated(name):
            answer = await http.send(request, stream=True, follow_redirects=False)
            await answer.aclose()
    return Answered(answer.status_code, retry_after_ms(answer.headers.get("retry-after", ""), "", most_ms=most_wait_ms))


class _Imitation(httpx.AsyncBaseTransport):
    """Hands requests to a function instead of sending them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._transport(SentRequest(str(request.url), dict(request.headers), await request.aread()))
        return httpx.Response(answer.status, headers=dict(answer.headers), content=answer.body)


def _no_cookies() -> CookieJar:
    """Keeps none: what one key's requests were answered with is not sent along with another's."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates costs 20 ms."""
    return httpx.create_ssl_context()


@contextlib.contextmanager
def _translated(host: str) -> Generator[None]:
    """Exceptions of the library, and of the sockets below it, as ours; the originals hold the request and are let go."""
    try:
        yield
    except httpx.ConnectTimeout:
        raise ModelTimeoutError(f"{host} did not accept a connection in time", billed="no") from None
    except (httpx.ConnectError, httpx.ProxyError) as error:
        raise ModelUnavailableError(f"{host} cannot be reached ({type(error).__name__})", billed="no") from None
    except httpx.DecodingError:
        raise ModelResponseError(f"{host} sent a body that is not encoded as its headers say") from None
    except (httpx.HTTPError, httpx.StreamError, OSError) as error:
        raise ModelStreamBrokenError(f"{host} broke the connection off ({type(error).__name__})") from None


def check_base_url(base_url: str) -> str:
    """The URL without a slash at its end. Raises: `ConfigurationError`, naming what is wrong without repeating the URL."""
    try:
        url = httpx.URL(base_url)
        _ = urlsplit(base_url).port  # refuses brackets and ports that the line above lets pass
    except (httpx.InvalidURL, ValueError):
        raise ConfigurationError("base_url is no URL; it looks like https://host/v1") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError("base_url needs a scheme and a host; it looks like https://host/v1")
    if url.query or url.fragment or url.userinfo:
        raise ConfigurationError("base_url takes no query, fragment or password; pass secrets as api_key or headers")
    return base_url.rstrip("/")


def retry_after_ms(header: str, header_ms: str, now_s: float | None = None, *, most_ms: int = MAX_RETRY_AFTER_MS) -> int | None:
    """What a server asked to wait, in milliseconds, from 0 to `most_ms`; None where it did not say, or nothing readable.

    Args: `header`, the value of `Retry-After`: seconds, with or without a fraction, or an HTTP date (RFC 9110, 10.2.3).
    `header_ms`, the value of `retry-after-ms`, which Azure and OpenAI send beside it and which is the finer of the two
    (openai-python 1.x and later read it first). `now_s`, Unix time that a date is compared with.
    """
    for text, unit_ms in ((header_ms, 1.0), (header, 1000.0)):
        try:
            asked_ms = float(text) * unit_ms
        except ValueError:
            continue
        if 0 <= asked_ms < float("inf"):  # false for NaN
            return round(min(asked_ms, most_ms))
    try:
        moment_s = email.utils.parsedate_to_datetime(header).timestamp()
    except (
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        OSError,
    ):  # a date without a zone may be out of the clock's range
        return None
    asked_ms = (moment_s - (time.time() if now_s is None else now_s)) * 1000
    return round(min(max(asked_ms, 0), most_ms))
