"""The wires that tests go through one after the other: a further one is a line in `WIRES`, and passes all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deuz_workers.providers.anthropic.model import AnthropicModel
from deuz_workers.providers.chat.model import ChatCompletionsModel
from deuz_workers.providers.gemini.model import GeminiModel
from deuz_workers.providers.responses.model import ResponsesModel
from deuz_workers.providers.wire_model import WireModel
from deuz_workers.testing.model_server import ModelServer


@dataclass(frozen=True, slots=True)
class TestedWire:
    """How tests speak a wire, and what of it they need to know."""

    __test__ = False

    make: Callable[..., WireModel]
    """Called with model name, base URL and settings, `stream` among them."""
    short_stream: bytes
    """A thought, the text `Paying.` and two calls, `pay(usd=1250, to="é")` and `pay(usd=7)`, as briefly as they can be said."""
    finished: bytes
    """From these bytes of `short_stream` on the reply is whole: all arguments came before them."""
    path: str = "/v1"
    """Of the base URL, behind the server's root."""

    def model(self, server: ModelServer, **settings: Any) -> WireModel:
        return self.make(settings.pop("model", "m"), server.root + self.path, **settings)


def _sse(*records: dict[str, Any], done: bool = False) -> bytes:
    events = [f"data: {json.dumps(record, ensure_ascii=False, separators=(',', ':'))}\n\n" for record in records]
    return "".join([*events, "data: [DONE]\n\n"] if done else events).encode()


def _chat(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta} | ({"finish_reason": finish_reason} if finish_reason else {})]}


def _piece(index: int, arguments: str, **head: str) -> dict[str, Any]:
    named = {"name": head.pop("name")} if "name" in head else {}
    return _chat(tool_calls=[{"index": index, **head, "function": {**named, "arguments": arguments}}])


USED_IN_CHAT = {"prompt_tokens": 20, "completion_tokens": 9}
CHAT = _sse(
    _chat(reasoning_content="Hm."),
    _chat(content="Pay"),
    _chat(content="ing."),
    _piece(0, '{"usd":12', id="a", name="pay"),
    _piece(0, '50,"to":"é"}'),
    _piece(1, '{"usd":7}', id="b", name="pay"),
    _chat("tool_calls"),
    {"choices": [], "usage": USED_IN_CHAT},
    done=True,
)


def _item(place: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def _text(piece: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": 1, "delta": piece}


RESPONSES = _sse(
    _item(0, type="reasoning", id="rs", summary=[{"type": "summary_text", "text": "Hm."}]),
    _text("Pay"),
    _text("ing."),
    _item(1, type="message", id="m", role="assistant", content=[{"type": "output_text", "text": "Paying."}]),
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"usd":12'},
    _item(2, type="function_call", id="f1", call_id="a", name="pay", arguments='{"usd":1250,"to":"é"}'),
    _item(3, type="function_call", id="f2", call_id="b", name="pay", arguments='{"usd":7}'),
    {"type": "response.completed", "response": {"output": [], "usage": {"input_tokens": 20, "output_tokens": 9}}},
)


def _block(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def _delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


ANTHROPIC = _sse(
    {"type": "message_start", "message": {"usage": {"input_tokens": 20, "output_tokens": 1}}},
    _delta(0, "thinking_delta", thinking="Hm."),
    _delta(1, "text_delta", text="Pay"),
    _delta(1, "text_delta", text="ing."),
    _block(2, "tool_use", id="a", name="pay", input={}),
    _delta(2, "input_json_delta", partial_json='{"usd":12'),
    _delta(2, "input_json_delta", partial_json='50,"to":"é"}'),
    _block(3, "tool_use", id="b", name="pay", input={}),
    _delta(3, "input_json_delta", partial_json='{"usd":7}'),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
)


def _content(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts)}, **fields}]}


GEMINI = _sse(
    _content({"text": "Hm.", "thought": True}),
    _content({"text": "Pay"}),
    _content({"text": "ing."}),
    _content({"functionCall": {"name": "pay", "args": {"usd": 1250, "to": "é"}}, "thoughtSignature": "Zm9v"}),
    _content({"functionCall": {"name": "pay", "args": {"usd": 7}}}),
    _content({"text": ""}, finishReason="STOP") | {"usageMetadata": {"promptTokenCount": 20, "candidatesTokenCount": 9}},
)

WIRES: dict[str, TestedWire] = {
    "chat": TestedWire(ChatCompletionsModel, CHAT, b'"finish_reason"'),
    "responses": TestedWire(ResponsesModel, RESPONSES, b"response.completed"),
    "anthropic": TestedWire(AnthropicModel, ANTHROPIC, b'"stop_reason"'),
    "gemini": TestedWire(GeminiModel, GEMINI, b'"finishReason"'),
}
