"""Sends one answer of the scripted model server, exactly as far as it is meant to go."""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus

from deuz_workers.providers.script import ScriptedReply
from deuz_workers.testing.model_faults import BEFORE_HEADERS, Refusal, Served
from deuz_workers.testing.model_wire import Answers, Asked, Piece

STATUSES = frozenset(HTTPStatus)
"""That have a phrase; providers use others too, such as 529."""


class ClientLeft(ConnectionError):
    """The other side closed the connection."""


async def respond(
    served: Served, answers: Answers, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Send it; True if the connection can carry another request. Raises: `ConnectionError`, when the client leaves."""
    delay_ms = served.content.delay_ms if isinstance(served.content, ScriptedReply) else 0
    if delay_ms is None or served.stall_at == BEFORE_HEADERS:
        await _stall(reader)
    await _pause(delay_ms or 0, reader)
    if served.cut_at == BEFORE_HEADERS:
        return _close(served, writer)
    pieces = _pieces(served, answers, asked)
    size_bytes = sum(len(piece.data) for piece in pieces)
    writer.write(_head(served, asked, size_bytes))
    await writer.drain()
    left_bytes = min((at for at in (served.cut_at, served.stall_at) if at is not None), default=None)
    for piece in pieces:
        await _pause(piece.delay_ms, reader)
        data = piece.data if left_bytes is None else piece.data[:left_bytes]
        if data:
            writer.write(b"%x\r\n%s\r\n" % (len(data), data) if served.framing == "chunked" else data)
            await writer.drain()
        if left_bytes is not None:
            left_bytes -= len(data)
            if left_bytes == 0:
                break
    if served.stall_at is not None:
        await _stall(reader)
    if served.cut_at is not None:
        return _close(served, writer)
    if served.framing == "chunked":
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return served.framing != "close"


def _pieces(served: Served, answers: Answers, asked: Asked) -> list[Piece]:
    content = served.content
    if isinstance(content, bytes):
        pieces = [Piece(content)]
    elif isinstance(content, Refusal):
        pieces = [Piece(answers.error(served.status, content.code, content.message))]
    elif asked.stream:
        pieces = list(answers.pieces(content, asked))
    else:
        pieces = [Piece(answers.whole(content, asked))]
    if served.piece_bytes is None:
        return pieces
    whole = b"".join(piece.data for piece in pieces)
    starts = range(0, len(whole), served.piece_bytes)
    return [Piece(whole[start : start + served.piece_bytes], served.piece_delay_ms) for start in starts]


def _head(served: Served, asked: Asked, size_bytes: int) -> bytes:
    match served.content:
        case ScriptedReply():
            streamed = asked.stream
        case Refusal():
            streamed = False
        case raw:
            streamed = raw.startswith((b"data:", b"event:"))
    fields = {"Content-Type": served.content_type or ("text/event-stream" if streamed else "application/json")}
    match served.framing:
        case "chunked":
            fields["Transfer-Encoding"] = "chunked"
        case "length":
            fields["Content-Length"] = str(size_bytes)
        case "close":
            fields["Connection"] = "close"
    phrase = HTTPStatus(served.status).phrase if served.status in STATUSES else "Unassigned"
    lines = [f"HTTP/1.1 {served.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in (fields | dict(served.headers)).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _close(served: Served, writer: asyncio.StreamWriter) -> bool:
    if served.reset:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    return False


async def _stall(reader: asyncio.StreamReader) -> None:
    """Say nothing until the client leaves."""
    await reader.read(1)
    raise ClientLeft


async def _pause(ms: int, reader: asyncio.StreamReader) -> None:
    """Wait, unless the client leaves before."""
    if ms <= 0:
        return
    try:
        await asyncio.wait_for(reader.read(1), ms / 1000)
    except TimeoutError:
        return
    raise ClientLeft
