"""Calls and results of a history in pairs, as every provider demands.

What the engine writes is paired. A history that somebody else cut, a hook or whoever enqueued the run, may not be; it is sent
repaired, and stays stored as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from deuz_workers.core.history import says_nothing
from deuz_workers.core.messages import Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

NO_RESULT = "The result of this call is not known."
NOTHING_SAID = "(nothing)"
"""In place of an empty reply: some providers refuse a turn without content."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Messages in which every call has exactly one result and every result its call."""

    messages: tuple[Message, ...]
    answered: tuple[str, ...] = ()
    """Ids of calls that had no result: they got one that says so."""
    dropped: tuple[str, ...] = ()
    """Call ids of results, and of calls repeated in one turn, that were left out."""

    @property
    def is_repaired(self) -> bool:
        return bool(self.answered or self.dropped)


def paired(messages: Iterable[Message]) -> Paired:
    """The messages, repaired where a call has no result, a result no call, or either stands twice; an empty reply says
    `NOTHING_SAID`. Order is kept."""
    found: list[Message] = []
    answered: list[str] = []
    dropped: list[str] = []
    waiting: dict[str, ToolUsePart] = {}

    def close() -> None:
        if waiting:
            found.append(Message("tool", tuple(_unknown(call) for call in waiting.values())))
            answered.extend(waiting)
            waiting.clear()

    for message in messages:
        if message.role == "tool":
            kept = tuple(
                part for part in message.parts if not isinstance(part, ToolResultPart) or _takes(waiting, part, dropped)
            )
            if kept:
                found.append(message if len(kept) == len(message.parts) else replace(message, parts=kept))
            continue
        close()
        if says_nothing(message):  # kept as a turn: some chat templates want user and model to alternate
            message = replace(
                message, parts=(*(part for part in message.parts if isinstance(part, ReasoningPart)), TextPart(NOTHING_SAID))
            )
        calls = message.tool_uses
        if calls:
            message = _with_each_call_once(message, dropped)
            waiting.update((call.call_id, call) for call in message.tool_uses)
        found.append(message)
    close()
    return Paired(tuple(found), tuple(answered), tuple(dropped))


def _takes(waiting: dict[str, ToolUsePart], result: ToolResultPart, dropped: list[str]) -> bool:
    if waiting.pop(result.call_id, None) is not None:
        return True
    dropped.append(result.call_id)
    return False


def _with_each_call_once(message: Message, dropped: list[str]) -> Message:
    seen: set[str] = set()
    parts = list(message.parts)
    for part in message.tool_uses:
        if part.call_id in seen:
            parts = [other for other in parts if other is not part]
            dropped.append(part.call_id)
        seen.add(part.call_id)
    return message if len(parts) == len(message.parts) else replace(message, parts=tuple(parts))


def _unknown(call: ToolUsePart) -> ToolResultPart:
    return ToolResultPart(call.call_id, call.name, NO_RESULT, True, None, call.provider_call_id, "not-dispatched")
