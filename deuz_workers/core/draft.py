"""A run while events are folded in: what they change, gathered, so that a batch of events copies each record once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from deuz_workers.core.change import FINAL, ItemRow, NewChild, Reserve, RunStatus, Settle
from deuz_workers.core.compaction import NO_COMPACTION, Compaction, is_summary, reshaped
from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.history import History
from deuz_workers.core.messages import Message, ToolUsePart
from deuz_workers.core.receipts import Receipt
from deuz_workers.core.run import Run, Unsaved, turn_of
from deuz_workers.core.successor import successor
from deuz_workers.core.transcript import HistoryRewrite, place_of_row, said_up_to


class Draft:
    """Reads like the run and may be changed; `finished` is the next run, the given one stays as it is."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._envelope: dict[str, Any] = {}
        self._checkpoint: dict[str, Any] = {}
        self._messages: tuple[Message, ...] = ()
        self._rewritten: tuple[Message, ...] | None = None
        """The history before `_messages`, if it is another than the run came with."""
        self._shown: History | None = None
        """The history after a compaction, with the first `_shown_messages` of `_messages`."""
        self._shown_messages = 0
        self.compaction = run.compaction
        self._compacts = run.unsaved.compacts
        self._journal: tuple[Mapping[str, object], ...] = run.unsaved.journal
        self.status: RunStatus = run.envelope.status
        self.receipts: Mapping[str, Receipt] = run.receipts
        self.unsaved_receipts: tuple[tuple[Receipt, Receipt | None], ...] = run.unsaved.receipts
        self.items: tuple[ItemRow, ...] = run.unsaved.items
        self.children: tuple[NewChild, ...] = run.unsaved.children
        self.reserve: Reserve | None = run.unsaved.reserve
        self.settle: tuple[Settle, ...] = run.unsaved.settle
        self.progress = run.unsaved.progress
        self.starts = run.unsaved.starts
        self.retry_verdicts = run.retry_verdicts
        self.projected = run.projected
        self.inputs_given = run.inputs_given
        self.due_in_ms: int | None = 0

    @property
    def envelope(self) -> AgentRunEnvelope:
        """As the run came in; what was changed since is in `value` and `point`."""
        return self._run.envelope

    def value(self, name: str) -> Any:
        """A field of the envelope as it is now."""
        return self._envelope[name] if name in self._envelope else getattr(self._run.envelope, name)

    def change(self, **fields: object) -> None:
        self._envelope.update(fields)

    def point(self, name: str) -> Any:
        """A field of the loop checkpoint as it is now."""
        return self._checkpoint[name] if name in self._checkpoint else getattr(self._run.envelope.checkpoint, name)

    def move(self, **fields: object) -> None:
        """Change the loop checkpoint."""
        self._checkpoint.update(fields)

    @property
    def step(self) -> int:
        return turn_of(self._run.envelope.run_kind, self.point("step"))

    @property
    def open_calls(self) -> tuple[ToolUsePart, ...]:
        """Calls of the newest message, if it is a reply."""
        known = self._known
        added = self._messages[self._shown_messages :]
        newest = added[-1] if added else known[-1] if len(known) else None
        return newest.tool_uses if newest is not None and newest.role == "assistant" else ()

    @property
    def has_children(self) -> bool:
        """Runs that it delegated, and waits for."""
        return any(receipt.stage == "suspended" for receipt in self.receipts.values())

    @property
    def settled_calls(self) -> frozenset[str]:
        """Interrupted calls about which nothing more needs to be said."""
        return self._run.judged_idempotent | self.retry_verdicts.keys()

    @property
    def place(self) -> dict[str, int]:
        """How far the history goes, as journal records say it: `last_seq`, and `epoch` where it was rewritten."""
        rewritten, before = self._rewritten, self._run.envelope
        epoch = before.epoch + (rewritten is not None)
        last_seq = before.last_seq if rewritten is None else len(rewritten) - 1
        return {"last_seq": last_seq + len(self._messages)} | ({"epoch": epoch} if epoch else {})

    def append(self, *messages: Message) -> None:
        self._messages = (*self._messages, *messages)

    def rewrite(self, messages: tuple[Message, ...], replaced: int | None = None, *, is_remembered: bool = False) -> None:
        """Another history; it is written whole, in an epoch of its own. For the arguments see `HistoryRewritten`."""
        if is_remembered or self.value("chat") is not None:
            self.change(transcript=(*self.value("transcript"), self._rewrite_to(messages, replaced)))
        self._rewritten, self._messages = messages, ()
        self._shown, self._shown_messages = None, 0
        self.compaction, self._compacts = NO_COMPACTION, False

    def _rewrite_to(self, messages: tuple[Message, ...], replaced: int | None) -> HistoryRewrite:
        """What has to be known of it to find the transcript."""
        before, past = self._run.envelope, cast("tuple[HistoryRewrite, ...]", self.value("transcript"))
        unsaved, written = (*self._run.unsaved.messages, *self._messages), 0
        if self._rewritten is not None:
            unsaved, written = (*self._rewritten, *self._messages), len(self._rewritten)
        elif past and past[-1].epoch == before.epoch and len(self._run.unsaved.messages) == before.last_seq + 1:
            written = past[-1].length
        at, history, replacing, tail = said_up_to(past, self.place["last_seq"] + 1), self.history, None, 0
        if replaced is not None:
            places = [
                None if is_summary(message) else place_of_row(past, self.compaction.place(index))
                for index, message in enumerate(history)
            ]
            place = places[replaced]
            replacing = None if place is None else (place, messages[replaced])
            while tail < len(places) and places[-1 - tail] == at - 1 - tail:
                tail += 1
        return HistoryRewrite(before.epoch + 1, len(messages), at, unsaved[written:], replacing, tail)

    def compact(self, compaction: Compaction) -> None:
        """Leave more out of the history; the messages stay as they are."""
        history = self.history
        self._shown = History(reshaped(history, self.compaction, compaction))
        self._shown_messages = len(self._messages)
        self.compaction, self._compacts = compaction, True

    @property
    def history(self) -> History:
        """As it is now."""
        return self._known.append(*self._messages[self._shown_messages :])

    @property
    def _known(self) -> History:
        if self._shown is not None:
            return self._shown
        return self._run.history if self._rewritten is None else History(self._rewritten)

    def journal(self, kind: str, **detail: object) -> None:
        """Details that are None are left out."""
        record = {"type": kind, **{name: value for name, value in detail.items() if value is not None}}
        self._journal = (*self._journal, record)

    def unjournal(self, kind: str, step: int, call_id: str) -> None:
        """Take an unsaved record back that a later one of the same commit says too."""

        def is_it(record: Mapping[str, object]) -> bool:
            return record["type"] == kind and record.get("step") == step and record.get("call_id") == call_id

        self._journal = tuple(record for record in self._journal if not is_it(record))

    @property
    def _owes_chat(self) -> bool:
        """Of a run with a chat: the next commit brings it to where its chat is written, and nothing else is due there."""
        if self.status in FINAL:
            return self.due_in_ms is None
        return self.status == "suspended" != self._run.envelope.status

    def finished(self) -> Run:
        run, before = self._run, self._run.envelope
        checkpoint = successor(before.checkpoint, **self._checkpoint) if self._checkpoint else before.checkpoint
        if before.chat is not None and self._owes_chat:
            self.due_in_ms = 0  # until its chat is written
        envelope = successor(
            before,
            **self._envelope,
            status=self.status,
            checkpoint=checkpoint,
            epoch=before.epoch + (self._rewritten is not None),
            last_seq=(before.last_seq if self._rewritten is None else len(self._rewritten) - 1) + len(self._messages),
            journal_seq=before.journal_seq + len(self._journal) - len(run.unsaved.journal),
        )
        unsaved = Unsaved(
            messages=(run.unsaved.messages if self._rewritten is None else self._rewritten) + self._messages,
            compacts=self._compacts,
            receipts=self.unsaved_receipts,
            journal=self._journal,
            items=self.items,
            children=self.children,
            reserve=self.reserve,
            settle=self.settle,
            progress=self.progress,
            starts=self.starts,
            any=True,
        )
        return Run(
            envelope,
            self.history,
            self.receipts,
            self.retry_verdicts,
            run.judged_idempotent,
            self.inputs_given,
            self.due_in_ms,
            unsaved,
            self.projected,
            self.compaction,
        )
