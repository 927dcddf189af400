"""Runs that are there: counted, listed, forked, carried elsewhere, compacted, deleted. `app.aio` is this too."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from deuz_workers.app.access import Access
from deuz_workers.app.async_handle import AsyncHandle
from deuz_workers.app.conversation import Content
from deuz_workers.app.forking import Fork, fork
from deuz_workers.app.ledger_compaction import compact
from deuz_workers.app.names import check_id
from deuz_workers.app.pruning import prune
from deuz_workers.app.run_file import export_run, import_run
from deuz_workers.core.change import RunStatus
from deuz_workers.core.usage import Budget
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.budgets import LedgerCompaction
from deuz_workers.ports.run_query import RunPage, RunQuery, run_query

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz

MOST_SLOTS = 1_000_000


class StoredRuns:
    """The part of a client that starts nothing by itself."""

    def __init__(self, app: Deuz, access: Access) -> None:
        self._app = app
        self._access = access

    async def limit_key(self, key: str, slots: int, *, scope: str = "default") -> None:
        """So many runs of the scope that name this concurrency key run at a time; 0 stops them. Those that run go on.

        Raises: ConfigurationError; StoreUnavailableError, and asking again is safe.
        """
        check_id("a concurrency key", key)
        check_id("a scope", scope)
        if type(slots) is not int or not 0 <= slots <= MOST_SLOTS:
            raise ConfigurationError(f"a concurrency key has 0 to {MOST_SLOTS} slots, not {slots!r}")
        await self._access.store.set_slots(scope, key, slots)
        await self._access.ring(await self._access.store.fill_key(scope, key))

    async def list_runs(self, query: RunQuery | None = None) -> RunPage:
        """A page of runs, newest change of status first; its `cursor` in the next query goes on behind it."""
        return await self._access.store.list_runs(run_query(query))

    async def prune(
        self,
        older_than: timedelta,
        *,
        status: Iterable[RunStatus] = ("completed", "stopped", "failed"),
        scope: str | None = None,
        batch: int = 100,
    ) -> int:
        """Delete runs that ended with one of `status` so long ago, in batches; how many. `scope` None: of all.

        Swarms go with their tasks. Runs that are suspended, parked or alive stay. Their ids and idempotency keys are free
        afterwards: asking again under one starts a new run. Raises `ConfigurationError` for a status that is no end.
        """
        return await prune(self._access.store, older_than, status, scope, batch)

    async def compact_ledger(self, run_id: str, *, scope: str = "default", actor: str, reason: str = "") -> LedgerCompaction:
        """Replace the settled calls of an ended run and of all below it by sums; what every budget counts stays the same.

        Calls whose outcome nobody knows stay rows of their own. `actor` and `reason` are kept. Again, it finds nothing to do.
        Raises: RunNotEndedError, one of these runs has not ended; RunNotFoundError. Nothing was written then.
        """
        return await compact(self._access.store, scope, run_id, actor=actor, reason=reason)

    async def fork(
        self,
        run_id: str,
        turn: int,
        *,
        scope: str = "default",
        new_run_id: str | None = None,
        prompt: Content | None = None,
        queue: str | None = None,
        budget: Budget | None = None,
    ) -> AsyncHandle:
        """A new run that goes on from turn `turn` of this one, which stays as it is; 0: from what it was asked.

        What was answered up to there is its history, tools that ran are not called again, and it calls the model next; `prompt`
        is said before that. Id, budget (None: as much as the first run had, else the agent's) and counters are its own, shared
        budgets are the same, and it is bound like the first one.

        Raises: ForkRefusedError, no such turn is answered in the history that the run has; RunExistsError, the id belongs to
        another run; RunNotFoundError.
        """
        name = (scope, run_id)
        forked = Fork(turn, new_run_id, prompt, queue, budget)
        made = await fork(self._access, self._app.agents, name, forked)
        return self.handle(made, scope)

    async def export_run(self, run_id: str, scope: str = "default") -> str:
        """The run as the text of a file, with its checksum. Raises `RunNotFoundError`, `ConfigurationError`."""
        return await export_run(self._access, scope, run_id)

    async def import_run(self, text: str) -> AsyncHandle:
        """The run of an exported file, under its own id; one that has not ended is parked as `imported` until a retry.

        Raises: RunFileError, the file is altered or none of ours; RunExistsError. Nothing was written then.
        """
        scope, run_id = await import_run(self._access, text)
        return self.handle(run_id, scope)

    def handle(self, run_id: str, scope: str = "default") -> AsyncHandle:
        """Of a run that exists; nothing is looked up yet."""
        return AsyncHandle(self._access, scope, run_id)
