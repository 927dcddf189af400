"""A scripted reply as the bytes that a server of Gemini's `generateContent` sends: a stream of responses, or one body.

Shapes follow the types of the `google-genai` package 3.6.1 and https://ai.google.dev/api/generate-content, read 2026-11; that
package's own client reads them in `tests/providers/test_gemini_sdk.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from deuz_workers.core.messages import ReasoningPart
from deuz_workers.providers.script import ScriptedCall, ScriptedReply, fragments_of
from deuz_workers.testing.model_wire import Asked, Piece, arguments_of, call_id, sse, used_by

FINISH_REASONS = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "error": "MALFORMED_FUNCTION_CALL",
}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
SIGNATURE = "CiQBjz1rX0l2"
"""Of scripted thoughts that have none of their own."""

_PATH = re.compile(r".*/(?P<model>[^/]+):(?P<method>generateContent|streamGenerateContent)(\?.*)?")


class GeminiAnswers:
    def serves(self, path: str) -> bool:
        return _PATH.fullmatch(path) is not None

    def asked(self, path: str, body: Mapping[str, Any]) -> Asked:
        found = _PATH.fullmatch(path)
        assert found is not None, "only a path that it serves is asked about"
        turn = 1 + sum(content.get("role") == "model" for content in body["contents"])
        return Asked(found["model"], turn, found["method"] == "streamGenerateContent")

    def conversation(self, body: Mapping[str, Any]) -> object:
        return body["contents"]

    def pieces(self, scripted: ScriptedReply, asked: Asked) -> Iterator[Piece]:
        if scripted.reasoning is not None:
            yield _chunk(scripted, asked, [{"text": scripted.reasoning.text, "thought": True}])
        for place, fragment in enumerate(fragments_of(scripted)):
            piece = _chunk(scripted, asked, [{"text": fragment}])
            yield Piece(piece.data, scripted.fragment_delay_ms if place else 0, is_text=True)
        *others, last = [*_calls(scripted, asked), _signed_end(scripted)]
        for part in others:
            yield _chunk(scripted, asked, [part])
        yield _chunk(scripted, asked, [last], finish_reason=_finish_reason(scripted))

    def whole(self, scripted: ScriptedReply, asked: Asked) -> bytes:
        parts: list[dict[str, Any]] = []
        if scripted.reasoning is not None:
            parts.append({"text": scripted.reasoning.text, "thought": True})
        if scripted.text:
            parts.append({"text": scripted.text})
        parts += _calls(scripted, asked)
        if "thoughtSignature" in (end := _signed_end(scripted)):
            parts.append(end)
        return json.dumps(_response(scripted, asked, parts, _finish_reason(scripted))).encode()

    def error(self, status: int, code: str, message: str) -> bytes:
        """`code` is one of OpenAI's, which this vendor says in its text or in the details."""
        word = "UNKNOWN" if status == 404 and code != "model_not_found" else STATUSES.get(status, "UNKNOWN")
        error: dict[str, Any] = {"code": status, "message": message, "status": word}
        if code.startswith("context"):
            error["message"] = f"The input token count exceeds the maximum number of tokens allowed: {message}"
        if code == "invalid_api_key":
            info = "type.googleapis.com/google.rpc.ErrorInfo"
            error["details"] = [{"@type": info, "reason": "API_KEY_INVALID", "domain": "googleapis.com"}]
        return json.dumps({"error": error}).encode()


def _chunk(scripted: ScriptedReply, asked: Asked, parts: list[dict[str, Any]], finish_reason: str | None = None) -> Piece:
    return Piece(sse(_response(scripted, asked, parts, finish_reason)))


def _response(scripted: ScriptedReply, asked: Asked, parts: list[dict[str, Any]], finish_reason: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish_reason is not None:
        candidate["finishReason"] = finish_reason
    used = _usage(scripted)
    return {
        "candidates": [candidate],
        **({} if used is None else {"usageMetadata": used}),
        "modelVersion": asked.model,
        "responseId": f"response-{asked.turn}",
    }


def _calls(scripted: ScriptedReply, asked: Asked) -> list[dict[str, Any]]:
    """A turn that was thought about is signed in its first call."""
    parts: list[dict[str, Any]] = [{"functionCall": _call(made, asked, place)} for place, made in enumerate(scripted.calls)]
    if parts and scripted.reasoning is not None:
        parts[0]["thoughtSignature"] = _signature(scripted.reasoning)
    return parts


def _call(made: ScriptedCall, asked: Asked, place: int) -> dict[str, Any]:
    given, written = call_id(made, asked, place), arguments_of(made)
    try:
        arguments = json.loads(written)
    except ValueError:
        arguments = written
    return {**({"id": given} if given else {}), "name": made.name, "args": arguments}


def _signed_end(scripted: ScriptedReply) -> dict[str, Any]:
    """A turn without calls is signed in a last part without a text."""
    if scripted.reasoning is None or scripted.calls:
        return {"text": ""}
    return {"text": "", "thoughtSignature": _signature(scripted.reasoning)}


def _signature(thought: ReasoningPart) -> object:
    return thought.provider.get("signature", SIGNATURE)


def _finish_reason(scripted: ScriptedReply) -> str:
    return FINISH_REASONS[scripted.finish_reason or ("tool_calls" if scripted.calls else "stop")]


def _usage(scripted: ScriptedReply) -> dict[str, Any] | None:
    used = used_by(scripted)
    if used is None:
        return None
    return {
        "promptTokenCount": used.input_tokens,
        "candidatesTokenCount": used.output_tokens - used.reasoning_tokens,
        "thoughtsTokenCount": used.reasoning_tokens,
        "cachedContentTokenCount": used.cached_tokens,
        "totalTokenCount": used.total_tokens,
    }
