"""Reading live parts from Redis or Valkey: all readers of an event loop over one connection.

Events, in the log as a name and key-values: ``live_unread`` (`error`; once per outage of the reading side), ``live_odd_key``
(`run`; once while the key of a run holds no stream).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from deuz_workers.core.live import LivePart, decode_part
from deuz_workers.errors import CodecError
from deuz_workers.live.redis import LiveKeys, Name, holds_something_else
from deuz_workers.ports.live import LiveSubscription, OnParts

BLOCK_MS = 1_000
"""A read without news ends after so long, and the wish to read is said again."""
WISH_MS = 15_000
"""How long executors go on telling when a reader died without a word."""
CALL_TIMEOUT_S = 3.0
READY_S = 2.0
"""A reader waits so long for the channel before it goes on without."""
AGAIN_S = 0.2
MOST_AT_ONCE = 64
"""Entries per run and read."""

NOTHING_KNOWN = (RedisError, OSError, TimeoutError)

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Channel:
    """One run, with everybody on this loop who reads it."""

    name: Name
    readers: list[_Reader] = field(default_factory=lambda: list[_Reader]())
    cursor: str | None = None
    """Of the newest entry that was read; None: the channel has to be found first."""
    is_odd: bool = False
    """Its key holds something else than a stream."""


@dataclass(eq=False, slots=True)
class _Reader:
    """A `LiveSubscription`."""

    tail: _Tail
    channel: _Channel
    on_parts: OnParts
    is_connected: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def close(self) -> None:
        await self.tail.forget(self)


class RedisTails:
    """A `LiveSource`: one connection per process and event loop, while anybody reads on it."""

    def __init__(self, url: str, *, prefix: str = "deuz:") -> None:
        """`url` as redis-py spells it."""
        self._url = url
        self._keys = LiveKeys(prefix)
        self._tails: dict[int, WeakKeyDictionary[asyncio.AbstractEventLoop, _Tail]] = {}

    def __repr__(self) -> str:
        return "RedisTails(...)"  # the URL may hold a password

    async def subscribe(self, scope: str, run_id: str, on_parts: OnParts) -> LiveSubscription:
        mine = self._tails.setdefault(os.getpid(), WeakKeyDictionary())
        loop = asyncio.get_running_loop()
        tail = mine.get(loop)
        if tail is None:
            tail = mine[loop] = _Tail(self._url, self._keys)
        return await tail.add((scope, run_id), on_parts)


class _Tail:
    """All channels of one event loop, and the task that reads them while there are any."""

    def __init__(self, url: str, keys: LiveKeys) -> None:
        self._url = url
        self._keys = keys
        self._channels: dict[Name, _Channel] = {}
        self._task: asyncio.Task[None] | None = None
        self._reads: int | None = None
        """Id of the connection that waits for news."""
        self._is_away = False
        self._wish_at_s = 0.0
        """When the wish to read is said again for all channels, by the clock of the loop."""

    async def add(self, name: Name, on_parts: OnParts) -> _Reader:
        channel = self._channels.setdefault(name, _Channel(name))
        reader = _Reader(self, channel, on_parts)
        channel.readers.append(reader)
        if channel.cursor is not None:
            reader.is_connected = True
            return reader
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._run(), name="deuz-live-tail")
            else:
                await self._interrupt()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_S):
                    await reader.ready.wait()
        except BaseException:  # nobody has it yet, so nobody else can close it
            await self.forget(reader)
            raise
        return reader

    async def forget(self, reader: _Reader) -> None:
        channel = reader.channel
        if reader in channel.readers:
            channel.readers.remove(reader)
        if not channel.readers and self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
        if not self._channels and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait((task,))

    async def _run(self) -> None:
        """Read until nobody wants to any more. A server that is away is asked again and again."""
        while self._channels:
            client = self._connect()
            self._wish_at_s = 0.0
            try:
                self._reads = int(await client.client_id())
                while self._channels:
                    await self._wish(client)
                    keys = {self._keys.stream(c.name): c for c in self._channels.values() if c.cursor is not None}
                    for key, entries in await self._read(client, keys):
                        self._deliver(keys[key], entries)
            except NOTHING_KNOWN as error:
                self._lost(error)
                await asyncio.sleep(AGAIN_S)
            finally:
                self._reads = None
                with contextlib.suppress(*NOTHING_KNOWN):
                    await client.aclose()

    async def _read(self, client: redis.asyncio.Redis, keys: dict[str, _Channel]) -> Sequence[tuple[str, Any]]:
        """News of all streams, waited for up to `BLOCK_MS`. A key that holds no stream costs its own run alone."""
        if not keys:
            await asyncio.sleep(AGAIN_S)
            return ()
        cursors: Any = {key: channel.cursor for key, channel in keys.items()}
        try:
            found: Any = await client.xread(cursors, count=MOST_AT_ONCE, block=BLOCK_MS)
            return tuple(found or ())
        except ResponseError as error:
            if not holds_something_else(error):
                raise
        pipeline = client.pipeline(transaction=False)  # one by one, which says whose key it is
        for key, cursor in cursors.items():
            pipeline.xread({key: cursor}, count=MOST_AT_ONCE)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        for key, answer in zip(cursors, answers, strict=True):
            if isinstance(answer, ResponseError):
                if not holds_something_else(answer):
                    raise answer
                self._misread(keys[key])
        return tuple(found for answer in answers if not isinstance(answer, ResponseError) for found in answer or ())

    def _misread(self, channel: _Channel) -> None:
        """The key of this run is somebody else's; it is looked up again with every wish. Its readers go on without it."""
        if not channel.is_odd:
            log.warning("live_odd_key run=%s", channel.name[1])
        channel.is_odd, channel.cursor = True, None
        for reader in channel.readers:
            reader.is_connected = False
            reader.ready.set()

    async def _wish(self, client: redis.asyncio.Redis) -> None:
        """Executors know what is read here, once a second and at once for a stream that is new here, whose end is looked up."""
        now_s = asyncio.get_running_loop().time()
        is_due = now_s >= self._wish_at_s
        channels = [one for one in self._channels.values() if is_due or (one.cursor is None and not one.is_odd)]
        if not channels:
            return
        pipeline = client.pipeline(transaction=False)
        for channel in channels:
            if channel.cursor is None:
                pipeline.xrevrange(self._keys.stream(channel.name), count=1)
            pipeline.set(self._keys.wish(channel.name), "1", px=WISH_MS)
        answers: list[Any] = list(await pipeline.execute(raise_on_error=False))
        for answer in answers:
            if isinstance(answer, ResponseError) and not holds_something_else(answer):
                raise answer
        for channel in channels:
            newest = answers.pop(0) if channel.cursor is None else None
            answers.pop(0)
            if isinstance(newest, ResponseError):
                self._misread(channel)
                continue
            if channel.cursor is None:
                channel.cursor, channel.is_odd = newest[0][0] if newest else "0-0", False
            for reader in channel.readers:
                reader.is_connected = True
                reader.ready.set()
        self._is_away = False
        if is_due:
            self._wish_at_s = now_s + BLOCK_MS / 1000

    def _deliver(self, channel: _Channel, entries: Sequence[tuple[str, dict[str, str]]]) -> None:
        for entry_id, fields in entries:
            channel.cursor = entry_id
            try:
                parts = [decode_part(text) for text in fields.values()]
            except CodecError:  # of another build, or nobody of ours wrote it
                parts = [LivePart("lost")]
            for reader in tuple(channel.readers):
                reader.on_parts(parts)

    def _lost(self, error: BaseException) -> None:
        if not self._is_away:
            log.warning("live_unread error=%s", type(error).__name__)
        self._is_away = True
        for channel in self._channels.values():
            for reader in channel.readers:
                reader.is_connected = False

    async def _interrupt(self) -> None:
        """The read that waits for news ends, so that a new channel is among the next ones; else it would within a second."""
        reads = self._reads
        if reads is None:
            return
        client = self._connect()
        try:
            await client.client_unblock(reads)
        except NOTHING_KNOWN:
            return
        finally:
            with contextlib.suppress(*NOTHING_KNOWN):
                await client.aclose()

    def _connect(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(
            self._url,
            single_connection_client=True,
            socket_timeout=CALL_TIMEOUT_S,
            socket_connect_timeout=CALL_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=True,
            encoding_errors="replace",  # what nobody of ours wrote is lost alone, and ends no read
        )
