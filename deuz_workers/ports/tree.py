"""A run and those that it delegated, directly and through others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from deuz_workers.core.change import ItemRow, RunStatus


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A run that another one delegated, as it stands: what it and those below it used is part of it."""

    run_id: str
    agent: str
    status: RunStatus
    model_step: int
    """Turns so far."""
    tokens: int
    cost_micros: int | None


@dataclass(frozen=True, slots=True)
class TreeRun:
    """One of them that has not ended, or the root, whose state is given whatever it is."""

    rid: UUID
    parent_rid: UUID | None
    run_id: str
    agent: str
    status: RunStatus
    parked: str | None
    goes_on: bool
    """It works, or will without anybody's answer; what it waits for in others is theirs."""
    items: tuple[ItemRow, ...] = ()
    """Open ones that somebody outside answers."""


def only_waits(tree: Sequence[TreeRun]) -> bool:
    """Nothing goes on in it before somebody answers, or says what became of an effect."""
    return not any(run.goes_on for run in tree)


def paths_in(tree: Iterable[TreeRun]) -> Mapping[UUID, tuple[str, ...]]:
    """Agents from the first run's to each one's own. `tree`: everyone behind its parent."""
    paths: dict[UUID, tuple[str, ...]] = {}
    for run in tree:
        above = () if run.parent_rid is None else paths.get(run.parent_rid, ())
        paths[run.rid] = (*above, run.agent)
    return paths
