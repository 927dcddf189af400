"""The swarm's own work: cascades in batches, and the final snapshot. Scheduling is none of it (architecture D14)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

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
        return Conducted(None, tuple(bells))
    return Conducted(_ending(snapshot, run.envelope), tuple(bells))


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
