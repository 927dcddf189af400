"""A started run as seen from outside: wait for it, watch it, answer it, cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from deuz_workers.app.access import Access, Pauses, not_found
from deuz_workers.app.agent import check_policy
from deuz_workers.app.agent_stream import AgentStream
from deuz_workers.app.below import below_of, reports
from deuz_workers.app.chat import inspected
from deuz_workers.app.client_source import Begun, ClientSource
from deuz_workers.app.door import Answer, Door
from deuz_workers.app.narrowing import narrow_run
from deuz_workers.app.pending import PendingApproval, PendingClientCall, Signing, pending_approvals, pending_client_calls
from deuz_workers.app.report import RunReport, report_on
from deuz_workers.app.results import NOTHING_BELOW, AgentResult, Below, UnknownEffect
from deuz_workers.app.run_event import RunEvent, event_of
from deuz_workers.app.settling import read_effects, settle
from deuz_workers.app.taking_up import take_up
from deuz_workers.app.verdicts import NO_VERDICTS, Verdicts
from deuz_workers.core.change import FINAL, Bell, ItemRow, RunStatus
from deuz_workers.core.codec import encode
from deuz_workers.core.envelope import AgentRunEnvelope, decode_envelope
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.receipts import fold_receipts
from deuz_workers.errors import ConfigurationError, ResultTimeoutError

EVENTS_PER_READ = 500
NOTHING: Mapping[str, Any] = {}


class AsyncRun:
    """Refers to a run by scope and id; any number of them may exist, in any process."""

    def __init__(self, access: Access, scope: str, run_id: str) -> None:
        self._access = access
        self.scope = scope
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scope}/{self.run_id}>"

    async def status(self) -> RunStatus:
        """As listings show it. Raises `RunNotFoundError`."""
        return (await self._access.head(self.scope, self.run_id)).listed_status

    async def events(self, after: int = 0, *, follow: bool = True) -> AsyncIterator[RunEvent]:
        """The run's journal after `after`, in order and without gaps, as it is written; ends with the run.

        `follow` False: ends with what is there now.
        """
        store, pauses = self._access.store, Pauses(self._access.clock)
        while True:
            is_over = (await self._access.head(self.scope, self.run_id)).status in FINAL
            rows = await store.journal(self.scope, self.run_id, after, EVENTS_PER_READ)
            for row in rows:
                after = row.seq
                yield event_of(row)
            if len(rows) == EVENTS_PER_READ:
                continue
            if is_over or not follow:
                return
            if rows:
                pauses.start_again()
            await pauses.wait()

    async def envelope(self) -> AgentRunEnvelope:
        """The stored record as it is, receipts included. Raises `RunNotFoundError`, `CheckpointVersionError`, `CodecError`."""
        loaded = await self._access.store.load(self.scope, self.run_id)
        if loaded is None:
            raise not_found(self.scope, self.run_id)
        envelope = replace(decode_envelope(loaded.head), tool_results=fold_receipts(loaded.receipts))
        return await inspected(self._access.store, loaded, envelope)

    async def cancel(self, reason: str | None = None) -> bool:
        """Ask for the run's end; it reads `stopped` / `aborted` soon after. False: it has ended before.

        A running tool is told by its signal and is waited for. Raises `RunNotFoundError`.
        """
        body = encode({} if reason is None else {"reason": reason})
        noted = await self._access.store.add_note(self.scope, self.run_id, "cancel", body)
        if noted is None:
            await self._access.head(self.scope, self.run_id)
            return False
        await self._access.point_at_cancel(self.scope, self.run_id)
        await self._access.ring([noted.bell])
        return True

    async def ring(self) -> None:
        """Make a worker look now: after the commit of a transaction that the run was enqueued in."""
        head = await self._access.head(self.scope, self.run_id)
        await self._access.ring([Bell(head.scope, head.run_id, head.queue, head.revision, head.priority, head.agent)])

    def _too_late(self, timeout: float | None) -> ResultTimeoutError:
        return ResultTimeoutError(
            f"run {self.run_id!r} had nothing to report within {timeout} s; it goes on, ask again", run_id=self.run_id
        )


class AsyncHandle(AsyncRun):
    """A started run of an agent."""

    async def result(self, timeout: float | None = None) -> AgentResult[Any]:
        """Wait until the run has something to report: its end, a suspension, or an effect that nobody knows (RES-019).

        `timeout` in seconds; None waits for ever. Raises `RunNotFoundError`; `ResultTimeoutError`, and the run goes on.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.wait_for_report()
        except TimeoutError:
            raise self._too_late(timeout) from None
        return await self._access.result(self.scope, self.run_id)

    def stream(self) -> AgentStream:
        """What happens from its start on until the run has something to report, and then the result.

        A run that waits for answers has that already: to read how it goes on, `app.aio.resume_stream` brings them.
        """

        async def begin() -> Begun:
            return Begun(self.run_id)

        assert self._access.live is not None
        return AgentStream(ClientSource(self._access, self._access.live, self.scope, self.run_id, "", begin))

    async def pending(self) -> tuple[PendingApproval, ...]:
        """Calls that wait for a person now, its own and those of runs that it delegated, at any depth."""
        rows = await self._access.store.open_items(self.scope, self.run_id)
        signing = await self._access.signing() if rows else None
        return (*pending_approvals(rows, signing, self.scope), *(await self._below(rows, signing)).approvals)

    async def pending_client_calls(self) -> tuple[PendingClientCall, ...]:
        """Calls that a client has to execute now, its own and those of runs that it delegated, at any depth."""
        rows = await self._access.store.open_items(self.scope, self.run_id)
        return (*pending_client_calls(rows, self.scope), *(await self._below(rows, None)).client_calls)

    async def _below(self, rows: tuple[ItemRow, ...], signing: Signing | None) -> Below:
        if all(row.kind != "child_run" for row in rows):
            return NOTHING_BELOW
        tree = await self._access.store.tree(self.scope, self.run_id)
        return await below_of(self._access.store, self.scope, tree, signing)

    async def approve(
        self,
        approval: str | PendingApproval,
        reason: str | None = None,
        *,
        by: str | None = None,
        token: str | None = None,
        arguments: Mapping[str, object] | None = None,
        policy: ExecutionPolicy | None = None,
    ) -> Answer:
        """Let the call run; the run goes on once no other item is open. Stored at once, whatever else is pending.

        Args:
            approval: as `pending` gives it, or its `approval_id`; the id of the call alone where the run used that id once.
            by: who approves; needed where several people have to.
            token: the request's, where the application signs its requests. With a `PendingApproval` it is known.
            arguments: the call runs with these instead; both are recorded.
            policy: narrows what the run may do from here on, as `narrow` does; stored before the approval.

        Raises `AnswerConflictError` with the winning verdict if it was answered before; `AnswerRefusedError`, whose `part`
        says what does not match, and nothing was written; `RunNotFoundError`.
        """
        door = self._door(policy)
        return await door.verdict(approval, approved=True, reason=reason, by=by, token=token, arguments=arguments)

    async def deny(
        self,
        approval: str | PendingApproval,
        reason: str | None = None,
        *,
        by: str | None = None,
        policy: ExecutionPolicy | None = None,
    ) -> Answer:
        """Refuse the call; the model is told, with the reason. Otherwise like `approve`; needs no token."""
        return await self._door(policy).verdict(approval, approved=False, reason=reason, by=by)

    async def answer(
        self,
        call: str | PendingClientCall,
        output: object = None,
        *,
        error: str | None = None,
        by: str | None = None,
        policy: ExecutionPolicy | None = None,
    ) -> Answer:
        """Hand in what a client's execution of a call returned, or how it failed. Stored at once. Raises as `approve` does."""
        given = output if error is None else error
        return await self._door(policy).result(call, given, is_error=error is not None, by=by)

    async def narrow(self, policy: ExecutionPolicy) -> bool:
        """From the run's next step on it may do only what `policy` allows too; False: it has ended before.

        What it has begun goes on, and nothing makes it wider again. Raises `ConfigurationError`, `RunNotFoundError`.
        """
        if check_policy("what narrows a run", policy) is None:
            raise ConfigurationError("pass ExecutionPolicy(allowed_tools=...); None narrows nothing")
        return await narrow_run(self._access, self.scope, self.run_id, policy)

    async def unknown_effects(self) -> tuple[UnknownEffect, ...]:
        """Interrupted calls of a parked run, of which nobody knows whether they had their effect. Raises `RunNotFoundError`."""
        return await read_effects(self._access, self.scope, self.run_id)

    async def report(self) -> RunReport:
        """What happened, what nobody knows, and what to do. Raises `RunNotFoundError`, `CheckpointVersionError`."""
        return await report_on(self._access.store, self.scope, self.run_id, await self._access.signing())

    async def retry(
        self,
        call_ids: Iterable[str] | None = None,
        *,
        approvals: Verdicts = NO_VERDICTS,
        policy: ExecutionPolicy | None = None,
    ) -> tuple[str, ...]:
        """Free a parked run: its interrupted calls run once more, which are returned. None: all of them.

        Args:
            call_ids: ids of calls, or effect ids, which name one execution of a call.
            approvals: a gated call runs again only if its verdict is given again, under the effect's `approval_id` or its
                `effect_id`; otherwise it is answered as denied.
            policy: narrows the run as `narrow` does; stored before.

        Also frees a run that is parked as `quarantine`, and forgets its unclean ends. Raises `ReconciliationError`, whose
        `part` says what does not match, unless the run is parked and every interrupted call is named; nothing is changed then.
        `RunNotFoundError`.
        """
        check_policy("this retry", policy)
        return await settle(
            self._access, self.scope, self.run_id, retry=call_ids, outputs={}, errors={}, approvals=approvals, policy=policy
        )

    async def retry_failed(self, policy: ExecutionPolicy | None = None) -> bool:
        """Take a failed run up again where it stood, held to `policy` too; False, without effect, where it has not failed.

        Calls that were completed are answered from their receipts; verdicts and client results are not needed again. Raises
        `RetryRefusedError`, a `TypeError`, for a lasting cause; `ConfigurationError` where it is not known what became of a
        call; `RunNotFoundError`. Nothing was written then.
        """
        check_policy("this retry", policy)
        return await take_up(self._access, self.scope, self.run_id, policy)

    async def reconcile(
        self,
        outputs: Mapping[str, object] = NOTHING,
        *,
        errors: Mapping[str, str] = NOTHING,
        retry: Iterable[str] = (),
        approvals: Verdicts = NO_VERDICTS,
        policy: ExecutionPolicy | None = None,
    ) -> None:
        """Say what became of the interrupted calls of a parked run, by call or effect id: their results, or how they failed.

        An outcome is treated as if the tool had returned it just now: checked, projected, answered. `retry` and `approvals`: of
        calls that run once more. Together they must name every interrupted call. Raises as `retry` does.
        """
        check_policy("this reconciliation", policy)
        await settle(
            self._access,
            self.scope,
            self.run_id,
            retry=retry,
            outputs=outputs,
            errors=errors,
            approvals=approvals,
            policy=policy,
        )

    def _door(self, policy: ExecutionPolicy | None) -> Door:
        return Door(self._access, self.scope, self.run_id, check_policy("this answer", policy))

    async def wait_for_report(self) -> None:
        """Return when `result` has something to give. Raises `RunNotFoundError`."""
        pauses = Pauses(self._access.clock)
        while not await reports(self._access.store, await self._access.head(self.scope, self.run_id)):
            await pauses.wait()
