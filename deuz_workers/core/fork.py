"""Forking a run: a new one that begins where a turn of another ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from deuz_workers.core.codec import decode
from deuz_workers.core.envelope import AgentRunEnvelope, LoopCheckpoint
from deuz_workers.core.handoff import up_to
from deuz_workers.core.messages import Message
from deuz_workers.core.run_memory import RunMemory
from deuz_workers.core.transcript import HistoryRewrite, given_in_rows
from deuz_workers.errors import ForkRefusedError

FORKED = "run.forked"
"""Type of the first journal record of a fork."""


@dataclass(frozen=True, slots=True)
class Place:
    """The history up to a message: nothing of a later one was there when the turn ended."""

    epoch: int
    last_seq: int


def places_of(journal: Iterable[str]) -> Mapping[int, Place]:
    """Where the answered turns ended, by number, and 0: what the first model call was asked. Bodies of all journal rows."""
    found: dict[int, Place] = {}
    for body in journal:
        record = cast(Mapping[str, object], decode(body))
        turn = {"turn.answered": record.get("step"), "model.called": 0}.get(str(record.get("type")))
        seq, epoch = record.get("last_seq"), record.get("epoch", 0)
        if isinstance(turn, int) and isinstance(seq, int) and isinstance(epoch, int):
            found.setdefault(turn, Place(epoch, seq))
    return found


def place_of(envelope: AgentRunEnvelope, journal: Iterable[str], turn: int) -> Place:
    """Where `turn` ended in the history that the run has now.

    Raises `ForkRefusedError` where no such turn was answered, or a rewrite has replaced its history.
    """
    if turn == 0 and envelope.checkpoint.step == 0:
        return Place(envelope.epoch, envelope.last_seq)
    places = places_of(journal)
    place = places.get(turn)
    if place is None or place.epoch != envelope.epoch:
        known = [str(number) for number, there in sorted(places.items()) if there.epoch == envelope.epoch]
        why = "is not an answered turn" if place is None else "lies before a rewrite of the history"
        raise ForkRefusedError(
            f"turn {turn} {why} of run {envelope.run_id!r}; it can be forked from {', '.join(known) or 'none'}",
            run_id=envelope.run_id,
            turn=turn,
        )
    return place


def _own_memory(memory: RunMemory, rewrites: Sequence[HistoryRewrite]) -> RunMemory:
    """Nothing of it is extracted yet; the fork has the rows of the newest epoch alone."""
    given = None if memory.given is None else given_in_rows(rewrites, memory.given)
    return replace(memory, extraction=None, given=given)


def forked(envelope: AgentRunEnvelope, turn: int, history: tuple[Message, ...], begins: AgentRunEnvelope) -> AgentRunEnvelope:
    """`begins`, a run that was only named, going on behind `history`, that of `turn` of the run of `envelope`.

    From turn 1 on it is bound as that run is, and its next turn has the next number. What was spent, and what somebody said
    about the other run, is none of its own.
    """
    new = replace(begins, last_seq=len(history) - 1, journal_seq=1, limits=envelope.limits, policy=envelope.policy)
    if turn == 0:
        return new
    asked = {call.call_id for message in history for call in message.tool_uses}
    counts = {call_id: count for call_id, count in envelope.checkpoint.approval_request_counts.items() if call_id in asked}
    return replace(
        new,
        checkpoint=LoopCheckpoint(step=turn, approval_request_counts=counts),
        binding=envelope.agent_binding,
        finalizes=envelope.finalizes,
        verifies=envelope.verifies,
        memory=None if envelope.memory is None else _own_memory(envelope.memory, envelope.transcript),
        handoffs=up_to(envelope.handoffs, turn),
    )
