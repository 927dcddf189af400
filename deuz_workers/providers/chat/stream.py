"""A streamed chat completion, put together to the shape of one that came whole; pure.

Whole is a stream that said `[DONE]`, or whose body ended by its own framing after a finish reason. Anything less is void: no
part of it becomes a reply, so that no tool runs on arguments that were cut off.

Vendor facts, read 2026-11: with `include_usage` the last chunk has empty `choices` (some servers send null) and the usage
(https://platform.openai.com/docs/api-reference/chat/streaming); a failure in the middle is a chunk with `error`. Entries of
`tool_calls` carry an `index`, but servers exist that omit it and servers that send 0 for every call
(github.com/sgl-project/sglang/issues/7117, github.com/huggingface/smolagents/pull/1958).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from deuz_workers.errors import ModelResponseError
from deuz_workers.providers.beside import Beside
from deuz_workers.providers.chat.reply import REASONING_FIELDS, text_of
from deuz_workers.providers.json_body import WholePairs, joined, parse_object, read_arguments
from deuz_workers.providers.openai_errors import reported_failure
from deuz_workers.providers.sse import ServerEvent

DONE = "[DONE]"


@dataclass(slots=True, eq=False)
class _Call:
    index: int | None
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=lambda: list[str]())
    """Arguments as text."""
    whole: dict[str, Any] | None = None
    """Arguments that came as an object."""
    extra_content: object = None

    @property
    def written(self) -> str:
        return "".join(self.pieces)

    @property
    def is_complete(self) -> bool:
        if self.whole is not None:
            return True
        # Asked at every piece where a server says the name with each: only what may be the end is worth reading.
        return bool(self.pieces) and self.pieces[-1].rstrip().endswith("}") and read_arguments(self.written) is not None

    def as_record(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.written if self.whole is None else self.whole}
        return {"id": self.call_id, "type": "function", "function": function, "extra_content": self.extra_content}


class ChatStream:
    """Takes the events of one stream in order."""

    def __init__(self) -> None:
        self.is_done = False
        self.beside = Beside()
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._thoughts: list[str] = []
        self._thought_field: str | None = None
        self._calls: list[_Call] = []
        self._newest: dict[int, _Call] = {}
        """By index."""
        self._finish_reason: str | None = None
        self._usage: object = None
        self._model: object = None
        self._heard = WholePairs()
        self._heard_of_refusal = 0
        """Pieces."""

    @property
    def has_content(self) -> bool:
        """Something of the answer has come: text, a thought, or part of a call."""
        return bool(self._texts or self._refusals or self._thoughts or self._calls)

    def take(self, event: ServerEvent) -> str:
        """Fold one event in; returns the text that it adds to the answer, never half of a surrogate pair.

        Raises: `ModelResponseError`, for an event that is no chunk; the failure that an `error` chunk reports.
        """
        if event.data.strip() == DONE:
            self.is_done = True
            return self._refused()
        record = parse_object(event.data, "an event of the stream")
        if record.get("error") or event.name == "error":
            raise reported_failure(record)
        self._usage = record.get("usage") or self._usage
        self._model = record.get("model") or self._model
        choices = record.get("choices")
        choice: object = choices[0] if isinstance(choices, list) and choices else None
        text = self._take_choice(cast(Mapping[str, Any], choice)) if isinstance(choice, dict) else ""
        return text + self._refused() if self._finish_reason else text

    def completion(self) -> dict[str, Any] | None:
        """The completion as if it had come whole; None while the stream is not."""
        if not self.is_done and not self._finish_reason:
            return None
        if not self._finish_reason:
            if not (self._texts or self._refusals or self._calls):
                raise ModelResponseError("the stream ended without an answer")
            if not all(call.is_complete for call in self._calls):
                raise ModelResponseError("the stream ended without a finish reason, in the middle of a tool call")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self._texts),
            "refusal": "".join(self._refusals),
            "tool_calls": [call.as_record() for call in self._calls],
        }
        if self._thought_field is not None:
            message[self._thought_field] = "".join(self._thoughts)
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        return {"model": self._model, "choices": [choice], "usage": self._usage}

    def _refused(self) -> str:
        """What of the refusal nobody has heard. It stands behind all other text, so it is heard when no more of that comes."""
        unheard = self._refusals[self._heard_of_refusal :]
        self._heard_of_refusal += len(unheard)
        return joined("".join(unheard))

    def _take_choice(self, choice: Mapping[str, Any]) -> str:
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish_reason = reason
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        given = cast(Mapping[str, Any], delta)
        for name in REASONING_FIELDS:
            thought = given.get(name)
            # A server in transition sends the same thought under both names: the first one seen is the stream's.
            if isinstance(thought, str) and thought and self._thought_field in (None, name):
                self._thought_field = name
                self._thoughts.append(thought)
                self.beside.think(thought)
        if isinstance(refusal := given.get("refusal"), str):
            self._refusals.append(refusal)
        calls = given.get("tool_calls")
        if isinstance(calls, list):
            self._take_calls([cast(Mapping[str, Any], entry) for entry in cast(list[Any], calls) if isinstance(entry, dict)])
        text = text_of(given.get("content"))
        if not text:
            return ""
        self._texts.append(text)
        return self._heard.take(text)

    def _take_calls(self, entries: list[Mapping[str, Any]]) -> None:
        touched: set[_Call] = set()
        for entry in entries:
            function = entry.get("function")
            given = cast(Mapping[str, Any], function if isinstance(function, dict) else {})
            index, call_id, name = entry.get("index"), entry.get("id"), given.get("name")
            index = index if isinstance(index, int) else None
            call_id = call_id if isinstance(call_id, str) else ""
            name = name if isinstance(name, str) else ""
            written = given.get("arguments")
            call = self._call_at(index)
            if call is None or self._is_next(call, call_id, name, bool(written), touched):
                call = _Call(index)
                self._calls.append(call)
                if index is not None:
                    self._newest[index] = call
            touched.add(call)
            call.call_id = call.call_id or call_id
            call.name = call.name or name
            if isinstance(written, dict):
                call.whole = cast(dict[str, Any], written)
            elif isinstance(written, str) and written:
                call.pieces.append(written)
                self.beside.ask(id(call), call.name, written)
            call.extra_content = entry.get("extra_content") or call.extra_content

    def _call_at(self, index: int | None) -> _Call | None:
        """The newest call under that index; without an index the newest of all."""
        if index is not None:
            return self._newest.get(index)
        return self._calls[-1] if self._calls else None

    @staticmethod
    def _is_next(call: _Call, call_id: str, name: str, has_arguments: bool, touched: set[_Call]) -> bool:
        """Whether an entry under the index of `call`, or under none, begins another call instead of going on with it."""
        if call_id and call.call_id and call_id != call.call_id:
            return True
        if not name or not call.name:
            return False
        return call in touched or (has_arguments and call.is_complete)
