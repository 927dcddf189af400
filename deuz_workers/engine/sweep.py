"""The sweep: rings what is due and nobody rang for. One pass; who passes when is the caller's business."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from deuz_workers.core.change import Bell
from deuz_workers.core.names import run_lease_key
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.ring import ring_or_ripen

log = logging.getLogger(__name__)

BATCH = 500
"""Rows that one pass takes; one publish costs 0.7 ms, so a full pass takes a third of a second."""
CHUNK = 32
"""Doorbells that are handed over at a time: those of steps go in between."""


async def sweep_pass(
    gear: Gear, queues: Sequence[str] | None = None, *, batch: int = BATCH, spare: int = 0
) -> tuple[Bell, ...]:
    """Ring up to `batch` runs whose time has come, fill slots that a death left empty; returns what was rung for.

    A run whose lease is alive is not rung but looked at again when that expires. `spare`: places beyond `batch`, see
    `RunStore.sweep`.
    """
    bells = list(await feed(gear, queues, batch=batch, spare=spare))
    filled: list[Bell] = []
    for scope, key in await gear.store.keys_needing_attention(BATCH):
        filled.extend(await gear.store.fill_key(scope, key))
    for swarm_rid in await gear.store.swarms_needing_attention(BATCH):
        filled.extend(await gear.store.fill_slots(swarm_rid))
        settled = await gear.store.settle_swarm(swarm_rid)
        if settled is not None:
            filled.append(settled)
    await _ring(gear, filled)
    return (*bells, *filled)


async def feed(gear: Gear, queues: Sequence[str] | None = None, *, batch: int, spare: int = 0) -> tuple[Bell, ...]:
    """Ring up to `batch` runs whose time has come; returns what was rung for, whether there was still room or not."""
    return (await take(gear, queues, batch=batch, spare=spare)).bells


class Taken(NamedTuple):
    """What a look at rows came to."""

    bells: tuple[Bell, ...]
    """What was rung for."""
    held: int
    """Runs that had their turn and are worked on: they are looked at later, and more may wait behind them."""


async def take(gear: Gear, queues: Sequence[str] | None = None, *, batch: int, spare: int = 0) -> Taken:
    """As `feed`."""
    ttl_ms = gear.settings.lease_ttl_ms
    bells: list[Bell] = []
    held = 0
    for bell in await gear.store.sweep(limit=batch, spare=spare, ttl_ms=ttl_ms, queues=queues, from_shard=_any_shard(gear)):
        ms_left = await _held_ms(gear, bell)
        if ms_left > 0:
            held += 1
            await gear.store.postpone(bell.scope, bell.run_id, ms_left)
        else:
            bells.append(bell)
    await _ring(gear, bells)
    return Taken(tuple(bells), held)


async def _ring(gear: Gear, bells: Sequence[Bell]) -> None:
    if bells:
        log.info("sweep_rang runs=%d", len(bells))
    for first in range(0, len(bells), CHUNK):
        await ring_or_ripen(gear.store, gear.doorbell, bells[first : first + CHUNK], spare=True)


def _any_shard(gear: Gear) -> int:
    """Where a pass begins that cannot look through the scopes of all: at another place each time, so that none is left out."""
    return int(gear.ids.token()[:2], 16)


async def _held_ms(gear: Gear, bell: Bell) -> int:
    """How long the lease of a run still lasts. Before its first commit nobody is asked: such a step is short."""
    if bell.revision == 0:
        return 0
    peek = await gear.leases.peek(run_lease_key(bell.scope, bell.run_id))
    return peek.ms_left or 0
