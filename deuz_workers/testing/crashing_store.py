"""A store in a process that ends at a numbered commit: before the database saw it, or right after."""

from __future__ import annotations

import inspect
from typing import Any, cast

from deuz_workers.core.change import Change, Outcome
from deuz_workers.errors import SimulatedDeath
from deuz_workers.ports.store import RunStore


class ProcessDied(SimulatedDeath):
    """Stands for the end of the process: no `except Exception` of ours or of a tool's catches it."""


class CrashingStore:
    """Passes everything on to `inner` until commit number `at`, counted from 1, and nothing after it.

    `applied`: the commit is stored and only its answer is lost. `error`: that one commit is refused with it instead of a
    death, and the store goes on. The next process gets `inner`, or a crashing store of its own over it.
    """

    def __init__(self, inner: RunStore, at: int, *, applied: bool = False, error: Exception | None = None) -> None:
        self._inner = inner
        self.at = at
        self._applied = applied
        self._error = error
        self.commits = 0
        """Offered so far."""
        self.died = False

    @property
    def as_store(self) -> RunStore:
        return cast(RunStore, self)

    async def commit(self, change: Change) -> Outcome:
        self._check()
        self.commits += 1
        if self.commits != self.at:
            return await self._inner.commit(change)
        if self._applied:
            await self._inner.commit(change)
        if self._error is not None:
            raise self._error
        self.died = True
        raise ProcessDied

    def __getattr__(self, name: str) -> Any:
        reached = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(reached):
            return reached

        async def call(*args: Any, **kwargs: Any) -> object:
            self._check()
            return await reached(*args, **kwargs)

        return call

    def _check(self) -> None:
        if self.died:
            raise ProcessDied
