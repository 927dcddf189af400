"""How the scripted model server writes its answers for one family of clients; pure.

A further wire is one class with the methods of `Answers`, and a place in `model_server.WIRES`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from deuz_workers.core.usage import Usage
from deuz_workers.providers.script import DEFAULT_USAGE, ScriptedCall, ScriptedReply

ARGUMENT_PIECE = 7
"""Characters of arguments in one event: small, so that calls arrive in several."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How a request wants to be answered."""

    model: str
    turn: int
    """Number of this turn in the conversation, from 1."""
    stream: bool
    include_usage: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a body that belong together; `delay_ms` passes before they are sent."""

    data: bytes
    delay_ms: int = 0
    is_text: bool = False
    """A fragment of the text, such as a reader is shown."""


class Answers(Protocol):
    def serves(self, path: str) -> bool:
        """Whether requests to this path are of this family."""
        ...

    def asked(self, path: str, body: Mapping[str, Any]) -> Asked: ...

    def conversation(self, body: Mapping[str, Any]) -> object:
        """What two attempts of one turn have in common, and no two turns have."""
        ...

    def pieces(self, scripted: ScriptedReply, asked: Asked) -> Iterator[Piece]:
        """The event stream, one piece per event."""
        ...

    def whole(self, scripted: ScriptedReply, asked: Asked) -> bytes:
        """The reply in one body."""
        ...

    def error(self, status: int, code: str, message: str) -> bytes:
        """The body of a refusal."""
        ...


def sse(record: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event, with its name where the vendor sends one."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(record, separators=(",", ":")).encode() + b"\n\n"


def call_id(made: ScriptedCall, asked: Asked, place: int) -> str:
    """Of the call at `place`, from 0; empty where the script sends none."""
    return f"call_{asked.turn}_{place + 1}" if made.provider_id is None else made.provider_id


def arguments_of(made: ScriptedCall) -> str:
    if made.raw_arguments is not None:
        return made.raw_arguments
    return json.dumps(dict(made.arguments or {}), ensure_ascii=False, separators=(",", ":"))


def argument_pieces(made: ScriptedCall) -> Iterator[str]:
    written = arguments_of(made)
    for start in range(0, len(written), ARGUMENT_PIECE):
        yield written[start : start + ARGUMENT_PIECE]


def used_by(scripted: ScriptedReply) -> Usage | None:
    return DEFAULT_USAGE if scripted.usage == "default" else scripted.usage
