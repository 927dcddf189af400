"""What a compacted history leaves out, and what stands for it.

Rows of messages are never rewritten. A compaction is a record of its own beside them, at the place below zero that has its
number; the newest one counts. It says up to which place results of tools and reasoning are left out of what a model is sent,
and which messages a summary stands for. The history of a run is what its rows are under that record; the transcript is
the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from deuz_workers.core.messages import (
    Message,
    ReasoningPart,
    ToolResultPart,
    message_from_record,
    message_to_record,
    user,
)
from deuz_workers.errors import CodecError

SUMMARY_PREFIX = "[Summary of the conversation so far]\n\n"
"""How the one user turn begins that stands for folded messages."""
LEFT_OUT = "[This result was left out to save room. Call the tool again if it is needed.]"
"""Stands for the text of a result; a shorter text stays."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Places are those of message rows. Everything only grows within an epoch; a rewritten history begins with none."""

    number: int = 0
    """0: nothing was compacted."""
    results_to: int = 0
    """Results of tools in messages below this place are left out."""
    reasoning_to: int = 0
    """Reasoning in messages below this place is left out."""
    folded_from: int = 0
    folded_to: int = 0
    """The messages from here to before there are left out; `summary` stands for them."""
    folded_step: int = 0
    """Receipts of turns below this one hold nothing that the history shows."""
    summary: tuple[Message, ...] = ()
    """System turns that were among the folded messages, then the summary."""

    @property
    def row_seq(self) -> int:
        """Place of the record's own row."""
        return -self.number

    @property
    def folded(self) -> int:
        """How many messages are left out whole."""
        return self.folded_to - self.folded_from

    def length(self, last_seq: int) -> int:
        """Messages of the history whose newest row is `last_seq`."""
        return last_seq + 1 - self.folded + len(self.summary)

    def place(self, index: int) -> int:
        """Of the row that the message at `index` of the history is; the summary is where what it stands for begins."""
        if index < self.folded_from:
            return index
        after = index - self.folded_from - len(self.summary)
        return self.folded_from if after < 0 else self.folded_to + after

    def shown(self, place: int, message: Message) -> Message:
        """The message at `place` as the history has it."""
        if place < self.results_to and message.role == "tool":
            return without_results(message)
        if place < self.reasoning_to and message.role == "assistant":
            return without_reasoning(message)
        return message

    def leaves_out(self, place: int) -> bool:
        return self.folded_from <= place < self.folded_to

    def history(self, messages: Iterable[tuple[int, Message]]) -> list[Message]:
        """What a model is sent of the rows at these places, in order; those that are folded need not be among them."""
        if not self.number:
            return [message for _, message in messages]
        found: list[Message] = []
        is_open = bool(self.summary)
        for place, message in messages:
            if self.leaves_out(place):
                continue
            if is_open and place >= self.folded_to:
                found.extend(self.summary)
                is_open = False
            found.append(self.shown(place, message))
        return [*found, *self.summary] if is_open else found

    def to_record(self) -> dict[str, object]:
        return {
            "results_to": self.results_to,
            "reasoning_to": self.reasoning_to,
            "folded": [self.folded_from, self.folded_to, self.folded_step],
            "summary": [message_to_record(message) for message in self.summary],
        }

    @staticmethod
    def from_record(number: int, record: object) -> Compaction:
        """Raises `CodecError` for what `to_record` did not write."""
        try:
            known = cast(Mapping[str, object], record)
            first, after, step = cast("list[int]", known["folded"])
            summary = tuple(map(message_from_record, cast("list[object]", known["summary"])))
            results_to, reasoning_to = cast(int, known["results_to"]), cast(int, known["reasoning_to"])
            return Compaction(number, results_to, reasoning_to, first, after, step, summary)
        except (KeyError, TypeError, ValueError) as error:
            raise CodecError(f"compaction {number} of a history is not readable: {type(error).__name__}") from error


NO_COMPACTION = Compaction()


def without_results(message: Message) -> Message:
    """The message with each longer result replaced by a note; every call keeps exactly one result."""
    return replace(
        message, parts=tuple(_left_out(part) if isinstance(part, ToolResultPart) else part for part in message.parts)
    )


def without_reasoning(message: Message) -> Message:
    """The message without what the model thought, unless it says nothing else."""
    kept = tuple(part for part in message.parts if not isinstance(part, ReasoningPart))
    return replace(message, parts=kept) if kept else message


def _left_out(part: ToolResultPart) -> ToolResultPart:
    is_short = part.receipt_step is None and len(part.text) <= len(LEFT_OUT)
    return part if is_short else replace(part, text=LEFT_OUT, receipt_step=None)


def is_summary(message: Message) -> bool:
    return message.role == "user" and message.text.startswith(SUMMARY_PREFIX)


def summary_of(text: str) -> Message:
    """The user turn that stands for what `text` sums up."""
    return user(SUMMARY_PREFIX + text)


def reshaped(history: Iterable[Message], before: Compaction, after: Compaction) -> list[Message]:
    """The history that `before` gave, as it is under the later `after`; the rows are not needed again."""
    refolded = after.folded_to > before.folded_to
    summed = range(before.folded_from, before.folded_from + len(before.summary))
    found: list[Message] = []
    for index, message in enumerate(history):
        if refolded and index == after.folded_from:
            found.extend(after.summary)
        if index in summed:
            if not refolded:
                found.append(message)
            continue
        place = before.place(index)
        if not after.leaves_out(place):
            found.append(after.shown(place, message))
    return found
