"""A scripted reply as the bytes that an OpenAI-compatible chat completions server sends: a stream of chunks, or one body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deuz_workers.providers.script import ScriptedCall, ScriptedReply, fragments_of
from deuz_workers.testing.model_wire import Asked, Piece, argument_pieces, arguments_of, call_id, sse, used_by


class ChatAnswers:
    def serves(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def asked(self, path: str, body: Mapping[str, Any]) -> Asked:
        options = body.get("stream_options") or {}
        turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        return Asked(str(body["model"]), turn, bool(body.get("stream")), bool(options.get("include_usage")))

    def conversation(self, body: Mapping[str, Any]) -> object:
        return body["messages"]

    def pieces(self, scripted: ScriptedReply, asked: Asked) -> Iterator[Piece]:
        yield _chunk(asked, {"role": "assistant", "content": ""})
        if scripted.reasoning is not None:
            yield _chunk(asked, {_reasoning_field(scripted): scripted.reasoning.text})
        for place, fragment in enumerate(fragments_of(scripted)):
            delay_ms = scripted.fragment_delay_ms if place else 0
            yield Piece(_chunk(asked, {"content": fragment}).data, delay_ms, is_text=True)
        for index, made in enumerate(scripted.calls):
            head: dict[str, Any] = {"index": index, **_id(made, asked, index), "type": "function"}
            yield _chunk(asked, {"tool_calls": [head | {"function": {"name": made.name, "arguments": ""}}]})
            for piece in argument_pieces(made):
                yield _chunk(asked, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield _chunk(asked, {}, finish_reason=_finish_reason(scripted))
        used = _usage(scripted)
        if asked.include_usage and used is not None:
            yield Piece(sse({**_envelope(asked, "chat.completion.chunk"), "choices": [], "usage": used}))
        yield Piece(b"data: [DONE]\n\n")

    def whole(self, scripted: ScriptedReply, asked: Asked) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": scripted.text or None}
        if scripted.reasoning is not None:
            message[_reasoning_field(scripted)] = scripted.reasoning.text
        if scripted.calls:
            message["tool_calls"] = [
                {
                    **_id(made, asked, index),
                    "type": "function",
                    "function": {"name": made.name, "arguments": arguments_of(made)},
                }
                for index, made in enumerate(scripted.calls)
            ]
        completion = _envelope(asked, "chat.completion")
        completion["choices"] = [{"index": 0, "message": message, "finish_reason": _finish_reason(scripted)}]
        used = _usage(scripted)
        return json.dumps(completion if used is None else completion | {"usage": used}).encode()

    def error(self, status: int, code: str, message: str) -> bytes:
        return openai_error(code, message)


def openai_error(code: str, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": code, "param": None, "code": code}}).encode()


def _chunk(asked: Asked, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> Piece:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return Piece(sse({**_envelope(asked, "chat.completion.chunk"), "choices": [choice]}))


def _envelope(asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{asked.turn}", "object": kind, "created": 0, "model": asked.model}


def _id(made: ScriptedCall, asked: Asked, index: int) -> dict[str, str]:
    given = call_id(made, asked, index)
    return {"id": given} if given else {}


def _finish_reason(scripted: ScriptedReply) -> str:
    return scripted.finish_reason or ("tool_calls" if scripted.calls else "stop")


def _reasoning_field(scripted: ScriptedReply) -> str:
    field = scripted.reasoning.provider.get("field") if scripted.reasoning is not None else None
    return field if isinstance(field, str) else "reasoning_content"


def _usage(scripted: ScriptedReply) -> dict[str, Any] | None:
    used = used_by(scripted)
    if used is None:
        return None
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.total_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
    }
