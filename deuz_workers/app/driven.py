"""Runs that are driven by name in this process, and who of it answers their bells."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

from deuz_workers.engine.in_process import LocalDoorbell
from deuz_workers.ports.store import RunStore

_Place = tuple[int, int, str, str]
"""Process, identity of the store object, scope, run id."""

_ANSWERED: dict[_Place, LocalDoorbell] = {}


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
