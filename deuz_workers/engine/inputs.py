"""What reaches a run from outside, as events: inbox notes, answers to its items, results of the tasks before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast, get_args
from uuid import UUID

from deuz_workers.core.approval_token import DENIAL, ApprovalSigner
from deuz_workers.core.change import NoteKind, NoteRow
from deuz_workers.core.codec import decode
from deuz_workers.core.envelope import decode_body
from deuz_workers.core.events import CallExecuted, CallFailed, Event, InputsGiven, ModelReplied, NotesFolded
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.messages import Message, message_from_record, user
from deuz_workers.core.narrowing import read_narrowing
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.reconciliation import Word, approval_id_of, words_in
from deuz_workers.core.render import render
from deuz_workers.core.run import Run
from deuz_workers.core.shared_budget import SharedBudget, tightened
from deuz_workers.errors import CodecError, ConfigurationError
from deuz_workers.ports.store import RunStore
from deuz_workers.ports.swarm_rows import TaskResult

KINDS = frozenset(get_args(NoteKind))


def fold_notes(notes: Sequence[NoteRow], wake_seq: int) -> NotesFolded:
    """One event for all inputs up to place `wake_seq`; `notes` are those that left a row, in order of their places.

    A note that cannot be read is named in the event and left out, so that a cancel behind it is heard; its row stays. One that
    narrows the run is only left out of a run that ends: `check_policies` keeps every other one from here.
    """
    cancelled = False
    reason: str | None = None
    messages: list[Message] = []
    words: list[Word] = []
    unreadable: list[tuple[int, str]] = []
    policy: ExecutionPolicy | None = None
    shared: tuple[SharedBudget, ...] = ()
    verdicts: dict[str, Mapping[str, object]] = {}
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
                case "policy":
                    narrower, budgets = _narrowing(note)
                    policy, shared = narrower if policy is None else policy.narrowed(narrower), tightened(shared, budgets)
                case "verdict":
                    for name, verdict in _verdicts(note).items():
                        verdicts.setdefault(name, verdict)
                case "child":
                    pass
        except CodecError:
            unreadable.append((note.seq, note.kind))
    return NotesFolded(wake_seq, cancelled, tuple(messages), tuple(words), tuple(unreadable), reason, policy, verdicts, shared)


def check_policies(notes: Sequence[NoteRow]) -> None:
    """Raises `CodecError` for a note that narrows the run to something that this build cannot read, or of an unknown kind.

    Left out, it would let the run do what somebody forbade; so the run waits for a build that can, or for a cancel.
    """
    for note in notes:
        if note.kind not in KINDS:
            raise CodecError(f"the note at place {note.seq} is of the kind {note.kind!r}; upgrade deuz_workers")
        if note.kind == "policy":
            _narrowing(note)


def behind_reply(run: Run, older: tuple[Event, ...], folded: NotesFolded, rest: tuple[Event, ...]) -> tuple[Event, ...] | None:
    """The events with the messages of `folded` behind a reply among `rest`: the model had not seen them when it gave it.

    None where there is no such reply, or where the run ends with it and nothing can follow.
    """
    place = next((at for at, event in enumerate(rest) if isinstance(event, ModelReplied)), None)
    if place is None or not folded.messages:
        return None
    before = (*older, replace(folded, messages=()), *rest[: place + 1])
    if evolve_all(run, before).envelope.is_final:
        return None
    return (*before, NotesFolded(folded.seen_seq, messages=folded.messages), *rest[place + 1 :])


def behind_outcomes(older: tuple[Event, ...], folded: NotesFolded, rest: tuple[Event, ...]) -> tuple[Event, ...] | None:
    """The events with the words of `folded` behind the outcomes among `rest` of calls that they are about: somebody took these
    calls for interrupted while they went on here, and what came of them counts.

    None where there is no such outcome.
    """
    said = {word.call_id for word in folded.words}
    places = [at for at, event in enumerate(rest) if isinstance(event, CallExecuted | CallFailed) and event.call_id in said]
    if not places:
        return None
    behind = NotesFolded(folded.seen_seq, words=folded.words)
    return (*older, replace(folded, words=()), *rest[: places[-1] + 1], behind, *rest[places[-1] + 1 :])


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

    def judged_late(approval_id: str, verdict: Mapping[str, object]) -> Mapping[str, object]:
        envelope = run.envelope
        if verdict.get("approved") is not True or signer.fits(
            verdict.get("token"), envelope.scope, envelope.run_id, approval_id, now_ms=None
        ):
            return verdict
        return {"approved": False, "reason": DENIAL}

    late = {name: judged_late(name, verdict) for name, verdict in folded.verdicts.items()}
    return replace(folded, words=tuple(map(judged, folded.words)), verdicts=late)


def _record(note: NoteRow) -> Mapping[str, object]:
    body = decode(note.body)
    return cast(Mapping[str, object], body) if isinstance(body, Mapping) else {}


def _narrowing(note: NoteRow) -> tuple[ExecutionPolicy, tuple[SharedBudget, ...]]:
    body = decode(note.body)
    if not isinstance(body, Mapping):
        raise CodecError(f"the policy note at place {note.seq} holds no record")
    try:
        return read_narrowing(cast(Mapping[str, object], body))
    except (ConfigurationError, KeyError, TypeError) as error:
        what = error.message if isinstance(error, ConfigurationError) else type(error).__name__
        raise CodecError(f"the policy note at place {note.seq} cannot be read: {what}") from error


def _verdicts(note: NoteRow) -> Mapping[str, Mapping[str, object]]:
    given = _record(note).get("verdicts")
    if not isinstance(given, Mapping) or not all(
        isinstance(verdict, Mapping) for verdict in cast(Mapping[object, object], given).values()
    ):
        raise CodecError("the note holds no verdicts by name")
    return cast(Mapping[str, Mapping[str, object]], given)


def _reason(note: NoteRow) -> str | None:
    given = _record(note).get("reason")
    return given if isinstance(given, str) and given else None


async def given_inputs(store: RunStore, swarm_rid: UUID, task_id: str) -> InputsGiven:
    """Results of the completed predecessors as labelled data of one user message; none where there is none (SWM-011)."""
    results = [result for result in await store.task_results(swarm_rid, task_id) if result.status == "completed"]
    if not results:
        return InputsGiven(())
    blocks = [f'<result task="{result.task_id}">\n{render(_output(result))}\n</result>' for result in results]
    return InputsGiven((user("Results of the tasks before this one:\n\n" + "\n\n".join(blocks)),))


def reducer_inputs(results: Iterable[TaskResult]) -> dict[str, object]:
    """Results of the completed predecessors by task id: all of those that had to complete, and some of the others."""
    return {result.task_id: _output(result) for result in results if result.status == "completed"}


def _output(result: TaskResult) -> object:
    return decode_body(result.body).get("output")
