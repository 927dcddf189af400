"""The swarm's own work: cascades in batches, and the final snapshot. Scheduling is none of it (architecture D14)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from deuz_workers.core.change import Bell
from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.events import Finished
from deuz_workers.core.run import Run
from deuz_workers.engine.gear import Gear
from deuz_workers.ports.swarm_rows import SwarmSnapshot


@dataclass(frozen=True, slots=True)
class Conducted:
    ending: Finished | None
    """The swarm settles; None: tasks are open."""
    bells: tuple[Bell, ...]
    is_still: bool = False
    """Tasks are open, and none of them runs or may begin."""


async def conduct_swarm(gear: Gear, run: Run) -> Conducted:
    """Block what can never run, cancel what is not wanted, and settle the swarm when no task is open.

    Each batch is a commit of its own; a death between two leaves the rest as due work.
    """
    rid = run.envelope.rid
    batch = gear.settings.cascade_batch
    bells: list[Bell] = []
    more = run.envelope.cancelled
    while more:
        cascade = await gear.store.cancel_tasks(rid, batch)
        bells.extend(cascade.bells)
        more = cascade.more
    more = True
    while more:
        cascade = await gear.store.block_downstream(rid, batch)
        bells.extend(cascade.bells)
        more = cascade.more
    bells.extend(await gear.store.fill_slots(rid))
    counters = await gear.store.swarm_counters(rid)
    snapshot = await gear.store.swarm_snapshot(rid) if counters is not None and not counters.open else None
    if snapshot is None:
        is_still = counters is not None and not counters.running and (not counters.ready or counters.is_draining)
        return Conducted(None, tuple(bells), is_still)
    return Conducted(_ending(snapshot, run.envelope), tuple(bells))


async def settled(gear: Gear, swarm_rid: UUID) -> tuple[Bell, ...]:
    """The swarm's own run, if it has to look because no task is open; a swarm that stands still says so in its journal."""
    bell = await gear.store.settle_swarm(swarm_rid)
    return () if bell is None else (bell,)


def _ending(snapshot: SwarmSnapshot, envelope: AgentRunEnvelope) -> Finished:
    cancelled = envelope.cancelled
    counts = Counter(task.status for task in snapshot.tasks)
    record = {
        "status": "cancelled" if cancelled else "completed" if counts["completed"] == len(snapshot.tasks) else "partial",
        "counts": dict(counts),
        "tasks": {task.task_id: task.status for task in snapshot.tasks},
    }
    if cancelled:
        return Finished("stopped", "aborted", {**record, **(envelope.stop_details or {})})
    return Finished("completed", output=record, has_output=True)
