"""Leases on Redis or Valkey.

Two kinds of connections: a small pool per process and event loop, on which a call whose answer got lost is sent once more,
and one of its own for the heartbeat thread, which never waits for a second attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from deuz_workers.core.marks import Marks
from deuz_workers.errors import ConfigurationError, LeaseStoreUnavailableError
from deuz_workers.leases.script import KEYS, SCRIPT, SHA1, Call, LeaseScript
from deuz_workers.leases.sender import Sender
from deuz_workers.ports.leases import Gone, Held, Lease, LeaseRenewer, Peek, Released, Renewed, Young

SCHEMES = ("redis", "rediss", "unix", "redis+socket")
MAX_CONNECTIONS = 4
"""Per process and event loop: a call takes a third of a millisecond, and a hundred processes may share one server."""
CALL_TIMEOUT_S = 2.0
"""For one call, connecting included. A claim that takes longer is worth less than the sweep's next doorbell."""

_NOTHING_KNOWN = (RedisError, OSError, TimeoutError)


class RedisLeases:
    """A `LeaseProvider` on one Redis or Valkey server, 6.2 or later, without Cluster.

    `url`: ``redis://``, ``rediss://``, ``unix:///path?db=0`` or Celery's ``redis+socket:///path?virtual_host=0``. Nothing is
    connected before the first call. `secret` signs the revisions that leases carry; without it they carry none.
    Time is the server's. Every verb is atomic (one script) and is sent a second time when the first got no answer.
    """

    def __init__(self, url: str, *, secret: bytes | None = None, prefix: str = "deuz:") -> None:
        """Raises ConfigurationError when `url` is of another kind."""
        self._url = client_url(url)
        self._script = LeaseScript(prefix, Marks(secret))
        self._pools: dict[int, WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.BlockingConnectionPool]] = {}
        self._sender = Sender(self._attempt, _NOTHING_KNOWN, unavailable)

    def __repr__(self) -> str:
        return "RedisLeases(...)"  # the URL may hold a password

    async def acquire(
        self, key: str, owner: str, ttl_ms: int, *, revision: int = 0, force: bool = False
    ) -> Lease | Held | Young:
        answer, _ = await self._sender.ask(self._script.acquire(key, owner, ttl_ms, revision, force))
        return self._script.acquired(answer, key, owner, ttl_ms, revision)

    async def release(self, lease: Lease) -> Released | Gone:
        """Give the key back; an outdated lease has no effect.

        Never raises `LeaseStoreUnavailableError`: a release nobody confirmed counts as `again`, and the lease lapses.
        """
        return await self._sender.give_back(self._script.release(lease), self._script.released)

    async def signal(self, key: str, kind: Literal["cancel", "drain"]) -> bool:
        answer, _ = await self._sender.ask(self._script.signal(key, kind))
        return answer[0] == 1

    async def peek(self, key: str) -> Peek:
        answer, _ = await self._sender.ask(self._script.peek(key))
        return self._script.peeked(answer)

    def renewer(self, *, timeout_ms: int) -> LeaseRenewer:
        return RedisRenewer(self._url, self._script, timeout_ms)

    async def close(self) -> None:
        """The connections of the running event loop are closed; the next call would open new ones."""
        pool = self._pools.get(os.getpid(), WeakKeyDictionary()).pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    async def _attempt(self, call: Call) -> list[Any]:
        return await _evaluate(self._pool(), call)

    def _pool(self) -> redis.asyncio.BlockingConnectionPool:
        # A forked child leaves its parent's pools alone and alive: closing one would take its sockets out of the
        # selector that both processes share.
        mine = self._pools.setdefault(os.getpid(), WeakKeyDictionary())
        loop = asyncio.get_running_loop()
        pool = mine.get(loop)
        if pool is None:
            pool = mine[loop] = redis.asyncio.BlockingConnectionPool.from_url(
                self._url,
                max_connections=MAX_CONNECTIONS,
                timeout=None,  # `_evaluate` limits the whole call
                socket_timeout=None,
                socket_connect_timeout=CALL_TIMEOUT_S,
                retry=AsyncRetry(NoBackoff(), 0),  # the sender sends again itself: it has to know that it did
                protocol=2,
                decode_responses=True,
            )
        return pool


class RedisRenewer:
    """A `LeaseRenewer` with one connection; used by one thread. Every wait on the network ends after `timeout_ms`."""

    def __init__(self, url: str, script: LeaseScript, timeout_ms: int) -> None:
        timeout_s = timeout_ms / 1000
        self._script = script
        self._client = redis.Redis.from_url(
            url,
            max_connections=1,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=True,
        )

    def renew(self, leases: Sequence[Lease]) -> Sequence[Renewed | Gone]:
        """One round trip. Raises `LeaseStoreUnavailableError` when any of them got no answer."""
        if not leases:
            return ()
        pipeline = self._client.pipeline(transaction=False)
        for at, lease in enumerate(leases):
            # the first one brings the script along, so that a server that forgot it needs no second round trip
            name, text = ("EVALSHA", SHA1) if at else ("EVAL", SCRIPT)
            pipeline.execute_command(name, text, KEYS, *self._script.renew(lease))
        try:
            answers: list[Any] = pipeline.execute()
        except _NOTHING_KNOWN as error:
            self.close()  # whatever is still on its way belongs to no later call
            raise unavailable(error) from None
        return [self._script.renewed(answer, lease) for answer, lease in zip(answers, leases, strict=True)]

    def close(self) -> None:
        """The connection is closed; another call would open a new one."""
        with contextlib.suppress(*_NOTHING_KNOWN):
            self._client.close()


async def _evaluate(pool: redis.asyncio.BlockingConnectionPool, call: Call) -> list[Any]:
    """One exchange on a connection of its own; one that ends without an answer closes it, so that no later call reads that.

    What `Redis.execute_command` wraps around it, retries and metrics, would cost more than the exchange.
    """
    async with asyncio.timeout(CALL_TIMEOUT_S):
        connection = await pool.get_connection()
        try:
            try:
                return await _exchange(connection, "EVALSHA", SHA1, call)
            except NoScriptError:
                return await _exchange(connection, "EVAL", SCRIPT, call)
        finally:
            await pool.release(connection)


async def _exchange(connection: Any, name: str, script: str, call: Call) -> list[Any]:
    await connection.send_command(name, script, KEYS, *call)
    return await connection.read_response()


def client_url(url: str) -> str:
    """`url` as redis-py spells it. Raises ConfigurationError for a scheme that is none of `SCHEMES`."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigurationError(f"leases need a URL that begins with one of {', '.join(SCHEMES)}, not {parts.scheme!r}")
    if parts.scheme != "redis+socket":
        return url
    query = [("db" if name == "virtual_host" else name, value) for name, value in parse_qsl(parts.query)]
    if parts.password:
        query.append(("password", unquote(parts.password)))
    user = f"{parts.username}@" if parts.username else ""
    return f"unix://{user}{parts.path}?{urlencode(query)}"


def unavailable(error: BaseException) -> LeaseStoreUnavailableError:
    """The error that says so without the URL, which redis-py's own texts may quote."""
    reason = type(error).__name__
    if type(error) is ResponseError:
        reason = f"it refused the lease script with {str(error).partition(' ')[0]}"
    return LeaseStoreUnavailableError(f"the Redis server of the leases gave no answer: {reason}; is it up, and its URL right?")
