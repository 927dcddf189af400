"""A slot of the run's concurrency key: held by runs that go on, see `core.change.Head`."""

from __future__ import annotations

from dataclasses import replace

from deuz_workers.core.effects import (
    AnswerTurn,
    CallModel,
    Effect,
    GatherInputs,
    RunCalls,
)
from deuz_workers.engine.committer import StepOver
from deuz_workers.engine.leg import Leg


def lacks_slot(leg: Leg, effect: Effect) -> bool:
    """The run names a concurrency key, holds no slot of it, and would go on running."""
    runs_on = isinstance(effect, GatherInputs | CallModel | RunCalls | AnswerTurn)
    return leg.head.slot_key is not None and leg.head.slot != "held" and runs_on


async def take_slot(leg: Leg) -> bool:
    """False: the run waits for one, and is rung when it has it."""
    store, key = leg.gear.store, leg.head.slot_key
    assert key is not None
    envelope = leg.committer.run.envelope
    slots = leg.gear.settings.concurrency_limits.get(key, 1)
    slot = await store.take_slot(envelope.rid, envelope.revision, slots)
    if slot is None:
        raise StepOver("the run was written or parked by somebody else")
    if slot == "waiting":  # perhaps behind others whose ringer died, beside a slot that is free
        leg.bells.extend(await store.fill_key(envelope.scope, key))
        return False
    leg.head = replace(leg.head, slot=slot)
    return True
