"""A scripted reply as the bytes that a server of the Anthropic Messages API sends: a stream of events, or one body.

Shapes and order of the events follow the types of the `anthropic` package 2.14.0 and
https://platform.claude.com/docs/en/build-with-claude/streaming, read 2026-11; that package's own client reads them in
`tests/providers/test_anthropic_sdk.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deuz_workers.core.messages import ReasoningPart
from deuz_workers.providers.script import ScriptedCall, ScriptedReply, fragments_of
from deuz_workers.testing.model_wire import Asked, Piece, argument_pieces, arguments_of, call_id, sse, used_by

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    "error": "pause_turn",
}
ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
SIGNATURE = "EqQBCkgIARABGAIiQL8=="
"""Of scripted thoughts that have none of their own."""


class AnthropicAnswers:
    def serves(self, path: str) -> bool:
        return path.endswith("/messages")

    def asked(self, path: str, body: Mapping[str, Any]) -> Asked:
        turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        return Asked(str(body["model"]), turn, bool(body.get("stream")))

    def conversation(self, body: Mapping[str, Any]) -> object:
        return body["messages"]

    def pieces(self, scripted: ScriptedReply, asked: Asked) -> Iterator[Piece]:
        used = _usage(scripted)
        begun = None if used is None else used | {"output_tokens": 1}
        yield _event("message_start", message=_message(asked, [], None, begun))
        index = 0
        if scripted.reasoning is not None:
            yield from _thought(scripted.reasoning, index)
            index += 1
        yield _event("ping")
        fragments = fragments_of(scripted)
        if fragments:
            yield _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for place, fragment in enumerate(fragments):
                delta = {"type": "text_delta", "text": fragment}
                piece = _event("content_block_delta", index=index, delta=delta)
                yield Piece(piece.data, scripted.fragment_delay_ms if place else 0, is_text=True)
            yield _event("content_block_stop", index=index)
            index += 1
        for place, made in enumerate(scripted.calls):
            yield from _called(made, asked, place, index + place)
        end: dict[str, Any] = {"stop_reason": _stop_reason(scripted), "stop_sequence": None}
        yield _event("message_delta", delta=end, **({} if used is None else {"usage": used}))
        yield _event("message_stop")

    def whole(self, scripted: ScriptedReply, asked: Asked) -> bytes:
        content: list[dict[str, Any]] = []
        if scripted.reasoning is not None:
            content.append(_thinking(scripted.reasoning))
        if scripted.text:
            content.append({"type": "text", "text": scripted.text})
        for place, made in enumerate(scripted.calls):
            written = arguments_of(made)
            try:
                given = json.loads(written)
            except ValueError:
                given = written
            content.append(_use(made, asked, place) | {"input": given})
        return json.dumps(_message(asked, content, _stop_reason(scripted), _usage(scripted))).encode()

    def error(self, status: int, code: str, message: str) -> bytes:
        """`code` is one of OpenAI's, which this vendor says in its text or in the details."""
        kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        if code == "model_not_found":
            kind = "not_found_error"
        error: dict[str, Any] = {"type": kind, "message": message}
        if code.startswith("context"):
            error["message"] = f"prompt is too long: {message}"
        if any(word in code for word in ("quota", "balance", "limit_exceeded")) and "rate" not in code:
            error["details"] = {"error_code": "enforced_spend_limit_reached"}
        return json.dumps({"type": "error", "error": error, "request_id": "req_scripted"}).encode()


def _event(kind: str, **fields: Any) -> Piece:
    return Piece(sse({"type": kind, **fields}, kind))


def _thought(thought: ReasoningPart, index: int) -> Iterator[Piece]:
    block = _thinking(thought)
    if block["type"] == "redacted_thinking":
        yield _event("content_block_start", index=index, content_block=block)
    else:
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        yield _event("content_block_start", index=index, content_block=empty)
        half = len(thought.text) // 2
        for piece in (thought.text[:half], thought.text[half:]):
            yield _event("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": piece})
        signed = {"type": "signature_delta", "signature": block["signature"]}
        yield _event("content_block_delta", index=index, delta=signed)
    yield _event("content_block_stop", index=index)


def _thinking(thought: ReasoningPart) -> dict[str, Any]:
    if isinstance(redacted := thought.provider.get("redacted"), str):
        return {"type": "redacted_thinking", "data": redacted}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.provider.get("signature", SIGNATURE)}


def _called(made: ScriptedCall, asked: Asked, place: int, index: int) -> Iterator[Piece]:
    yield _event("content_block_start", index=index, content_block=_use(made, asked, place) | {"input": {}})
    yield _event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": ""})
    for piece in argument_pieces(made):
        yield _event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece})
    yield _event("content_block_stop", index=index)


def _use(made: ScriptedCall, asked: Asked, place: int) -> dict[str, Any]:
    given = call_id(made, asked, place)
    return {"type": "tool_use", **({"id": given} if given else {}), "name": made.name}


def _message(asked: Asked, content: object, stop_reason: str | None, used: object) -> dict[str, Any]:
    return {
        "id": f"msg_{asked.turn}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        **({} if used is None else {"usage": used}),
    }


def _stop_reason(scripted: ScriptedReply) -> str:
    return STOP_REASONS[scripted.finish_reason or ("tool_calls" if scripted.calls else "stop")]


def _usage(scripted: ScriptedReply) -> dict[str, Any] | None:
    used = used_by(scripted)
    if used is None:
        return None
    return {
        "input_tokens": used.input_tokens - used.cached_tokens - used.cache_write_tokens,
        "cache_creation_input_tokens": used.cache_write_tokens,
        "cache_read_input_tokens": used.cached_tokens,
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"thinking_tokens": used.reasoning_tokens},
    }
