"""A started swarm as seen from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping

from deuz_workers.app.access import Pauses, not_found
from deuz_workers.app.answers import ClientResults
from deuz_workers.app.async_handle import EVENTS_PER_READ, NOTHING, AsyncHandle, AsyncRun
from deuz_workers.app.swarm_answers import SwarmAnswers
from deuz_workers.app.swarm_event import SwarmEvent, swarm_event_of
from deuz_workers.app.swarm_result import SwarmResult, SwarmStatus, output_of, swarm_result, swarm_status, wanted_outputs
from deuz_workers.app.verdicts import Verdicts
from deuz_workers.app.words import Reconciled
from deuz_workers.core.change import FINAL, Head
from deuz_workers.core.names import task_run_id
from deuz_workers.errors import RunFailedError, SwarmConflictError
from deuz_workers.ports.swarm_rows import SwarmSnapshot
from deuz_workers.ports.tree import only_waits

SNAPSHOT_SHARE = 20
"""A waiting handle spends at most a twentieth of the time on reading the tasks of a large swarm."""


class AsyncSwarmHandle(AsyncRun):
    """A swarm by scope and run id. Approvals of its tasks are given through `task(...)`."""

    async def swarm_events(self, after_sequence: int = 0, *, follow: bool = True) -> AsyncGenerator[SwarmEvent, None]:
        """What happened after `after_sequence`, in order and without gaps, as it is written; ends when nothing can run.

        A suspension of the swarm counts: what happens after an answer is for another reader. Nothing waits for a reader, and
        none holds more than a page. `follow` False: ends with what is there now. Raises `RunNotFoundError`.
        """
        store, pauses = self._access.store, Pauses(self._access.clock)
        head = await self._access.head(self.scope, self.run_id)
        while True:
            counters = await store.swarm_counters(head.rid)
            if counters is None:
                raise not_found(self.scope, self.run_id)
            is_over = counters.is_still or (await self._access.head(self.scope, self.run_id)).status in FINAL
            rows = await store.swarm_events(self.scope, self.run_id, after_sequence, EVENTS_PER_READ)
            for row in rows:
                after_sequence = row.seq
                yield swarm_event_of(row)
            if len(rows) == EVENTS_PER_READ:
                continue
            if is_over or not follow:
                return
            if rows:
                pauses.start_again()
            await pauses.wait()

    async def drain(self) -> bool:
        """No task begins from here on; those that run come to their ends, and then the swarm is suspended. False: it has ended.

        Whoever drained it can tell it from others that wait (`snapshot().is_draining`), and goes on with `resume`. Raises
        `RunNotFoundError`.
        """
        drained = await self._access.store.drain_swarm(self.scope, self.run_id)
        if drained is None:
            await self._access.head(self.scope, self.run_id)
            return False
        await self._access.store.settle_swarm(drained)
        return True

    async def resume(
        self,
        *,
        approvals: Mapping[str, Verdicts] = NOTHING,
        client_tool_results: Mapping[str, ClientResults] = NOTHING,
        retry_task_ids: Iterable[str] = (),
        retry_tool_call_ids: Mapping[str, Iterable[str]] = NOTHING,
        reconciled_tool_results: Mapping[str, Reconciled] = NOTHING,
        expected_revision: int | None = None,
        expected_status: SwarmStatus | None = None,
    ) -> bool:
        """Go on with the swarm, from any process: answers are stored by task, ready tasks get slots. False: it has ended.

        A set that leaves something of its task open changes nothing of that task. `retry_task_ids`: tasks that need
        reconciliation and may run again; calls of theirs whose effect nobody knows have to be named in `retry_tool_call_ids`
        too, or told in `reconciled_tool_results`.

        Raises `SwarmConflictError` where `expected_revision` (`snapshot().revision`) or `expected_status` is not what it is;
        `ReconciliationError`, `ConfigurationError` for what cannot be meant; `RunNotFoundError`. Nothing was stored then.
        """
        answers = SwarmAnswers(
            approvals, client_tool_results, tuple(retry_task_ids), retry_tool_call_ids, reconciled_tool_results
        )
        run_ids = {task_id: task_run_id(self.run_id, task_id) for task_id in answers.tasks}
        await answers.check(self._access, self.scope, run_ids)
        if expected_status is not None:
            head, snapshot = await self._read()
            status = swarm_status(head, snapshot)
            if status != expected_status or expected_revision not in (None, snapshot.revision):
                raise self._changed(f"is {status} at revision {snapshot.revision}")
            expected_revision = snapshot.revision
        resumed = await self._access.store.resume_swarm(self.scope, self.run_id, expected_revision)
        if resumed is None:
            head, snapshot = await self._read()
            if expected_revision is not None and head.status not in FINAL:
                raise self._changed(f"is at revision {snapshot.revision}")
            return False
        await answers.hand_in(self._access, self.scope, run_ids)
        await self.ring()
        await self._access.store.settle_swarm(resumed)
        return True

    def _changed(self, how: str) -> SwarmConflictError:
        return SwarmConflictError(
            f"swarm {self.run_id!r} {how}; look at it again, and resume it as it is now", run_id=self.run_id
        )

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
