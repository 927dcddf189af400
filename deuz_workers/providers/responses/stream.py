"""A streamed OpenAI response, put together to the shape of one that came whole; pure.

Whole is a stream that said `response.completed` or `response.incomplete`. Anything less is void: no part of it becomes a reply,
so that no tool runs on arguments that were cut off.

Vendor facts, read 2026-11 from openai-python 3.57 (`openai/types/responses/response_stream_event.py`, 59 kinds of events, and
the files that it names):

* each event has its kind in `type`, under the same name in the `event` field, and a `sequence_number`;
* `response.output_item.done` has the item as it is to be sent back; an item in `response.output_item.added` may be incomplete,
  its `encrypted_content` above all (`response_output_item_added_event.py`);
* the last event has the whole response once more, with its usage. Some servers that speak this protocol leave its `output`
  empty, hence items are taken from their own events first;
* failures are `response.failed`, with the response and its `error`, or `error`, with `code` at its top.

Every other kind (of tools that run at the provider, audio, images, progress) is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deuz_workers.errors import ModelResponseError
from deuz_workers.providers.beside import Beside
from deuz_workers.providers.json_body import WholePairs, listed, mapping, parse_object, text_or_none
from deuz_workers.providers.openai_errors import reported_failure
from deuz_workers.providers.responses.reply import checked
from deuz_workers.providers.sse import ServerEvent

DONE = "[DONE]"
"""Not of this protocol; some servers send it as they do in the older one."""


class ResponseStream:
    """Takes the events of one stream in order."""

    def __init__(self) -> None:
        self.is_done = False
        self.beside = Beside()
        self._names: dict[object, str] = {}
        """By place in the output: tools that are called."""
        self._told: dict[object, str] = {}
        """By place in the output: of a thought or of arguments."""
        self.has_content = False
        self._items: dict[int, Mapping[str, Any]] = {}
        """By place in the output: items that are finished."""
        self._texts: dict[int, list[str]] = {}
        """By place in the output: what was said of messages that are not."""
        self._spoken: dict[int, str] = {}
        """By place in the output: ids of those messages."""
        self._last: Mapping[str, Any] | None = None
        self._heard = WholePairs()

    def take(self, event: ServerEvent) -> str:
        """Fold one event in; returns the text that it adds to the answer, never half of a surrogate pair.

        Raises: `ModelResponseError`, for an event that is none; the failure that an event reports.
        """
        if event.data.strip() == DONE:
            return ""
        record = parse_object(event.data, "an event of the stream")
        kind = record.get("type")
        if isinstance(kind, str) and (kind.endswith(".delta") or kind == "response.output_item.done"):
            self.has_content = True
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                return self._say(record)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._think(record.get("output_index"), text_or_none(record.get("delta")) or "")
            case "response.output_item.added":
                added = mapping(record.get("item")) or {}
                self._names[record.get("output_index")] = text_or_none(added.get("name")) or ""
            case "response.function_call_arguments.delta":
                place = record.get("output_index")
                if name := self._names.get(place):  # else it is told with its name, when it is whole
                    self._ask(place, name, text_or_none(record.get("delta")) or "")
            case "response.output_item.done":
                item, place = mapping(record.get("item")), record.get("output_index")
                if item is not None and isinstance(place, int):
                    self._items[place] = item
                    self._tell_rest(place, item)
            case "response.completed" | "response.incomplete" as kind:
                self._end(record, kind.removeprefix("response."))
            case "response.failed":
                raise reported_failure(mapping(record.get("response")) or record)
            case "error":
                raise reported_failure(record)
            case None if record.get("error") or event.name == "error":
                raise reported_failure(record)
            case _:
                pass
        return ""

    def completion(self) -> Mapping[str, Any] | None:
        """The response as if it had come whole; None while the stream is not."""
        if self._last is None:
            return None
        output = self._output(self._last)
        if not output and self._last["status"] == "completed":
            raise ModelResponseError("the stream ended without an answer")
        return {**self._last, "output": output}

    def _say(self, record: Mapping[str, Any]) -> str:
        said, place = record.get("delta"), record.get("output_index")
        if not isinstance(said, str):
            return ""
        place = place if isinstance(place, int) else 0
        self._texts.setdefault(place, []).append(said)
        self._spoken.setdefault(place, text_or_none(record.get("item_id")) or "")
        return self._heard.take(said)

    def _think(self, place: object, text: str) -> None:
        self._told[place] = self._told.get(place, "") + text
        self.beside.think(text)

    def _ask(self, place: object, name: str, text: str) -> None:
        self._told[place] = self._told.get(place, "") + text
        self.beside.ask(place, name, text)

    def _tell_rest(self, place: int, item: Mapping[str, Any]) -> None:
        """Of a finished thought or call, what no delta has said: many servers send none."""
        told = self._told.get(place, "")
        match item.get("type"):
            case "reasoning":
                whole = "".join(text_or_none((mapping(one) or {}).get("text")) or "" for one in listed(item.get("summary")))
                self._think(place, whole.removeprefix(told) if whole.startswith(told) else "")
            case "function_call":
                whole = text_or_none(item.get("arguments")) or ""
                name = text_or_none(item.get("name")) or ""
                self._ask(place, name, whole.removeprefix(told) if whole.startswith(told) else "")
            case _:
                pass

    def _end(self, record: Mapping[str, Any], status: str) -> None:
        response = mapping(record.get("response"))
        if response is None:
            raise ModelResponseError("the last event of the stream has no response")
        self._last = {**checked(response), "status": status}
        self.is_done = True

    def _output(self, response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Finished items; of others what the last event says, and else what was heard of them.

        A call that is neither finished nor in the last event was never asked for. Servers exist that count places otherwise in
        events than in the last one: an item is known by its id too, so that no call is asked for twice.
        """
        finished = {name for item in self._items.values() for name in _ids(item)}
        last = [item for given in listed(response.get("output")) if (item := mapping(given)) is not None]
        known = finished.union(*map(_ids, last))
        output: dict[int, Mapping[str, Any]] = {}
        for place in self._texts:
            if ("id", self._spoken[place]) not in known:
                said = self._heard_at(place)
                output[place] = {"type": "message", "role": "assistant", "status": "incomplete", "content": said}
        for place, given in enumerate(listed(response.get("output"))):
            if (item := mapping(given)) is not None and finished.isdisjoint(_ids(item)):
                output[place] = item
        for place, item in self._items.items():
            is_hollow = item.get("type") == "message" and place in self._texts and not listed(item.get("content"))
            output[place] = {**item, "content": self._heard_at(place)} if is_hollow else item
        return [output[place] for place in sorted(output)]

    def _heard_at(self, place: int) -> list[Mapping[str, Any]]:
        return [{"type": "output_text", "text": "".join(self._texts[place]), "annotations": []}]


def _ids(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, given) for name in ("id", "call_id") if (given := text_or_none(item.get(name))) is not None]
