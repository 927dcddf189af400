"""Who drives a run: its own agent, until a transfer hands it to another one.

A transfer is a tool call like any other. The one that is accepted is part of the record from the commit that saves its result
on; it takes effect when the turn is answered, so that the calls beside it stay with the agent whose model asked for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OTHER_TAKEN = "Only one transfer is made in a turn, and an earlier one is; this one has no effect."


@dataclass(frozen=True, slots=True)
class Handoff:
    """One accepted transfer."""

    step: int
    """The turn of its call; the next one is the other agent's."""
    call_id: str
    source: str
    """Name of the agent that drove the run until then."""
    to: str

    def to_record(self) -> dict[str, object]:
        return {"step": self.step, "call_id": self.call_id, "from": self.source, "to": self.to}

    @staticmethod
    def from_record(record: Mapping[str, object]) -> Handoff:
        step = record["step"]
        assert isinstance(step, int)
        return Handoff(step, str(record["call_id"]), str(record["from"]), str(record["to"]))


NO_HANDOFFS: tuple[Handoff, ...] = ()


def active_agent(agent: str, handoffs: Sequence[Handoff]) -> str:
    """Who drives the next turn of a run of `agent`."""
    return handoffs[-1].to if handoffs else agent


def driver_of(agent: str, handoffs: Sequence[Handoff], open_step: int | None) -> str:
    """Who drives now. `open_step`: the turn whose calls are not answered; None: no call is open."""
    newest = handoffs[-1] if handoffs else None
    return newest.source if newest is not None and newest.step == open_step else active_agent(agent, handoffs)


def up_to(handoffs: Sequence[Handoff], step: int) -> tuple[Handoff, ...]:
    """Those that had taken effect when turn `step` was answered."""
    return tuple(each for each in handoffs if each.step <= step)


def refusal(handoffs: Sequence[Handoff], step: int, most: int, *, is_first: bool) -> tuple[str, str] | None:
    """Why a transfer of turn `step` is not made: what the model is told, and a code; None: it may be.

    `is_first`: no earlier call of the turn is a transfer that goes ahead.
    """
    if not is_first or (handoffs and handoffs[-1].step == step):
        return OTHER_TAKEN, "not_first"
    if len(handoffs) >= most:
        return f"Handoff limit ({most}) reached; continue yourself.", "max_handoffs"
    return None


def transferred(to: str, reason: object) -> str:
    """Result of an accepted transfer, for the model."""
    text = f"Transferred to '{to}'."
    return f"{text} Reason: {reason}" if isinstance(reason, str) and reason else text
