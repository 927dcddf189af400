"""The transcript of a run with a chat or a memory: what was said, whatever hooks made of the history (CHT-002, PRP-008).

Rows of messages are never rewritten, and a history that a hook replaced goes on in a new epoch. So the transcript is the rows
of all epochs without those that a rewrite wrote; what the rewrites were is part of the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from deuz_workers.core.messages import Message, Part, ToolResultPart, message_from_record, message_to_record
from deuz_workers.errors import CodecError

if TYPE_CHECKING:
    from deuz_workers.core.envelope import AgentRunEnvelope


@dataclass(frozen=True, slots=True)
class HistoryRewrite:
    """One rewrite of the history of a run."""

    epoch: int
    """That it began."""
    length: int
    """The first messages of that epoch, which the rewrite wrote."""
    at: int
    """How many messages the transcript had by then."""
    before: tuple[Message, ...] = ()
    """The last of those, where no row has them: they were rewritten in the commit that would have saved them."""
    replaced: tuple[int, Message] | None = None
    """A guardrail put this message in the place of the one at this place of the transcript."""
    tail: int = 0
    """So many of the messages that it wrote, the last ones, are the newest of the transcript; the others were not said."""

    def to_record(self) -> dict[str, object]:
        record: dict[str, object] = {"epoch": self.epoch, "length": self.length, "at": self.at}
        if self.before:
            record["before"] = [message_to_record(message) for message in self.before]
        if self.replaced is not None:
            record["replaced"] = [self.replaced[0], message_to_record(self.replaced[1])]
        if self.tail:
            record["tail"] = self.tail
        return record

    @staticmethod
    def from_record(record: Mapping[str, object]) -> HistoryRewrite:
        place, message = cast("list[object] | None", record.get("replaced")) or (None, None)
        return HistoryRewrite(
            cast(int, record["epoch"]),
            cast(int, record["length"]),
            cast(int, record["at"]),
            tuple(map(message_from_record, cast("list[object]", record.get("before", [])))),
            None if place is None else (cast(int, place), message_from_record(message)),
            cast(int, record.get("tail", 0)),
        )


def transcript_length(envelope: AgentRunEnvelope) -> int:
    """Messages of the transcript, without reading one."""
    return said_up_to(envelope.transcript, envelope.last_seq + 1)


def said_up_to(rewrites: Sequence[HistoryRewrite], rows: int) -> int:
    """Messages of the transcript where the newest epoch has so many rows."""
    return rewrites[-1].at + rows - rewrites[-1].length if rewrites else rows


def place_of_row(rewrites: Sequence[HistoryRewrite], row: int) -> int | None:
    """Place in the transcript of a row of the newest epoch; None: a hook made it."""
    if not rewrites:
        return row
    newest = rewrites[-1]
    return None if row < newest.length - newest.tail else newest.at + row - newest.length


def given_in_rows(rewrites: Sequence[HistoryRewrite], given: int) -> int:
    """The first `given` messages of the transcript as rows of the newest epoch, where nothing is known of the others.

    What a hook made there counts as given.
    """
    if not rewrites:
        return given
    newest = rewrites[-1]
    return max(newest.length - newest.tail, given - newest.at + newest.length)


def whole_transcript(epochs: Mapping[int, Sequence[Message]], rewrites: Sequence[HistoryRewrite]) -> tuple[Message, ...]:
    """The transcript from the rows of all epochs, results with their texts. Raises `CodecError` where rows are missing."""
    found = list(epochs.get(rewrites[0].epoch - 1 if rewrites else 0, ()))
    for place, rewrite in enumerate(rewrites):
        found.extend(rewrite.before)
        if len(found) != rewrite.at:
            raise CodecError(f"the transcript has {len(found)} messages ahead of rewrite {place}, which counts {rewrite.at}")
        if rewrite.replaced is not None:
            found[rewrite.replaced[0]] = rewrite.replaced[1]
        if place + 1 == len(rewrites) or rewrites[place + 1].epoch != rewrite.epoch:
            found.extend(epochs.get(rewrite.epoch, ())[rewrite.length :])
    return tuple(map(_said, found))


def _said(message: Message) -> Message:
    """The message on its own: no text of it stands in a receipt."""
    if message.role != "tool":
        return message
    return replace(message, parts=tuple(map(_own, message.parts)))


def _own(part: Part) -> Part:
    return replace(part, receipt_step=None) if isinstance(part, ToolResultPart) else part
