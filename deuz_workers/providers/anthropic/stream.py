"""A stream of the Anthropic Messages API, put together to the shape of a message that came whole; pure.

Whole is a stream that said `message_stop`, or whose body ended by its own framing after a stop reason, which comes behind all
content. Anything less is void: no part of it becomes a reply, so that no tool runs on arguments that were cut off.

Vendor facts, read 2026-11 from https://platform.claude.com/docs/en/build-with-claude/streaming: events are `message_start`,
`content_block_start`, `content_block_delta`, `content_block_stop`, `message_delta` with the stop reason and cumulative usage,
`message_stop`, `ping` anywhere, and `error`; others may be added and are to be passed over. Deltas are `text_delta`,
`input_json_delta` (pieces of a text), `thinking_delta`, `signature_delta`, `citations_delta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deuz_workers.errors import ModelResponseError
from deuz_workers.providers.anthropic.errors import reported_failure
from deuz_workers.providers.beside import Beside
from deuz_workers.providers.json_body import WholePairs, mapping, parse_object, read_arguments, text_or_none
from deuz_workers.providers.sse import ServerEvent

BELONGS: Mapping[str, tuple[str, str]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
}
"""By kind of delta: the kind of its block, which a server may forget to announce, and the field that it has."""


def _texts() -> list[str]:
    return []


@dataclass(slots=True, eq=False)
class _Block:
    start: dict[str, Any]
    texts: list[str] = field(default_factory=_texts)
    """Of a text, a thought, or arguments."""
    signatures: list[str] = field(default_factory=_texts)

    @property
    def kind(self) -> object:
        return self.start.get("type")

    def as_record(self) -> dict[str, Any]:
        written = "".join(self.texts)
        match self.kind:
            case "text":
                return self.start | {"text": written}
            case "thinking":
                return self.start | {"thinking": written, "signature": "".join(self.signatures)}
            case "tool_use" if written:
                return self.start | {"input": written}
            case _ if written:
                return self.start | {"input": read_arguments(written) or {}}
            case _:
                return self.start


class MessageStream:
    """Takes the events of one stream in order."""

    def __init__(self) -> None:
        self.is_done = False
        self.beside = Beside()
        self._blocks: dict[int, _Block] = {}
        self._model: object = None
        self._stop_reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._is_counted = False
        self._pairs = WholePairs()

    @property
    def has_content(self) -> bool:
        """Something of the answer has come: text, a thought, or part of a call."""
        return bool(self._blocks)

    def take(self, event: ServerEvent) -> str:
        """Fold one event in; returns the text that it adds to the answer, never half of a surrogate pair.

        Raises: `ModelResponseError`, for an event that is no object; the failure that an `error` event reports.
        """
        record = parse_object(event.data, "an event of the stream")
        match record.get("type", event.name):
            case "error":
                raise reported_failure(record)
            case "message_start":
                self._take_start(mapping(record.get("message")) or {})
            case "content_block_start":
                return self._take_block(record)
            case "content_block_delta":
                return self._take_delta(record)
            case "message_delta":
                self._take_end(record)
            case "message_stop":
                self.is_done = True
            case _:
                pass
        return ""

    def completion(self) -> dict[str, Any] | None:
        """The message as if it had come whole; None while the stream is not."""
        if not self.is_done and not self._stop_reason:
            return None
        if not self._stop_reason and not self._blocks:
            raise ModelResponseError("the stream ended without an answer")
        return {
            "type": "message",
            "model": self._model,
            "content": [block.as_record() for _, block in sorted(self._blocks.items())],
            "stop_reason": self._stop_reason,
            "usage": self._usage if self._is_counted else None,
        }

    def _take_start(self, message: Mapping[str, Any]) -> None:
        self._model = message.get("model") or self._model
        self._usage.update(mapping(message.get("usage")) or {})

    def _take_block(self, record: Mapping[str, Any]) -> str:
        start, index = mapping(record.get("content_block")) or {}, _index(record)
        if not isinstance(start.get("type"), str):
            raise ModelResponseError("the stream has a content block without a type")
        if index in self._blocks:
            raise ModelResponseError("the stream has two content blocks in one place")
        block = self._blocks[index] = _Block(dict(start))
        match block.kind:
            case "text":
                return self._say(block, text_or_none(start.get("text")) or "")
            case "thinking":
                block.texts.append(text_or_none(start.get("thinking")) or "")
                self.beside.think(block.texts[0])
                block.signatures.append(text_or_none(start.get("signature")) or "")
            case _:
                pass
        return ""

    def _take_delta(self, record: Mapping[str, Any]) -> str:
        delta, index = mapping(record.get("delta")) or {}, _index(record)
        block, kind = self._blocks.get(index), text_or_none(delta.get("type")) or ""
        if kind == "input_json_delta":
            if block is None:
                raise ModelResponseError("the stream has arguments of a call that it did not name")
            if block.kind not in ("text", "thinking"):
                piece = text_or_none(delta.get("partial_json")) or ""
                block.texts.append(piece)
                if block.kind == "tool_use":
                    self.beside.ask(index, text_or_none(block.start.get("name")) or "", piece)
            return ""
        if kind not in BELONGS:
            return ""
        home, field_name = BELONGS[kind]
        if block is None:
            block = self._blocks[index] = _Block({"type": home})
        piece = text_or_none(delta.get(field_name))
        if piece is None or block.kind != home:
            return ""
        if home == "text":
            return self._say(block, piece)
        (block.texts if field_name == "thinking" else block.signatures).append(piece)
        if field_name == "thinking":
            self.beside.think(piece)
        return ""

    def _say(self, block: _Block, text: str) -> str:
        block.texts.append(text)
        return self._pairs.take(text)

    def _take_end(self, record: Mapping[str, Any]) -> None:
        self._stop_reason = text_or_none((mapping(record.get("delta")) or {}).get("stop_reason")) or self._stop_reason
        usage = {name: count for name, count in (mapping(record.get("usage")) or {}).items() if count is not None}
        # What `message_start` counts of the output is only its beginning.
        self._is_counted = self._is_counted or "output_tokens" in usage
        self._usage.update(usage)


def _index(record: Mapping[str, Any]) -> int:
    index = record.get("index")
    return index if isinstance(index, int) else 0
