"""A scripted reply as the bytes that an OpenAI responses server sends: a stream of events, or one body.

Shapes and order of the events follow `openai/types/responses/` of openai-python 3.57, read 2026-11, and that package's own
client reads them in `tests/providers/test_openai_sdk.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deuz_workers.providers.script import ScriptedCall, ScriptedReply, fragments_of
from deuz_workers.testing.chat_answers import openai_error
from deuz_workers.testing.model_wire import Asked, Piece, argument_pieces, arguments_of, call_id, sse, used_by

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter", "error": "max_messages"}
MODEL_ITEMS = frozenset({"reasoning", "function_call"})


class ResponsesAnswers:
    def serves(self, path: str) -> bool:
        return path.endswith("/responses")

    def asked(self, path: str, body: Mapping[str, Any]) -> Asked:
        return Asked(str(body["model"]), 1 + _turns(body["input"]), bool(body.get("stream")))

    def conversation(self, body: Mapping[str, Any]) -> object:
        return body["input"]

    def pieces(self, scripted: ScriptedReply, asked: Asked) -> Iterator[Piece]:
        events = _Events(asked)
        yield events.of("created", response=_response(asked, (), "in_progress"))
        yield events.of("in_progress", response=_response(asked, (), "in_progress"))
        output = _output(scripted, asked)
        for place, item in enumerate(output):
            begun = item | {"status": "in_progress"} | _empty(item)
            yield events.of("output_item.added", output_index=place, item=begun)
            match item["type"]:
                case "reasoning":
                    yield from events.thought(item, place)
                case "message":
                    yield from events.said(item, place, scripted)
                case _:
                    yield from events.called(item, place, scripted.calls[place - len(output) + len(scripted.calls)])
            yield events.of("output_item.done", output_index=place, item=item)
        response = _finished(scripted, asked, output)
        yield events.of(response["status"], response=response)

    def whole(self, scripted: ScriptedReply, asked: Asked) -> bytes:
        return json.dumps(_finished(scripted, asked, _output(scripted, asked))).encode()

    def error(self, status: int, code: str, message: str) -> bytes:
        return openai_error(code, message)


@dataclass(slots=True)
class _Events:
    asked: Asked
    sent: int = field(default=0)

    def of(self, kind: str, *, delay_ms: int = 0, is_text: bool = False, **fields: Any) -> Piece:
        name = f"response.{kind}"
        record = {"type": name, "sequence_number": self.sent, **fields}
        self.sent += 1
        return Piece(sse(record, name), delay_ms, is_text)

    def thought(self, item: Mapping[str, Any], place: int) -> Iterator[Piece]:
        at: dict[str, Any] = {"item_id": item["id"], "output_index": place}
        for index, part in enumerate(item["summary"]):
            here: dict[str, Any] = {**at, "summary_index": index}
            yield self.of("reasoning_summary_part.added", **here, part=part | {"text": ""})
            yield self.of("reasoning_summary_text.delta", **here, delta=part["text"])
            yield self.of("reasoning_summary_text.done", **here, text=part["text"])
            yield self.of("reasoning_summary_part.done", **here, part=part)

    def said(self, item: Mapping[str, Any], place: int, scripted: ScriptedReply) -> Iterator[Piece]:
        at: dict[str, Any] = {"item_id": item["id"], "output_index": place, "content_index": 0}
        (part,) = item["content"]
        yield self.of("content_part.added", **at, part=part | {"text": ""})
        for number, fragment in enumerate(fragments_of(scripted)):
            delay_ms = scripted.fragment_delay_ms if number else 0
            yield self.of("output_text.delta", delay_ms=delay_ms, is_text=True, **at, delta=fragment, logprobs=[])
        yield self.of("output_text.done", **at, text=part["text"], logprobs=[])
        yield self.of("content_part.done", **at, part=part)

    def called(self, item: Mapping[str, Any], place: int, made: ScriptedCall) -> Iterator[Piece]:
        at: dict[str, Any] = {"item_id": item["id"], "output_index": place}
        for piece in argument_pieces(made):
            yield self.of("function_call_arguments.delta", **at, delta=piece)
        yield self.of("function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])


def _turns(given: str | Sequence[Mapping[str, Any]]) -> int:
    """Items of the model that follow each other are one turn."""
    if isinstance(given, str):
        return 0
    turns = 0
    was_model = False
    for item in given:
        is_model = item.get("type") in MODEL_ITEMS or item.get("role") == "assistant"
        turns += is_model and not was_model
        was_model = is_model
    return turns


def _output(scripted: ScriptedReply, asked: Asked) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if scripted.reasoning is not None:
        given = scripted.reasoning.provider.get("item")
        summary = [{"type": "summary_text", "text": scripted.reasoning.text}]
        own = {"id": f"rs_{asked.turn}", "type": "reasoning", "summary": summary, "encrypted_content": "gAAA+/=="}
        items.append(dict(given) if isinstance(given, Mapping) else own)
    if scripted.text or not scripted.calls:
        content = {"type": "output_text", "text": scripted.text, "annotations": [], "logprobs": []}
        said = {"type": "message", "role": "assistant", "content": [content]}
        items.append({"id": f"msg_{asked.turn}", **said, "status": "completed"})
    for place, made in enumerate(scripted.calls):
        called = {"call_id": call_id(made, asked, place), "name": made.name, "arguments": arguments_of(made)}
        items.append({"id": f"fc_{asked.turn}_{place + 1}", "type": "function_call", **called, "status": "completed"})
    return items


def _empty(item: Mapping[str, Any]) -> dict[str, Any]:
    """What an item has not got when it is announced."""
    match item["type"]:
        case "reasoning":
            return {"summary": [], "encrypted_content": ""}
        case "message":
            return {"content": []}
        case _:
            return {"arguments": ""}


def _finished(scripted: ScriptedReply, asked: Asked, output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    reason = INCOMPLETE.get(scripted.finish_reason or "")
    response = _response(asked, output, "completed" if reason is None else "incomplete")
    response["incomplete_details"] = None if reason is None else {"reason": reason}
    used = used_by(scripted)
    response["usage"] = used and {
        "input_tokens": used.input_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": used.cache_write_tokens},
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.total_tokens,
    }
    return response


def _response(asked: Asked, output: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{asked.turn}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": asked.model,
        "output": list(output),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }
