"""A stream of Gemini's `streamGenerateContent`, put together to the shape of a response that came whole; pure.

Whole is a stream whose body ended by its own framing after a finish reason, or after the reason why the prompt was refused.
Anything less is void: no part of it becomes a reply. Nothing in the protocol says that no more events follow.

Vendor facts, read 2026-11 from https://ai.google.dev/api/generate-content and
https://ai.google.dev/gemini-api/docs/thought-signatures: each event is a response whose parts go on from those of the events
before; a function call stands whole in one part; usage is counted anew in every event, the last counts; a signature may come in
a part with an empty text, and a part that has one is not to be merged with others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deuz_workers.providers.beside import Beside
from deuz_workers.providers.gemini.errors import reported_failure
from deuz_workers.providers.gemini.reply import first_candidate, is_text
from deuz_workers.providers.json_body import WholePairs, listed, mapping, parse_object, text_or_none
from deuz_workers.providers.sse import ServerEvent

UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
"""Says that the model has not finished."""


class ContentStream:
    """Takes the events of one stream in order."""

    is_done = False

    def __init__(self) -> None:
        self.beside = Beside()
        self._parts: list[dict[str, Any]] = []
        self._texts: list[str] | None = None
        """Pieces of the last part, while others may join them."""
        self._finish_reason: str | None = None
        self._blocked: Mapping[str, Any] | None = None
        self._usage: object = None
        self._model: str | None = None
        self._pairs = WholePairs()

    @property
    def has_content(self) -> bool:
        """Something of the answer has come: text, a thought, or a call."""
        return bool(self._parts)

    def take(self, event: ServerEvent) -> str:
        """Fold one event in; returns the text that it adds to the answer, never half of a surrogate pair.

        Raises: `ModelResponseError`, for an event that is no object; the failure that an event reports.
        """
        record = parse_object(event.data, "an event of the stream")
        if record.get("error") or event.name == "error":
            raise reported_failure(record)
        self._usage = record.get("usageMetadata") or self._usage
        self._model = text_or_none(record.get("modelVersion")) or self._model
        feedback = mapping(record.get("promptFeedback")) or {}
        if text_or_none(feedback.get("blockReason")):
            self._blocked = feedback
        candidate = first_candidate(record)
        if candidate is None:
            return ""
        reason = text_or_none(candidate.get("finishReason"))
        if reason not in (None, UNSPECIFIED):
            self._finish_reason = reason
        parts = listed((mapping(candidate.get("content")) or {}).get("parts"))
        return "".join([self._take_part(given) for part in parts if (given := mapping(part)) is not None])

    def completion(self) -> dict[str, Any] | None:
        """The response as if it had come whole; None while the stream is not."""
        if self._finish_reason is None and self._blocked is None:
            return None
        self._close()
        whole: dict[str, Any] = {"usageMetadata": self._usage, "modelVersion": self._model}
        if self._finish_reason is not None or self._parts:
            content = {"role": "model", "parts": self._parts}
            whole["candidates"] = [{"content": content, "finishReason": self._finish_reason}]
        return whole if self._blocked is None else whole | {"promptFeedback": self._blocked}

    def _take_part(self, part: Mapping[str, Any]) -> str:
        text = text_or_none(part.get("text")) or ""
        said = is_text(part)
        is_signed = "thoughtSignature" in part
        is_thought = part.get("thought") is True
        if said and not is_signed and self._texts is not None and self._parts[-1].get("thought", False) is is_thought:
            self._texts.append(text)
        else:
            self._close()
            self._parts.append(dict(part))
            if said and not is_signed:
                self._texts = [text]
        if is_thought and said:
            self.beside.think(text)
        elif (call := mapping(part.get("functionCall"))) is not None:
            arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
            self.beside.ask(len(self._parts), text_or_none(call.get("name")) or "", arguments)
        return self._pairs.take(text) if said and not is_thought else ""

    def _close(self) -> None:
        """Nothing joins the last part any more."""
        if self._texts is not None:
            self._parts[-1]["text"] = "".join(self._texts)
            self._texts = None
