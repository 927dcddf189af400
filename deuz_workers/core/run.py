"""A run in memory: envelope, history, the receipts of the current turn, and what is not saved yet.

`Run` is what `decide` reads and `evolve` returns. `read_run` makes one from stored rows, `to_change` turns what happened since
the last commit into the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

from deuz_workers.core.change import (
    NOTHING_SPAWNED,
    Change,
    Head,
    ItemRow,
    MessageRow,
    NewChild,
    ReceiptRow,
    Reserve,
    RunKind,
    Settle,
    Spawning,
    TaskEnding,
)
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.compaction import NO_COMPACTION, Compaction
from deuz_workers.core.delegation import parent_answer
from deuz_workers.core.envelope import AgentRunEnvelope, decode_envelope, encode_body
from deuz_workers.core.handoff import driver_of
from deuz_workers.core.history import History
from deuz_workers.core.messages import Message, Part, ToolResultPart, ToolUsePart, message_from_record, message_to_record
from deuz_workers.core.receipts import MISSING, Receipt, fold_receipts, receipt_record
from deuz_workers.core.render import render
from deuz_workers.core.successor import successor
from deuz_workers.errors import CodecError


@dataclass(frozen=True, slots=True)
class Read:
    """What an executor still has of a run's history."""

    history: History
    compaction: Compaction = NO_COMPACTION


NO_RECEIPTS: Mapping[str, Receipt] = MappingProxyType({})
NO_RETRIES: Mapping[str, Mapping[str, object] | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Unsaved:
    """Rows and orders that the next commit carries."""

    messages: tuple[Message, ...] = ()
    compacts: bool = False
    """The record of the run's compaction is new."""
    receipts: tuple[tuple[Receipt, Receipt | None], ...] = ()
    """Each with what is stored of it so far; a call has one pair however many stages it went through."""
    journal: tuple[Mapping[str, object], ...] = ()
    items: tuple[ItemRow, ...] = ()
    children: tuple[NewChild, ...] = ()
    spawning: Spawning = NOTHING_SPAWNED
    """With the end of the run."""
    reserve: Reserve | None = None
    settle: tuple[Settle, ...] = ()
    progress: bool = False
    starts: bool = False
    any: bool = False
    """Something happened, so there is something to commit."""


NOTHING_UNSAVED = Unsaved()


@dataclass(frozen=True)  # no slots: see `core.successor`
class Run:
    envelope: AgentRunEnvelope
    history: History
    receipts: Mapping[str, Receipt] = field(default_factory=lambda: NO_RECEIPTS)
    """Of the current turn, by call id."""
    retry_verdicts: Mapping[str, Mapping[str, object] | None] = field(default_factory=lambda: NO_RETRIES)
    """Interrupted calls that a word of this leg allowed to run once more, with the verdict that came with it."""
    judged_idempotent: frozenset[str] = frozenset()
    """Interrupted calls of old receipts, which do not say it, whose tool is idempotent as this executor knows it."""
    inputs_given: bool = False
    due_in_ms: int | None = 0
    unsaved: Unsaved = NOTHING_UNSAVED
    projected: frozenset[str] = frozenset()
    """Calls of which this executor found that their recorded value cannot be shown; the next one tries again."""
    compaction: Compaction = NO_COMPACTION
    """What `history` leaves out of the stored messages."""
    whole: Sequence[Message] | None = None
    """All messages of the epoch, raw, where they were loaded and `history` is less."""

    @property
    def step(self) -> int:
        """Number of the turn that receipts belong to."""
        return turn_of(self.envelope.run_kind, self.envelope.checkpoint.step)

    @property
    def transcript(self) -> Sequence[Message]:
        """All messages as they were said, of this epoch of the history; compaction takes nothing away from it (CMP-008).

        Of a run that was loaded to be continued it is only what was loaded.
        """
        return self.history if self.whole is None else self.whole

    @property
    def open_calls(self) -> tuple[ToolUsePart, ...]:
        """Calls of the newest turn, if its results are not in the history yet."""
        if not len(self.history) or self.history[-1].role != "assistant":
            return ()
        return self.history[-1].tool_uses

    @property
    def driver(self) -> str:
        """Name of the agent whose model and tools the run has now; its own, or whom it was handed to."""
        envelope = self.envelope
        if not envelope.handoffs:
            return envelope.agent
        return driver_of(envelope.agent, envelope.handoffs, self.step if self.open_calls else None)

    @property
    def interrupted(self) -> tuple[Receipt, ...]:
        """Receipts left in `executing`."""
        return tuple(receipt for receipt in self.receipts.values() if receipt.stage == "executing")

    @property
    def has_children(self) -> bool:
        """Runs that it delegated may go on: nothing is recorded of their ends."""
        return any(receipt.stage == "suspended" for receipt in self.receipts.values())

    @property
    def is_mid_step(self) -> bool:
        checkpoint = self.envelope.checkpoint
        return checkpoint.open_call is not None or checkpoint.verifying or bool(self.interrupted)

    @property
    def record_version(self) -> int:
        """2 while the record holds what a reader of version 1 would mishandle (ENV-002 to ENV-007)."""
        envelope = self.envelope
        if (
            envelope.models is not None
            or envelope.memory is not None
            or envelope.chat is not None
            or envelope.handoffs
            or envelope.status == "suspended"
            or envelope.verdicts
            or envelope.checkpoint.taken_up
        ):
            return 2
        open_ids = {call.call_id for call in self.open_calls}
        if any(envelope.checkpoint.approval_request_counts.get(call_id) for call_id in open_ids):
            return 2
        unanswered = (receipt for receipt in self.receipts.values() if receipt.call_id in open_ids)
        return 2 if any(receipt.stage in ("failed", "suspended") for receipt in unanswered) else 1


def turn_of(kind: RunKind, step: int) -> int:
    """Receipts of an agent belong to the turn that its checkpoint counts; a reducer has one turn."""
    return 1 if kind == "reducer" else step


def read_run(
    head: Head,
    messages: Sequence[MessageRow],
    receipts: Sequence[ReceiptRow],
    known: Read | None = None,
    *,
    whole: bool = True,
) -> Run:
    """The run that rows describe. `known`: the history up to the first of `messages`; `whole`: without one, these are all rows.

    Raises `CheckpointVersionError` or `CodecError`; a run store fails closed.
    """
    envelope = decode_envelope(head)
    folded = fold_receipts(receipts)
    compaction = _compaction_of(head, messages) if known is None else known.compaction
    rows = [(row.seq, message_from_record(decode(row.body))) for row in messages if row.seq >= 0]
    if known is None:
        shown = compaction.history(rows)
        history = History(resolved(message, folded) for message in shown)
    else:
        history = known.history.append(*(resolved(message, folded) for _, message in rows))
    if len(history) != compaction.length(head.last_seq):
        raise CodecError(
            f"run {head.run_id!r} has {len(history)} messages in its history where its head counts "
            f"{compaction.length(head.last_seq)}"
        )
    has_transcript = whole and known is None and compaction.number
    transcript = tuple(resolved(message, folded) for _, message in rows) if has_transcript else None
    run = Run(envelope, history, compaction=compaction, whole=transcript)
    current = {call_id: receipt for (step, call_id), receipt in folded.items() if step == run.step}
    return successor(run, receipts=current)


def _compaction_of(head: Head, messages: Sequence[MessageRow]) -> Compaction:
    """The newest record of the history. Raises `CodecError` where the head counts one that is not there."""
    if not head.compactions:
        return NO_COMPACTION
    body = next((row.body for row in messages if row.seq == -head.compactions), None)
    if body is None:
        raise CodecError(f"run {head.run_id!r} has no record of compaction {head.compactions}, which its head counts")
    return Compaction.from_record(head.compactions, decode(body))


def resolved(message: Message, receipts: Mapping[tuple[int, str], Receipt]) -> Message:
    """The message with the texts that only their receipts hold."""
    if message.role != "tool" or all(result.receipt_step is None for result in message.tool_results):
        return message
    return replace(message, parts=tuple(_resolved_part(part, receipts) for part in message.parts))


def _resolved_part(part: Part, receipts: Mapping[tuple[int, str], Receipt]) -> Part:
    if not isinstance(part, ToolResultPart) or part.receipt_step is None:
        return part
    receipt = receipts.get((part.receipt_step, part.call_id))
    if receipt is None or receipt.value is MISSING:
        raise CodecError(f"the receipt of call {part.call_id!r} of turn {part.receipt_step} is missing or holds no value")
    return replace(part, text=render(receipt.value))


def to_change(run: Run, commit_id: UUID) -> Change:
    """The commit that saves everything since the last one. Made from the envelope's revision."""
    envelope, unsaved, compaction = run.envelope, run.unsaved, run.compaction
    first = envelope.last_seq + 1 - len(unsaved.messages)
    return Change(
        rid=envelope.rid,
        expected=envelope.revision,
        commit_id=commit_id,
        status=envelope.status,
        phase=envelope.phase,
        version=run.record_version,
        epoch=envelope.epoch,
        last_seq=envelope.last_seq,
        seen_seq=envelope.seen_seq,
        body=encode_body(envelope),
        due_in_ms=run.due_in_ms,
        mid_step=run.is_mid_step,
        tokens=envelope.usage.total_tokens,
        cost_micros=envelope.usage.cost_micros,
        model_step=run.step,
        messages=(
            *([MessageRow(compaction.row_seq, encode(compaction.to_record()))] if unsaved.compacts else ()),
            *(MessageRow(first + place, encode(message_to_record(message))) for place, message in enumerate(unsaved.messages)),
        ),
        compactions=compaction.number,
        folded_from=compaction.folded_from,
        folded_to=compaction.folded_to,
        folded_step=compaction.folded_step,
        receipts=tuple(receipt_row(receipt, before) for receipt, before in unsaved.receipts),
        journal=tuple(encode(record) for record in unsaved.journal),
        journal_seq=envelope.journal_seq - len(unsaved.journal),
        items=unsaved.items,
        reserve=unsaved.reserve,
        settle=unsaved.settle,
        task=_task_ending(envelope),
        children=unsaved.children,
        spawning=unsaved.spawning,
        answer=parent_answer(envelope),
        progress=unsaved.progress,
        starts=unsaved.starts,
        hears=_hears(envelope) or bool(unsaved.children),
    )


def _hears(envelope: AgentRunEnvelope) -> bool:
    """It completes out of its loop; what is saved behind that end finds nothing unseen, since nothing is written to it."""
    from_loop = envelope.phase == "loop" or (
        envelope.phase == "extracting" and not envelope.finalizes and not envelope.verifies
    )
    return envelope.run_kind == "agent" and envelope.status == "completed" and from_loop


def saved(run: Run, revision: int) -> Run:
    """The run after its change was applied as `revision`."""
    return successor(run, envelope=successor(run.envelope, revision=revision), unsaved=NOTHING_UNSAVED)


def receipt_row(receipt: Receipt, before: Receipt | None) -> ReceiptRow:
    return ReceiptRow(receipt.step, receipt.call_id, receipt.seq, receipt.stage, encode(receipt_record(receipt, before)))


def _task_ending(envelope: AgentRunEnvelope) -> TaskEnding | None:
    """How the swarm task of this run stands after the commit; None while it keeps its slot."""
    if envelope.swarm_rid is None or envelope.task_id is None:
        return None
    match envelope.status:
        case "completed":
            return TaskEnding(envelope.swarm_rid, envelope.task_id, "completed")
        case "failed":
            return TaskEnding(envelope.swarm_rid, envelope.task_id, "failed")
        case "stopped":
            return TaskEnding(envelope.swarm_rid, envelope.task_id, "cancelled" if envelope.reason == "aborted" else "failed")
        case "suspended":
            return TaskEnding(envelope.swarm_rid, envelope.task_id, "suspended")
        case _:
            return None
