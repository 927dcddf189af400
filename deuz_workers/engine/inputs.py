"""What reaches a run from outside, as events: inbox notes, answers to its items, results of the tasks before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast
from uuid import UUID

from deuz_workers.core.approval_token import DENIAL, ApprovalSigner
from deuz_workers.core.change import NoteRow
from deuz_workers.core.codec import decode
from deuz_workers.core.envelope import decode_body
from deuz_workers.core.events import InputsGiven, NotesFolded
from deuz_workers.core.messages import Message, message_from_record, user
from deuz_workers.core.reconciliation import Word, approval_id_of, words_in
from deuz_workers.core.render import render
from deuz_workers.core.run import Run
from deuz_workers.errors import CodecError
from deuz_workers.ports.store import RunStore
from deuz_workers.ports.swarm_rows import TaskResult


def fold_notes(notes: Sequence[NoteRow], wake_seq: int) -> NotesFolded:
    """One event for all inputs up to place `wake_seq`; `notes` are those that left a row, in order of their places.

    A note that cannot be read is named in the event and left out, so that a cancel behind it is heard; its row stays.
    """
    cancelled = False
    reason: str | None = None
    messages: list[Message] = []
    words: list[Word] = []
    unreadable: list[tuple[int, str]] = []
    for note in notes:
        try:
            match note.kind:
                case "cancel":
                    cancelled = True
                    reason = reason or _reason(note)
                case "message":
                    messages.append(message_from_record(_record(note).get("message")))
                case "retry" | "reconcile":
                    words.extend(words_in(_record(note)))
                case "child":
                    pass
        except CodecError:
            unreadable.append((note.seq, note.kind))
    return NotesFolded(wake_seq, cancelled, tuple(messages), tuple(words), tuple(unreadable), reason)


def with_tokens_checked(folded: NotesFolded, run: Run, signer: ApprovalSigner | None) -> NotesFolded:
    """With a denial in place of every approval of a repetition whose token is not one for its request (APR-015)."""
    if signer is None:
        return folded

    def judged(word: Word) -> Word:
        verdict = word.verdict
        if verdict is None or verdict.get("approved") is not True:
            return word
        envelope, asked = run.envelope, approval_id_of(run, word.call_id)
        if asked is not None and signer.fits(verdict.get("token"), envelope.scope, envelope.run_id, asked, now_ms=None):
            return word
        return replace(word, verdict={"approved": False, "reason": DENIAL})

    return replace(folded, words=tuple(map(judged, folded.words)))


def _record(note: NoteRow) -> Mapping[str, object]:
    body = decode(note.body)
    return cast(Mapping[str, object], body) if isinstance(body, Mapping) else {}


def _reason(note: NoteRow) -> str | None:
    given = _record(note).get("reason")
    return given if isinstance(given, str) and given else None


async def given_inputs(store: RunStore, swarm_rid: UUID, task_id: str) -> InputsGiven:
    """Results of the predecessors as labelled data of one user message; none where there is no predecessor (SWM-011)."""
    results = await store.task_results(swarm_rid, task_id)
    if not results:
        return InputsGiven(())
    blocks = [f'<result task="{result.task_id}">\n{render(_output(result))}\n</result>' for result in results]
    return InputsGiven((user("Results of the tasks before this one:\n\n" + "\n\n".join(blocks)),))


async def reducer_inputs(store: RunStore, swarm_rid: UUID, task_id: str) -> dict[str, object]:
    """Results of the predecessors by task id."""
    return {result.task_id: _output(result) for result in await store.task_results(swarm_rid, task_id)}


def _output(result: TaskResult) -> object:
    return decode_body(result.body).get("output")
