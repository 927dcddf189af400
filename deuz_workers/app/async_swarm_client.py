"""Starting and finding swarms, for code on an event loop: part of `app.aio`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deuz_workers.app.async_swarm_handle import AsyncSwarmHandle
from deuz_workers.app.embedded import drive_swarm, driver
from deuz_workers.app.order import IN_PROCESS_QUEUE, NO_TAGS, Moment, Options, SharedBudgets, check_created
from deuz_workers.app.stored_runs import StoredRuns
from deuz_workers.app.swarm import Swarm
from deuz_workers.app.swarm_result import SwarmResult
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.usage import Budget
from deuz_workers.errors import RunExistsError, SwarmConflictError


class AsyncSwarmClient(StoredRuns):
    """What a client does with swarms."""

    async def run_swarm(
        self,
        swarm: Swarm,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        scope: str = "default",
        start_at: Moment | None = None,
        deadline: Moment | None = None,
        tags: Mapping[str, str] = NO_TAGS,
        queue: str | None = None,
        priority: int = 0,
        budget: Budget | None = None,
        shared_budgets: SharedBudgets = (),
        policy: ExecutionPolicy | None = None,
        connection: Any = None,
    ) -> AsyncSwarmHandle:
        """The swarm and all its tasks are rows, its first tasks have slots, and workers were asked to look.

        Args: as for `enqueue`. `start_at`: no task gets a slot before. `budget`: of all tasks together, None: the swarm's.
        `policy`: what its tasks may do, where that is less than the swarm's allows. With `connection` no slot is filled before
        the sweep comes, or you ring: `await handle.ring()`.

        Raises: SwarmDefinitionError, a task is bound to what the application does not know; SwarmConflictError, a run of that
        id exists, or the key belongs to another request; ScopeMismatchError; store errors as for `enqueue`.
        """
        options = Options(
            run_id,
            idempotency_key,
            scope,
            start_at,
            deadline=deadline,
            tags=tags,
            queue=queue,
            priority=priority,
            budget=budget,
            on_conflict="return" if idempotency_key else "reject",
            policy=policy,
            shared_budgets=shared_budgets,
        )
        handle = await self._create_swarm(swarm, options, connection)
        if connection is None:
            await handle.ring()
        return handle

    async def run_swarm_embedded(
        self,
        swarm: Swarm,
        *,
        run_id: str | None = None,
        scope: str = "default",
        deadline: Moment | None = None,
        tags: Mapping[str, str] = NO_TAGS,
        budget: Budget | None = None,
        shared_budgets: SharedBudgets = (),
        policy: ExecutionPolicy | None = None,
    ) -> SwarmResult:
        """Run a swarm on this loop until it has ended or only waits for answers; no worker is involved.

        Raises what `run_swarm` raises, and what keeps the swarm from being driven here.
        """
        options = Options(
            run_id,
            None,
            scope,
            deadline=deadline,
            tags=tags,
            queue=IN_PROCESS_QUEUE,
            budget=budget,
            on_conflict="reject",
            policy=policy,
            shared_budgets=shared_budgets,
        )
        async with driver(self._app) as driving:
            handle = await self._create_swarm(swarm, options, None)
            return await drive_swarm(self._app, driving, handle)

    async def resume_swarm_embedded(self, run_id: str, *, scope: str = "default") -> SwarmResult:
        """Go on with a stored swarm on this loop, whatever process began it."""
        async with driver(self._app) as driving:
            return await drive_swarm(self._app, driving, self.swarm_handle(run_id, scope))

    def swarm_handle(self, run_id: str, scope: str = "default") -> AsyncSwarmHandle:
        """Of a swarm that exists; nothing is looked up yet."""
        return AsyncSwarmHandle(self._access, scope, run_id)

    async def _create_swarm(self, swarm: Swarm, options: Options, connection: Any) -> AsyncSwarmHandle:
        swarm.check_bindings(self._app.registry)
        head, rows = swarm.new_run(self._app.ids, self._app.registry, options, self._app.telemetry.carried())
        try:
            created = await self._access.store.create(head, rows, connection=connection)
            check_created(head, created, options)
        except RunExistsError as error:
            raise SwarmConflictError(error.message, run_id=error.fields["run_id"]) from None
        return self.swarm_handle(created.run_id, created.scope)
