"""The synchronous twins of the handles: the same methods, waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from deuz_workers.app.async_handle import NOTHING, AsyncHandle, AsyncRun
from deuz_workers.app.async_swarm_handle import AsyncSwarmHandle
from deuz_workers.app.door import Answer
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.pending import PendingApproval, PendingClientCall
from deuz_workers.app.report import RunReport
from deuz_workers.app.results import AgentResult, UnknownEffect
from deuz_workers.app.run_event import RunEvent
from deuz_workers.app.stream import Stream
from deuz_workers.app.swarm_event import SwarmEvent
from deuz_workers.app.swarm_result import SwarmResult
from deuz_workers.app.verdicts import NO_VERDICTS, Verdicts
from deuz_workers.core.change import RunStatus
from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.ports.swarm_rows import SwarmSnapshot

Inner = TypeVar("Inner", bound=AsyncRun)


class SyncRun(Generic[Inner]):
    """What handles of runs and of swarms have in common."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    @property
    def run_id(self) -> str:
        return self._inner.run_id

    @property
    def scope(self) -> str:
        return self._inner.scope

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scope}/{self.run_id}>"

    def status(self) -> RunStatus:
        """As listings show it."""
        return LOOP.run(self._inner.status())

    def events(self, after: int = 0, *, follow: bool = True) -> Iterator[RunEvent]:
        """The run's journal after `after`, as it is written; ends with the run, or with what is there now."""
        events = self._inner.events(after, follow=follow)
        try:
            while (event := LOOP.run(_next(events))) is not None:
                yield event
        finally:
            LOOP.run(_close(events))

    def envelope(self) -> AgentRunEnvelope:
        """The stored record as it is."""
        return LOOP.run(self._inner.envelope())

    def cancel(self, reason: str | None = None) -> bool:
        """Ask for the run's end; False: it has ended before."""
        return LOOP.run(self._inner.cancel(reason))

    def ring(self) -> None:
        """Make a worker look now."""
        LOOP.run(self._inner.ring())


class Handle(SyncRun[AsyncHandle]):
    """A started run of an agent. Usable from any thread; see `AsyncHandle` for what each method promises and raises."""

    def result(self, timeout: float | None = None) -> AgentResult[Any]:
        """Wait until the run has something to report; `timeout` in seconds."""
        return LOOP.run(self._inner.result(timeout))

    def stream(self) -> Stream:
        """What happens from its start on until the run has something to report, and then the result."""
        return Stream(self._inner.stream())

    def pending(self) -> tuple[PendingApproval, ...]:
        """Calls that wait for a person now."""
        return LOOP.run(self._inner.pending())

    def pending_client_calls(self) -> tuple[PendingClientCall, ...]:
        """Calls that a client has to execute now."""
        return LOOP.run(self._inner.pending_client_calls())

    def approve(
        self,
        approval: str | PendingApproval,
        reason: str | None = None,
        *,
        by: str | None = None,
        token: str | None = None,
        arguments: Mapping[str, object] | None = None,
        policy: ExecutionPolicy | None = None,
    ) -> Answer:
        """Let the call run."""
        return LOOP.run(self._inner.approve(approval, reason, by=by, token=token, arguments=arguments, policy=policy))

    def deny(
        self,
        approval: str | PendingApproval,
        reason: str | None = None,
        *,
        by: str | None = None,
        policy: ExecutionPolicy | None = None,
    ) -> Answer:
        """Refuse the call; the model is told, with the reason."""
        return LOOP.run(self._inner.deny(approval, reason, by=by, policy=policy))

    def answer(
        self,
        call: str | PendingClientCall,
        output: object = None,
        *,
        error: str | None = None,
        by: str | None = None,
        policy: ExecutionPolicy | None = None,
    ) -> Answer:
        """Hand in what a client's execution of a call returned, or how it failed."""
        return LOOP.run(self._inner.answer(call, output, error=error, by=by, policy=policy))

    def narrow(self, policy: ExecutionPolicy) -> bool:
        """From its next step on the run may do only what `policy` allows too; False: it has ended before."""
        return LOOP.run(self._inner.narrow(policy))

    def unknown_effects(self) -> tuple[UnknownEffect, ...]:
        """Interrupted calls of a parked run, of which nobody knows whether they had their effect."""
        return LOOP.run(self._inner.unknown_effects())

    def report(self) -> RunReport:
        """What happened, what nobody knows, and what to do."""
        return LOOP.run(self._inner.report())

    def retry(
        self,
        call_ids: Iterable[str] | None = None,
        *,
        approvals: Verdicts = NO_VERDICTS,
        policy: ExecutionPolicy | None = None,
    ) -> tuple[str, ...]:
        """Free a parked run: its interrupted calls run once more."""
        return LOOP.run(self._inner.retry(call_ids, approvals=approvals, policy=policy))

    def retry_failed(self, policy: ExecutionPolicy | None = None) -> bool:
        """Take a failed run up again where it stood; False, without effect, where it has not failed."""
        return LOOP.run(self._inner.retry_failed(policy))

    def reconcile(
        self,
        outputs: Mapping[str, object] = NOTHING,
        *,
        errors: Mapping[str, str] = NOTHING,
        retry: Iterable[str] = (),
        approvals: Verdicts = NO_VERDICTS,
        policy: ExecutionPolicy | None = None,
    ) -> None:
        """Say what became of the interrupted calls of a parked run, by call or effect id."""
        LOOP.run(self._inner.reconcile(outputs, errors=errors, retry=retry, approvals=approvals, policy=policy))


class SwarmHandle(SyncRun[AsyncSwarmHandle]):
    """A started swarm. Usable from any thread; see `AsyncSwarmHandle` for what each method promises and raises."""

    def task(self, task_id: str) -> Handle:
        """The handle of a task's own run."""
        return Handle(self._inner.task(task_id))

    def snapshot(self) -> SwarmSnapshot:
        """Counters and tasks of one moment."""
        return LOOP.run(self._inner.snapshot())

    def result(self, timeout: float | None = None) -> SwarmResult:
        """Wait until the swarm has ended, or nothing can run before somebody answers; `timeout` in seconds."""
        return LOOP.run(self._inner.result(timeout))

    def output(self, task_id: str) -> object:
        """What a completed task put out."""
        return LOOP.run(self._inner.output(task_id))

    def swarm_events(self, after_sequence: int = 0, *, follow: bool = True) -> Iterator[SwarmEvent]:
        """What happened after `after_sequence`, until nothing can run any more."""
        events = self._inner.swarm_events(after_sequence, follow=follow)
        try:
            while (event := LOOP.run(_next_of_swarm(events))) is not None:
                yield event
        finally:
            LOOP.run(_close(events))

    def drain(self) -> bool:
        """No task begins from here on; those that run come to their ends."""
        return LOOP.run(self._inner.drain())

    def resume(self, **given: Any) -> bool:
        """Go on with a swarm, with answers by task id. See `AsyncSwarmHandle.resume`."""
        return LOOP.run(self._inner.resume(**given))


async def _next_of_swarm(events: AsyncIterator[SwarmEvent]) -> SwarmEvent | None:
    return await anext(events, None)


async def _next(events: Any) -> RunEvent | None:
    return await anext(events, None)


async def _close(events: Any) -> None:
    await events.aclose()
