"""An accepted transfer in the record of a run."""

from __future__ import annotations

from deuz_workers.core.draft import Draft
from deuz_workers.core.events import HandedOff
from deuz_workers.core.handoff import Handoff, active_agent


def hand_off(draft: Draft, event: HandedOff) -> None:
    before: tuple[Handoff, ...] = draft.value("handoffs")
    made = Handoff(draft.step, event.call_id, active_agent(draft.envelope.agent, before), event.to)
    draft.change(handoffs=(*before, made))
    draft.journal("run.handed_off", **made.to_record())
