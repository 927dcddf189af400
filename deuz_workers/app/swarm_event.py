"""Events of a swarm's journal, as readers see them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from deuz_workers.ports.swarm_rows import SwarmEventRow


@dataclass(frozen=True, slots=True)
class SwarmEvent:
    """What happened to a swarm or one of its tasks, written with it.

    `task.started`, `task.completed`, `task.failed`, `task.suspended`, `task.needs_reconciliation`, `task.blocked`,
    `task.cancelled`, `task.spawned` (`detail["parent"]`), `run.cancelled` (somebody asked for its end), `run.drained`,
    `run.resumed`, `run.settled` (`detail["status"]`: how it stands when nothing runs or can run).
    """

    sequence: int
    """Dense from 1: the cursor to go on from."""
    type: str
    task_id: str | None
    at_ms: int
    """Unix time in milliseconds by the store's clock."""
    detail: Mapping[str, object]


def swarm_event_of(row: SwarmEventRow) -> SwarmEvent:
    return SwarmEvent(row.seq, row.type, row.task_id, row.at_ms, {} if row.detail is None else json.loads(row.detail))
