"""Models behind an OpenAI-compatible chat completions endpoint: OpenAI, hosted gateways, vLLM, Ollama, llama.cpp."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from deuz_workers.errors import (
    ConfigurationError,
    ModelAuthenticationError,
    ModelError,
    ModelResponseError,
    ModelStreamBrokenError,
)
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.ports.output import OutputMode
from deuz_workers.ports.runtime import Clock
from deuz_workers.providers.chat_errors import names_stream_options, status_failure, wrong_type
from deuz_workers.providers.chat_reply import parse_completion, read_reply
from deuz_workers.providers.chat_request import Dialect, MaxTokensField, build_body, encode_body
from deuz_workers.providers.chat_stream import ChatStream
from deuz_workers.providers.http import DRAIN_MS, HttpPool, HttpReply, Timeouts, check_base_url, retry_after_ms, within
from deuz_workers.providers.retry import RetryPolicy
from deuz_workers.providers.sse import EventReader

OPENAI_URL = "https://api.openai.com/v1"
HEAVY_BYTES = 1024 * 1024
"""A reply above this takes milliseconds to read."""

logger = logging.getLogger(__name__)


class ChatCompletionsModel:
    """One model of one server.

    A call is sent again by this object only while it is known to be unbilled (see `retry`) and within the request's
    `timeout_ms`; every other failure is raised, its `billed` saying what is known. A stream that ends anywhere before its end
    raises `ModelStreamBrokenError`; nothing of it becomes a reply. Cancelling a call closes its connection at once.

    Connections are kept per process and event loop, so one object may be made at import and used after a fork.
    """

    def __init__(
        self,
        model: str,
        base_url: str = OPENAI_URL,
        *,
        api_key: str | None = None,
        provider: str | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = True,
        max_tokens_field: MaxTokensField | None = None,
        replay_reasoning: bool = False,
        output_mode: OutputMode = "json",
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Nothing is opened or read yet.

        Args:
            model: the server's name of the model.
            base_url: up to and including the version, `http://localhost:8000/v1`.
            api_key: None: `OPENAI_API_KEY` of the environment where `base_url` is OpenAI's own, read at the first call; no key
                for any other server, so that OpenAI's never reaches one by accident.
            provider: first half of `name`, and of the name that prices are looked up by. None: `openai` for OpenAI's own
                URL, else `compatible`, which no price list knows.
            stream: False sends requests for whole replies, for servers that cannot stream tool calls.
            max_tokens_field: None: `max_completion_tokens` for OpenAI's own URL, else `max_tokens`.
            output_mode: how typed answers are asked for: `json`, by `response_format`, or `tool`, for servers without it.
            replay_reasoning: send thoughts of this model back to it (DeepSeek's thinking mode needs them).
            clock: for the waits between retries. chance: random numbers from 0 to 1 for their jitter.

        Raises: `ConfigurationError`, for a URL that is none or that carries secrets, and for headers that are no ASCII.
        """
        self._base_url = check_base_url(base_url)
        is_openai = self._base_url == OPENAI_URL
        self._provider = provider or ("openai" if is_openai else "compatible")
        self._model = model
        self.output_mode: OutputMode = output_mode
        self._api_key = api_key
        self._key_variable = "OPENAI_API_KEY" if is_openai else None
        self._headers = dict(headers or {})
        for header, value in self._headers.items():
            if not (value.isascii() and value.isprintable()):
                raise ConfigurationError(f"header {header!r} has a value that HTTP cannot carry; use printable ASCII")
        self._pool = HttpPool(timeouts)
        self._retry = retry
        self._clock = clock
        self._chance = chance
        self._dialect = Dialect(
            author=self.name,
            model=model,
            max_tokens_field=max_tokens_field or ("max_completion_tokens" if is_openai else "max_tokens"),
            stream=stream,
            replay_reasoning=replay_reasoning,
        )

    def __repr__(self) -> str:
        return f"ChatCompletionsModel({self._model!r}, host={urlsplit(self._base_url).hostname!r})"

    @property
    def name(self) -> str:
        return f"{self._provider}:{self._model}"

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Send the request and read the reply to its end.

        Raises: `ModelError`; a `ModelRequestError` of our own checks, and a refused key, before anything is sent.
        """
        async with within(request.timeout_ms, f"{self.name} did not answer within the request's timeout_ms"):
            loop = asyncio.get_running_loop()
            deadline = None if request.timeout_ms is None else loop.time() + request.timeout_ms / 1000
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
        reply = await self._send(request, self._dialect, on_text)
        if reply is None:
            # Refused before any work, so asking again costs nothing. The server is remembered to be of this kind.
            self._dialect = replace(self._dialect, stream_usage=False)
            reply = await self._send(request, self._dialect, on_text)
        assert reply is not None, "only a request with stream_options can be refused for them"
        return reply

    async def _send(self, request: ModelRequest, dialect: Dialect, on_text: OnText | None) -> ModelReply | None:
        """None: the server refused the request because it does not know `stream_options`."""
        body = encode_body(build_body(request, dialect))
        async with self._pool.post(self._base_url + "/chat/completions", headers=self._request_headers(), body=body) as answer:
            if answer.status != 200:
                refusal = await answer.beginning()
                if dialect.asks_for_usage and answer.status in (400, 422) and names_stream_options(refusal):
                    return None
                raise status_failure(
                    answer.status,
                    refusal,
                    host=answer.host,
                    retry_after_ms=retry_after_ms(answer.header("retry-after"), answer.header("retry-after-ms")),
                )
            match answer.content_type:
                case "text/event-stream":
                    completion = await _read_stream(answer, on_text)
                    return await _off_loop(answer, lambda: self._read(completion))
                case "application/json":
                    whole = await answer.body()
                    reply = await _off_loop(answer, lambda: self._read(parse_completion(whole)))
                    if on_text is not None and reply.message.text:
                        on_text(reply.message.text)
                    return reply
                case other:
                    raise wrong_type(answer.host, other)

    def _read(self, completion: Mapping[str, Any]) -> ModelReply:
        return read_reply(completion, author=self.name, provider=self._provider, model=self._model)

    def _request_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json", **self._headers}
        key = self._api_key
        if key is None and self._key_variable is not None:
            key = os.environ.get(self._key_variable)
            if not key:
                raise ModelAuthenticationError(f"no API key for {self.name}: set {self._key_variable} or pass api_key=")
        if key:
            if not (key.isascii() and key.isprintable()):
                raise ModelAuthenticationError(f"the API key for {self.name} has characters that no header can carry")
            headers["Authorization"] = f"Bearer {key}"
        return headers

    async def _sleep(self, ms: int) -> None:
        if self._clock is None:
            await asyncio.sleep(ms / 1000)
        else:
            await self._clock.sleep_ms(ms)


async def _off_loop(answer: HttpReply, read: Callable[[], ModelReply]) -> ModelReply:
    """What `read` makes of the answer; in a thread where it is long, since every other run of the process waits meanwhile."""
    return await asyncio.to_thread(read) if answer.size_bytes > HEAVY_BYTES else read()


async def _read_stream(answer: HttpReply, on_text: OnText | None) -> dict[str, Any]:
    events, stream = EventReader(), ChatStream()
    async with contextlib.aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            try:
                arrived = events.feed(chunk)
            except UnicodeDecodeError:
                raise ModelResponseError(f"{answer.host} sent a stream that is not UTF-8") from None
            for event in arrived:
                text = stream.take(event)
                if text and on_text is not None:
                    on_text(text)
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
