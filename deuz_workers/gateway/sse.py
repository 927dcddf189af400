"""Server-sent events of one reader: frames under their numbers, a comment now and then, and the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deuz_workers.app.ui_parts import WIRE_VERSION

KEEP_ALIVE_S = 15.0
"""A stream that says nothing says so, before proxies take it for dead."""
SEND_S = 30.0
"""A reader who does not take what is sent for so long is cut off, and may come back."""

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would hold parts back
    "x-deuz-stream": WIRE_VERSION,
}
KEEP_ALIVE = b": \n\n"


def event(body: str, seq: int | None = None) -> bytes:
    """One event. `seq`: its id; None: it cannot be asked for again."""
    place = "" if seq is None else f"id: {seq}\n"
    return f"{place}data: {body}\n\n".encode()


class SseResponse(Response):
    """Sends what `chunks` gives until it ends, the reader leaves, or does not read."""

    def __init__(
        self, chunks: AsyncGenerator[bytes], *, on_end: Callable[[], Awaitable[None]] | None = None, **headers: str
    ) -> None:
        super().__init__(status_code=200, headers={**HEADERS, **headers})
        del self.headers["content-length"]
        self._chunks = chunks
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaves = asyncio.create_task(_gone(receive), name="deuz-sse-gone")
        sends = asyncio.create_task(self._send(send), name="deuz-sse")
        try:
            await asyncio.wait((leaves, sends), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaves, sends):
                task.cancel()
            await asyncio.wait((leaves, sends))
            await self._chunks.aclose()
            if self._on_end is not None:
                await self._on_end()
        if sends.done() and not sends.cancelled() and (error := sends.exception()) is not None:
            raise error

    async def _send(self, send: Send) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            await self._say(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self._chunks:
                await self._say(send, {"type": "http.response.body", "body": chunk, "more_body": True})
            await self._say(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _say(self, send: Send, message: dict[str, Any]) -> None:
        async with asyncio.timeout(SEND_S):
            await send(message)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
