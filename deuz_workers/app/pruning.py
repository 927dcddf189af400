"""Deleting runs that ended long ago, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from deuz_workers.app.names import check_id
from deuz_workers.app.order import FARTHEST
from deuz_workers.core.change import FINAL, RunStatus
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.store import RunStore

MOST_IN_A_BATCH = 10_000


async def prune(store: RunStore, older_than: timedelta, given: Iterable[RunStatus], scope: str | None, batch: int) -> int:
    """How many are gone. Each batch is a commit of its own: a death between two leaves the rest for the next time.

    Raises `ConfigurationError` for what would not be an end, before anything is deleted.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"status lists how runs ended, such as ('completed', 'failed'), not {given!r}")
    status = tuple(given)
    if not isinstance(older_than, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
        raise ConfigurationError(f"runs are pruned by their age, a timedelta such as timedelta(days=30), not {older_than!r}")
    if scope is not None:
        check_id("a scope", scope)
    others = [one for one in status if one not in FINAL]
    if others or not status:
        named = ", ".join(map(repr, others)) or "none"
        raise ConfigurationError(f"only runs that have ended are pruned: completed, stopped, failed; not {named}")
    if older_than < timedelta(0):
        raise ConfigurationError(f"runs are pruned by their age, which is never negative: {older_than}")
    if type(batch) is not int or not 1 <= batch <= MOST_IN_A_BATCH:
        raise ConfigurationError(f"a batch is 1 to {MOST_IN_A_BATCH} runs, not {batch!r}")
    # Nothing is older than a century, and the clocks of databases do not reach back as far as a timedelta does.
    older_ms = round(min(older_than, FARTHEST) / timedelta(milliseconds=1))
    gone = 0
    while pruned := await store.prune(older_ms=older_ms, status=status, scope=scope, limit=batch):
        gone += pruned
    return gone
