"""A model that is reached over HTTP: the one machine that sends, times, retries and reads, whatever the wire is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack
from urllib.parse import urlsplit

from deuz_workers.errors import (
    ConfigurationError,
    ModelAuthenticationError,
    ModelError,
    ModelResponseError,
    ModelStreamBrokenError,
)
from deuz_workers.ports.asides import tell_asides
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.ports.output import OutputMode
from deuz_workers.providers.connection import Connection
from deuz_workers.providers.http import DRAIN_MS, HttpPool, HttpReply, Timeouts, check_base_url, retry_after_ms, within
from deuz_workers.providers.json_body import encode_body
from deuz_workers.providers.retry import RetryPolicy
from deuz_workers.providers.sse import EventReader
from deuz_workers.providers.wire import ReplyStream, Wire

HEAVY_BYTES = 1024 * 1024
"""A reply above this takes milliseconds to read."""

logger = logging.getLogger(__name__)


class WireModel:
    """One model of one server.

    A call is sent again by this object only while it is known to be unbilled (see `retry`) and within the request's
    `timeout_ms`; every other failure is raised, its `billed` saying what is known. A stream that ends anywhere before its end
    raises `ModelStreamBrokenError`; nothing of it becomes a reply. Cancelling a call closes its connection at once.

    Connections are kept per process and event loop, so one object may be made at import and used after a fork.
    """

    def __init__(
        self, name: str, wire: Wire, base_url: str, *, key_variable: str | None = None, **connection: Unpack[Connection]
    ) -> None:
        """Nothing is opened or read yet.

        Args: `name`, `provider:model`. `key_variable`, of the environment, where `connection` has no key; None: no other key.

        Raises: `ConfigurationError`, for a URL that is none or that carries secrets, and for headers that are no ASCII.
        """
        self._base_url = check_base_url(base_url)
        self._name = name
        self._wire = wire
        self.output_mode: OutputMode = connection.get("output_mode", "json")
        self.context_window_tokens = connection.get("context_window_tokens")
        self.rejects = frozenset(connection.get("rejects", ()))
        self._api_key = connection.get("api_key")
        self._key_variable = key_variable
        self._headers = dict(connection.get("headers") or {})
        for header, value in self._headers.items():
            if not (value.isascii() and value.isprintable()):
                raise ConfigurationError(f"header {header!r} has a value that HTTP cannot carry; use printable ASCII")
        self._timeouts = connection.get("timeouts", Timeouts())
        self._pool = HttpPool(self._timeouts, connection.get("transport"))
        self._retry = connection.get("retry", RetryPolicy())
        if (max_retries := connection.get("max_retries")) is not None:
            self._retry = replace(self._retry, max_retries=max_retries)
        self._clock = connection.get("clock")
        self._chance = connection.get("chance", random.random)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name.partition(':')[2]!r}, host={urlsplit(self._base_url).hostname!r})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def protocol(self) -> str:
        """Of the wire, for records of runs."""
        return self._wire.name

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Send the request and read the reply to its end.

        Raises: `ModelError`; a `ModelRequestError` of our own checks, and a refused key, before anything is sent.
        """
        limits = [(request.timeout_ms, "the request's timeout_ms"), (self._timeouts.total_ms, "total_ms of its timeouts")]
        limit_ms, named = min(((ms, name) for ms, name in limits if ms is not None), default=(None, ""))
        async with within(limit_ms, f"{self.name} did not answer within {named}, {limit_ms} ms"):
            loop = asyncio.get_running_loop()
            deadline = None if limit_ms is None else loop.time() + limit_ms / 1000
            retries = 0
            while True:
                try:
                    return await self._try_once(request, on_text)
                except ModelError as error:
                    left_ms = None if deadline is None else (deadline - loop.time()) * 1000
                    wait_ms = self._retry.wait_ms(error, retries, left_ms, self._chance())
                    if wait_ms is None:
                        raise
                    code = error.code
                retries += 1
                known = {"model": self.name, "code": code, "wait_ms": wait_ms, "retry": retries}
                logger.info("model_call_retried", extra=known)
                await self._sleep(wait_ms)

    async def close(self) -> None:
        await self._pool.close()

    async def _try_once(self, request: ModelRequest, on_text: OnText | None) -> ModelReply:
        while True:
            wire = self._wire
            answered = await self._send(request, wire, on_text)
            if isinstance(answered, ModelReply):
                return answered
            # Each wire has fewer fields to be refused for than the one before, so this ends.
            self._wire = answered

    async def _send(self, request: ModelRequest, wire: Wire, on_text: OnText | None) -> ModelReply | Wire:
        """A wire: what to ask with instead, since the server refused a field that it does not know."""
        body = encode_body(wire.build(request))
        async with self._pool.post(self._base_url + wire.path, headers=self._request_headers(wire), body=body) as answer:
            if answer.status != 200:
                refusal = await answer.beginning()
                plainer = wire.plainer(answer.status, refusal)
                if plainer is not None:
                    return plainer
                asked_ms = retry_after_ms(answer.header("retry-after"), answer.header("retry-after-ms"))
                raise wire.failure(answer.status, refusal, host=answer.host, retry_after_ms=asked_ms)
            match answer.content_type:
                case "text/event-stream":
                    completion = await _read_stream(answer, wire.stream(), on_text)
                    return await _off_loop(answer, lambda: wire.read(completion))
                case "application/json":
                    whole = await answer.body()
                    reply = await _off_loop(answer, lambda: wire.read(wire.parse(whole)))
                    if on_text is not None and reply.message.text:
                        on_text(reply.message.text)
                    return reply
                case other:
                    raise _wrong_type(answer.host, other)

    def _request_headers(self, wire: Wire) -> dict[str, str]:
        key = self._api_key
        if key is None and self._key_variable is not None:
            key = os.environ.get(self._key_variable)
            if not key:
                raise ModelAuthenticationError(f"no API key for {self.name}: set {self._key_variable} or pass api_key=")
        if key and not (key.isascii() and key.isprintable()):
            raise ModelAuthenticationError(f"the API key for {self.name} has characters that no header can carry")
        media = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        return {**media, **wire.headers(key or ""), **self._headers}

    async def _sleep(self, ms: int) -> None:
        if self._clock is None:
            await asyncio.sleep(ms / 1000)
        else:
            await self._clock.sleep_ms(ms)


async def _off_loop(answer: HttpReply, read: Callable[[], ModelReply]) -> ModelReply:
    """What `read` makes of the answer; in a thread where it is long, since every other run of the process waits meanwhile."""
    return await asyncio.to_thread(read) if answer.size_bytes > HEAVY_BYTES else read()


async def _read_stream(answer: HttpReply, stream: ReplyStream, on_text: OnText | None) -> Mapping[str, Any]:
    """What fails it says whether something of the answer had come."""
    try:
        return await _read_events(answer, stream, on_text)
    except ModelError as error:
        error.after_content = error.after_content or stream.has_content
        raise


async def _read_events(answer: HttpReply, stream: ReplyStream, on_text: OnText | None) -> Mapping[str, Any]:
    events = EventReader()
    async with contextlib.aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            try:
                arrived = events.feed(chunk)
            except UnicodeDecodeError:
                raise ModelResponseError(f"{answer.host} sent a stream that is not UTF-8") from None
            for event in arrived:
                text = stream.take(event)
                tell_asides(on_text, stream.beside.taken())
                if text and on_text is not None:
                    on_text(text)
                if stream.is_done:
                    break
            if stream.is_done:
                break
        with contextlib.suppress(ModelError):
            async with within(DRAIN_MS, "the reply is whole; the connection is closed instead of kept"):
                async for _ in chunks:
                    pass
    completion = stream.completion()
    if completion is None:
        raise ModelStreamBrokenError(f"{answer.host} ended the stream before the reply was whole")
    return completion


def _wrong_type(host: str, content_type: str) -> ModelResponseError:
    shown = content_type if re.fullmatch(r"[a-z0-9.+/-]{1,80}", content_type) else "something without a media type"
    return ModelResponseError(f"{host} answered with {shown} instead of a reply; check the base URL")
