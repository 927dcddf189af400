"""What a scripted model server may do besides answering well.

Positions count bytes of the body; `BEFORE_HEADERS` stands for a server that has read the request and answers nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from deuz_workers.errors import (
    ModelAuthenticationError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelTimeoutError,
)
from deuz_workers.providers.script import ScriptedReply

BEFORE_HEADERS = -1
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the body of an error says; a code of OpenAI's, which other wires say in their own words."""

    code: str
    message: str


Framing = Literal["chunked", "length", "close"]


@dataclass(frozen=True, slots=True)
class Served:
    """One answer of the server in every detail; the functions below name the usual ones."""

    content: ScriptedReply | Refusal | bytes = b""
    """A reply or a refusal, written as the request's wire wants it, or these bytes."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    content_type: str | None = None
    """None: what fits the content."""
    framing: Framing = "chunked"
    """How the body ends: last chunk, announced length, or the end of the connection."""
    cut_at: int | None = None
    """Close the connection after so many bytes of the body."""
    reset: bool = False
    """Close it with a reset instead."""
    stall_at: int | None = None
    """Send so many bytes of the body, then nothing until the client leaves."""
    piece_bytes: int | None = None
    """Send the body in pieces of this size, whatever its events are."""
    piece_delay_ms: int = 0


def refuse(status: int, *, retry_after: str | None = None, code: str = "server_error", message: str = "refused") -> Served:
    """An error status with an error body; `retry_after` as the header says it."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Served(Refusal(code, message), status=status, headers=headers, content_type="application/json")


def cut(content: ScriptedReply | Refusal | bytes, at: int, *, framing: Framing = "chunked") -> Served:
    """A reply that ends after `at` bytes of its body, as when a process behind a proxy dies."""
    return Served(content, cut_at=at, framing=framing)


def reset(content: ScriptedReply | Refusal | bytes = b"", at: int = BEFORE_HEADERS) -> Served:
    """A connection that is reset, before the status line or after `at` bytes of the body."""
    return Served(content, cut_at=at, reset=True)


def stall(content: ScriptedReply | Refusal | bytes = b"", at: int = BEFORE_HEADERS) -> Served:
    """A server that stops talking, before the status line or after `at` bytes of the body."""
    return Served(content, stall_at=at)


def garbage(body: bytes = b"\x00\xff<not a stream>\n\n") -> Served:
    """Bytes under the media type of a stream that are none."""
    return Served(body, content_type="text/event-stream")


def mistyped(content: ScriptedReply | Refusal | bytes, content_type: str = "text/html") -> Served:
    """A good body under a wrong media type, as of a portal or a wrong base URL."""
    return Served(content, content_type=content_type)


def slowly(content: ScriptedReply | Refusal | bytes, *, piece_bytes: int = 16, delay_ms: int = 1) -> Served:
    """A good reply in small pieces that do not care where an event or a character ends."""
    return Served(content, piece_bytes=piece_bytes, piece_delay_ms=delay_ms)


def served_error(error: Exception) -> Served:
    """The answer that a provider model turns into the same kind of error: scripts of `MockModel` keep their meaning."""
    match error:
        case ModelRateLimitedError():
            after = None if error.retry_after_ms is None else str(error.retry_after_ms / 1000)
            return refuse(429, retry_after=after, code="rate_limit_exceeded")
        case ModelAuthenticationError():
            return refuse(401, code="invalid_api_key")
        case ModelRequestError():
            return refuse(400, code="invalid_request_error")
        case ModelTimeoutError():
            return stall()
        case ModelResponseError():
            return garbage()
        case _:
            return refuse(503)  # of which nobody knows whether it was billed, whatever `error` says
