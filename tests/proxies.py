"""Proxies on loopback before a real server: cut a connection at a chosen moment, hold its answers, refuse it, or add TLS.

They run on an event loop in a thread of their own, so tests with threads, coroutines or worker processes can use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import trustme
from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")
Upstream = Path | tuple[str, int]
"""A unix socket, or host and port."""
DEADLINE_S = 30.0
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
GSS_REQUEST = struct.pack("!ii", 8, 80877104)
READY_FOR_QUERY = b"Z\x00\x00\x00\x05"
"""Head of the message that ends every answer of Postgres; one byte follows, the status of the transaction."""


def postgres_has_answered(reply: bytes) -> bool:
    """Whether `reply` is complete: by then the statement has ended, and its commit is durable."""
    return reply[-6:-1] == READY_FOR_QUERY


def redis_has_answered(reply: bytes) -> bool:
    """Whether a command has been executed: Redis begins to answer when it is done."""
    return bool(reply)


class Cut:
    """A cut that was ordered; `happened` is set once it was made."""

    def __init__(self, needle: bytes, when: Literal["before", "after"]) -> None:
        self.needle = needle
        self.when = when
        self.happened = threading.Event()

    def wait(self) -> None:
        """The cut was made. Fails after 30 seconds."""
        assert self.happened.wait(DEADLINE_S), f"no request with {self.needle!r} came by"


class CuttingProxy:
    """A proxy before one server; a context manager."""

    def __init__(self, upstream: Upstream, has_answered: Callable[[bytes], bool]) -> None:
        self._upstream = upstream
        self._has_answered = has_answered
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="proxy")
        self._open: dict[asyncio.Task[Any], list[asyncio.StreamWriter]] = {}
        self._cuts: list[Cut] = []
        self._swallowing: set[asyncio.Task[Any]] = set()
        self.port = 0
        self.accepted = 0
        """Connections that were accepted so far."""

    @classmethod
    def before_postgres(cls, url: str) -> Self:
        """A proxy before the server of a database URL."""
        parts = conninfo_to_dict(url)
        host, port = str(parts.get("host", "127.0.0.1")), int(parts.get("port") or 5432)
        return cls(Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port), postgres_has_answered)

    @classmethod
    def before_redis(cls, url: str) -> Self:
        """A proxy before the server of a Redis URL."""
        parts = urlsplit(url)
        upstream = Path(parts.path) if parts.scheme == "unix" else (parts.hostname or "127.0.0.1", parts.port or 6379)
        return cls(upstream, redis_has_answered)

    def postgres_url(self, url: str) -> str:
        """The same database through this proxy."""
        parts = conninfo_to_dict(url)
        account = str(parts.get("user", "postgres")) + (f":{parts['password']}" if parts.get("password") else "")
        return f"postgresql://{account}@127.0.0.1:{self.port}/{parts.get('dbname', '')}"

    def redis_url(self, database: int = 0) -> str:
        """A database of the server through this proxy."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def cut(self) -> None:
        """Every open connection is reset now; new ones are accepted."""
        self._call(self._cut_all())

    def cut_before(self, needle: bytes) -> Cut:
        """The next request that contains `needle` never reaches the server: its connection is reset instead."""
        return self._ordered(Cut(needle, "before"))

    def cut_after(self, needle: bytes) -> Cut:
        """The next request that contains `needle` is answered by the server, and the client is reset instead of told."""
        return self._ordered(Cut(needle, "after"))

    def hold_replies(self) -> None:
        """Clients get nothing more from the server, whose answers wait here; requests still pass."""
        self._call(self._set_passing(False))

    def release_replies(self) -> None:
        """What was held arrives, and everything after it."""
        self._call(self._set_passing(True))

    def swallow(self) -> None:
        """Connections that are open now stay open, and no answer arrives on them any more; new ones are as they should be."""
        self._call(self._swallow_all())

    def refuse(self) -> None:
        """New connections are refused, as by a server that is down; open ones are reset."""
        self._call(self._close_door())
        self.cut()

    def accept(self) -> None:
        """New connections are accepted again, on the same port."""
        self._call(self._open_door())

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(DEADLINE_S)

    def _ordered(self, cut: Cut) -> Cut:
        self._cuts.append(cut)
        return cut

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._passing = asyncio.Event()
        self._passing.set()
        await self._open_door()
        self._ready.set()
        await self._stopping.wait()
        await self._close_door()
        await self._cut_all()

    async def _open_door(self) -> None:
        self._door = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._door.sockets[0].getsockname()[1]

    async def _close_door(self) -> None:
        self._door.close()

    async def _set_passing(self, passing: bool) -> None:
        if passing:
            self._passing.set()
        else:
            self._passing.clear()

    async def _swallow_all(self) -> None:
        self._swallowing.update(self._open)

    async def _cut_all(self) -> None:
        serving = list(self._open)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """One connection from its first byte to its reset; which end gave up first makes no difference."""
        task = asyncio.current_task()
        assert task
        self.accepted += 1
        self._open[task] = [client_out]
        try:
            await self._greet(client_in, client_out)
            server_in, server_out = await self._connect()
            self._open[task].append(server_out)
            await self._talk(client_in, client_out, server_in, server_out)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            for writer in self._open.pop(task):
                reset(writer)

    async def _greet(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """What happens before the server is called; nothing here."""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._upstream, Path):
            return await asyncio.open_unix_connection(str(self._upstream))
        return await asyncio.open_connection(*self._upstream)

    async def _talk(
        self,
        client_in: asyncio.StreamReader,
        client_out: asyncio.StreamWriter,
        server_in: asyncio.StreamReader,
        server_out: asyncio.StreamWriter,
    ) -> None:
        withheld: list[Cut] = []  # not empty: the answer to this connection's request is not to arrive
        pumps = [
            asyncio.create_task(self._requests(client_in, server_out, withheld)),
            asyncio.create_task(self._replies(asyncio.current_task(), server_in, client_out, withheld)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, withheld: list[Cut]) -> None:
        seen = b""
        while data := await source.read(65536):
            seen += data
            cut = next((cut for cut in self._cuts if cut.needle in seen), None)
            if cut is not None:
                self._cuts.remove(cut)
                if cut.when == "before":
                    cut.happened.set()
                    return
                withheld.append(cut)
            seen = seen[-max((len(cut.needle) for cut in self._cuts), default=1) :]
            sink.write(data)
            await sink.drain()

    async def _replies(
        self, serving: asyncio.Task[Any] | None, source: asyncio.StreamReader, sink: asyncio.StreamWriter, withheld: list[Cut]
    ) -> None:
        answer = b""
        while data := await source.read(65536):
            if serving in self._swallowing:
                continue
            if withheld:
                answer += data
                if self._has_answered(answer):
                    withheld[0].happened.set()
                    return
                continue
            await self._passing.wait()
            sink.write(data)
            await sink.drain()


class TlsPostgresProxy(CuttingProxy):
    """TLS before a Postgres that has none, on loopback: libpq ignores `sslmode` on a unix socket.

    A client that does not ask for TLS is cut off. `ca_file` is the certificate to verify against, for `127.0.0.1`.
    """

    ca_file: Path

    def present_certificate(self, folder: Path) -> Self:
        """The proxy has a certificate of an authority of its own, whose certificate lies in `folder`. Call it first."""
        authority = trustme.CA()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._context)
        self.ca_file = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca_file))
        return self

    async def _greet(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        asked = await client_in.readexactly(8)
        if asked == GSS_REQUEST:
            client_out.write(b"N")
            asked = await client_in.readexactly(8)
        if asked != SSL_REQUEST:
            raise ConnectionAbortedError
        client_out.write(b"S")
        await client_out.drain()
        await client_out.start_tls(self._context)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, not in order: what was not delivered is lost."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
