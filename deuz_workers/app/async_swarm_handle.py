"""A started swarm as seen from outside."""

from __future__ import annotations

import asyncio

from deuz_workers.app.access import Pauses, not_found
from deuz_workers.app.async_handle import AsyncHandle, AsyncRun
from deuz_workers.app.swarm_result import SwarmResult, output_of, swarm_result, swarm_status, wanted_outputs
from deuz_workers.core.change import Head
from deuz_workers.core.names import task_run_id
from deuz_workers.errors import RunFailedError
from deuz_workers.ports.swarm_rows import SwarmSnapshot
from deuz_workers.ports.tree import only_waits

SNAPSHOT_SHARE = 20
"""A waiting handle spends at most a twentieth of the time on reading the tasks of a large swarm."""


class AsyncSwarmHandle(AsyncRun):
    """A swarm by scope and run id. Approvals of its tasks are given through `task(...)`."""

    def task(self, task_id: str) -> AsyncHandle:
        """The handle of a task's own run."""
        return AsyncHandle(self._access, self.scope, task_run_id(self.run_id, task_id))

    async def snapshot(self) -> SwarmSnapshot:
        """Counters and tasks of one moment. Raises `RunNotFoundError`."""
        return (await self._read())[1]

    async def result(self, timeout: float | None = None) -> SwarmResult:
        """Wait until the swarm has ended, or nothing can run before somebody answers.

        `timeout` in seconds; None waits for ever. Raises `RunNotFoundError`; `ResultTimeoutError`, and the swarm goes on.
        """
        try:
            async with asyncio.timeout(timeout):
                head, snapshot = await self._wait_for_end()
        except TimeoutError:
            raise self._too_late(timeout) from None
        outputs = {task_id: await self.output(task_id) for task_id in wanted_outputs(snapshot)}
        return swarm_result(head, snapshot, outputs)

    async def output(self, task_id: str) -> object:
        """What a completed task put out. Raises `RunNotFoundError`, and `RunFailedError` for a task that is not completed."""
        head = await self._access.head(self.scope, task_run_id(self.run_id, task_id))
        if head.status != "completed":
            raise RunFailedError(
                f"task {task_id!r} of swarm {self.run_id!r} is {head.listed_status} and has no output", task=task_id
            )
        return output_of(head)

    async def ring(self) -> None:
        """Give free slots to ready tasks and make workers look: after the commit of a transaction that it was started in."""
        head = await self._access.head(self.scope, self.run_id)
        await self._access.ring(await self._access.store.fill_slots(head.rid))

    async def _wait_for_end(self) -> tuple[Head, SwarmSnapshot]:
        pauses, clock = Pauses(self._access.clock), self._access.clock
        while True:
            before_ms = clock.monotonic_ms()
            head, snapshot = await self._read()
            status = swarm_status(head, snapshot)
            if status != "running" and (status != "suspended" or await self._only_waits()):
                return head, snapshot
            await pauses.wait(least_ms=(clock.monotonic_ms() - before_ms) * SNAPSHOT_SHARE)

    async def _only_waits(self) -> bool:
        """So do the runs that its suspended tasks delegated; of the tasks themselves the snapshot tells."""
        tree = await self._access.store.tree(self.scope, self.run_id)
        return only_waits([run for run in tree if run.parent_rid is not None])

    async def _read(self) -> tuple[Head, SwarmSnapshot]:
        # The head first: where it has ended, so have all the tasks that are read after it.
        head = await self._access.head(self.scope, self.run_id)
        snapshot = await self._access.store.swarm_snapshot(head.rid)
        if snapshot is None:
            raise not_found(self.scope, self.run_id)
        return head, snapshot
