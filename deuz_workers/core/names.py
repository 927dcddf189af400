"""Keys and ids that several processes must spell alike."""

from __future__ import annotations

from urllib.parse import quote
from uuid import UUID, uuid5


def run_lease_key(scope: str, run_id: str) -> str:
    """`run:<scope>/<run_id>`, both percent-encoded, so that no pair of names makes another pair's key."""
    return f"run:{quote(scope, safe='')}/{quote(run_id, safe='')}"


def run_scope_key(rid: UUID) -> str:
    """Key of the budget scope of a run or swarm."""
    return f"run:{rid.hex}"


def task_run_id(swarm_run_id: str, task_id: str) -> str:
    """`<run id>/<task id>`. Ids that people choose have no slash, so nobody can take a task's."""
    return f"{swarm_run_id}/{task_id}"


def swarm_run_id(run_id: str) -> str:
    """Of the swarm that a task's run belongs to; any other run's own id."""
    return run_id.partition("/")[0]


def narrowing_id(rid: UUID, body: str) -> UUID:
    """Of the note by which this run is narrowed so; whoever else would write it writes it under the same id."""
    return uuid5(rid, body)
