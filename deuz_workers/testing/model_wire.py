"""A scripted reply as the bytes that an OpenAI-compatible server sends: a stream of chunks, or one whole body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deuz_workers.core.usage import Usage
from deuz_workers.providers.script import DEFAULT_USAGE, ScriptedCall, ScriptedReply, fragments_of

ARGUMENT_PIECE = 7
"""Characters of arguments in one chunk: small, so that calls arrive in several."""


@dataclass(frozen=True, slots=True)
class Wire:
    """How a request wants to be answered."""

    model: str
    turn: int
    """Number of this turn in the conversation, from 1."""
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a body that belong together; `delay_ms` passes before they are sent."""

    data: bytes
    delay_ms: int = 0


def stream_pieces(scripted: ScriptedReply, wire: Wire) -> Iterator[Piece]:
    """The event stream, one piece per event."""
    yield _event(wire, {"role": "assistant", "content": ""})
    if scripted.reasoning is not None:
        yield _event(wire, {_reasoning_field(scripted): scripted.reasoning.text})
    for place, fragment in enumerate(fragments_of(scripted)):
        yield _event(wire, {"content": fragment}, delay_ms=scripted.fragment_delay_ms if place else 0)
    for index, made in enumerate(scripted.calls):
        written = _arguments(made)
        head: dict[str, Any] = {"index": index, **_id(made, wire, index), "type": "function"}
        yield _event(wire, {"tool_calls": [head | {"function": {"name": made.name, "arguments": ""}}]})
        for start in range(0, len(written), ARGUMENT_PIECE):
            piece = {"arguments": written[start : start + ARGUMENT_PIECE]}
            yield _event(wire, {"tool_calls": [{"index": index, "function": piece}]})
    yield _event(wire, {}, finish_reason=_finish_reason(scripted))
    used = _usage(scripted)
    if wire.include_usage and used is not None:
        yield Piece(_sse({**_envelope(wire, "chat.completion.chunk"), "choices": [], "usage": used}))
    yield Piece(b"data: [DONE]\n\n")


def whole_body(scripted: ScriptedReply, wire: Wire) -> bytes:
    """The completion in one body."""
    message: dict[str, Any] = {"role": "assistant", "content": scripted.text or None}
    if scripted.reasoning is not None:
        message[_reasoning_field(scripted)] = scripted.reasoning.text
    if scripted.calls:
        message["tool_calls"] = [
            {**_id(made, wire, index), "type": "function", "function": {"name": made.name, "arguments": _arguments(made)}}
            for index, made in enumerate(scripted.calls)
        ]
    completion = _envelope(wire, "chat.completion")
    completion["choices"] = [{"index": 0, "message": message, "finish_reason": _finish_reason(scripted)}]
    used = _usage(scripted)
    return json.dumps(completion if used is None else completion | {"usage": used}).encode()


def error_body(code: str, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": code, "param": None, "code": code}}).encode()


def _event(wire: Wire, delta: Mapping[str, Any], *, finish_reason: str | None = None, delay_ms: int = 0) -> Piece:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return Piece(_sse({**_envelope(wire, "chat.completion.chunk"), "choices": [choice]}), delay_ms)


def _sse(record: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(record, separators=(",", ":")).encode() + b"\n\n"


def _envelope(wire: Wire, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{wire.turn}", "object": kind, "created": 0, "model": wire.model}


def _id(made: ScriptedCall, wire: Wire, index: int) -> dict[str, str]:
    call_id = f"call_{wire.turn}_{index + 1}" if made.provider_id is None else made.provider_id
    return {"id": call_id} if call_id else {}


def _arguments(made: ScriptedCall) -> str:
    if made.raw_arguments is not None:
        return made.raw_arguments
    return json.dumps(dict(made.arguments or {}), ensure_ascii=False, separators=(",", ":"))


def _finish_reason(scripted: ScriptedReply) -> str:
    return scripted.finish_reason or ("tool_calls" if scripted.calls else "stop")


def _reasoning_field(scripted: ScriptedReply) -> str:
    field = scripted.reasoning.provider.get("field") if scripted.reasoning is not None else None
    return field if isinstance(field, str) else "reasoning_content"


def _usage(scripted: ScriptedReply) -> dict[str, Any] | None:
    used: Usage | None = DEFAULT_USAGE if scripted.usage == "default" else scripted.usage
    if used is None:
        return None
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.total_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
    }
