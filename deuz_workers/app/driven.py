"""Runs that are driven by name in this process, and who of it answers their bells."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from deuz_workers.engine.in_process import LocalDoorbell
from deuz_workers.errors import AgentRunLeaseError
from deuz_workers.ports.store import RunStore

_Place = tuple[int, int, str, str]
"""Process, identity of the store object, scope, run id."""

_DRIVEN: set[_Place] = set()
_ANSWERED: dict[_Place, LocalDoorbell] = {}


@asynccontextmanager
async def alone(store: RunStore, scope: str, run_id: str) -> AsyncGenerator[None]:
    """Nobody else of this process drives the run over this store object, else raises `AgentRunLeaseError` at once.

    A courtesy for callers, and no protection of what is stored: that is the lease's business, and the revision's (CKP-008).
    """
    place = _place(store, scope, run_id)
    if place in _DRIVEN:
        text = f"run {run_id!r} is being driven in this process already; await that call, or wait for the run's handle"
        raise AgentRunLeaseError(text, code="lease_held", run_id=run_id)
    _DRIVEN.add(place)
    try:
        yield
    finally:
        _DRIVEN.discard(place)


@contextmanager
def answered(store: RunStore, scope: str, run_id: str, doorbell: LocalDoorbell) -> Generator[None]:
    """While this is open, bells for the run and those below it that other drivers of the process come by go to `doorbell`.

    Another driver does not know what the caller gave to the run, and would end its steps with its own. Whoever was first stays.
    """
    place = _place(store, scope, run_id)
    mine = _ANSWERED.setdefault(place, doorbell) is doorbell
    try:
        yield
    finally:
        if mine:
            _ANSWERED.pop(place, None)


def doorbell_of(store: RunStore, scope: str, run_id: str) -> LocalDoorbell | None:
    """The doorbell of whoever drives the run, or the nearest one above it, by name; None where nobody of this process does."""
    above = run_id
    while _ANSWERED:
        found = _ANSWERED.get(_place(store, scope, above))
        if found is not None or "/" not in above:
            return found
        above = above.rpartition("/")[0]
    return None


def _place(store: RunStore, scope: str, run_id: str) -> _Place:
    return (os.getpid(), id(store), scope, run_id)
