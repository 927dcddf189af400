"""What reaches a run from outside, as events: inbox notes, answers to its items, results of the tasks before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast
from uuid import UUID

from deuz_workers.core.change import NoteRow
from deuz_workers.core.codec import decode
from deuz_workers.core.envelope import decode_body
from deuz_workers.core.events import InputsGiven, NotesFolded
from deuz_workers.core.messages import Message, message_from_record, user
from deuz_workers.core.render import render
from deuz_workers.errors import CodecError
from deuz_workers.ports.store import RunStore, TaskResult


def fold_notes(notes: Sequence[NoteRow], wake_seq: int) -> NotesFolded:
    """One event for all inputs up to place `wake_seq`; `notes` are those that left a row, in order of their places.

    A note that cannot be read is named in the event and left out, so that a cancel behind it is heard; its row stays.
    """
    cancelled = False
    reason: str | None = None
    messages: list[Message] = []
    retry: set[str] = set()
    outcomes: dict[str, Mapping[str, object]] = {}
    unreadable: list[tuple[int, str]] = []
    for note in notes:
        try:
            match note.kind:
                case "cancel":
                    cancelled = True
                    reason = reason or _reason(note)
                case "message":
                    messages.append(message_from_record(_record(note).get("message")))
                case "retry":
                    retry.update(_texts(_record(note).get("tool_call_ids", ())))
                case "reconcile":
                    outcomes.update(_outcomes(_record(note).get("results", {})))
                case "child":
                    pass
        except CodecError:
            unreadable.append((note.seq, note.kind))
    return NotesFolded(wake_seq, cancelled, tuple(messages), frozenset(retry), outcomes, tuple(unreadable), reason)


def _record(note: NoteRow) -> Mapping[str, object]:
    body = decode(note.body)
    return cast(Mapping[str, object], body) if isinstance(body, Mapping) else {}


def _reason(note: NoteRow) -> str | None:
    given = _record(note).get("reason")
    return given if isinstance(given, str) and given else None


def _texts(value: object) -> Sequence[str]:
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in cast(Sequence[object], value)):
        return cast(Sequence[str], value)
    raise CodecError("the note holds no list of texts")


def _outcomes(value: object) -> Mapping[str, Mapping[str, object]]:
    if isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in cast(Mapping[object, object], value).values()):
        return cast(Mapping[str, Mapping[str, object]], value)
    raise CodecError("the note holds no outcomes by call")


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
