"""`reconcile_agent_run`: what is left to do beside a run that nobody drives, done under the run's lease.

Nothing of the run itself is written here: what became of its interrupted calls is said by a resume or by `handle.reconcile`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from deuz_workers.app.access import Access
from deuz_workers.app.results import ResultWarning
from deuz_workers.core.change import FINAL, Bell, Head
from deuz_workers.core.chat import ChatStatus, is_owed
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.names import run_lease_key
from deuz_workers.core.run_memory import ExtractionStatus
from deuz_workers.core.transcript import transcript_length
from deuz_workers.engine.projecting import chat_of, project
from deuz_workers.errors import AgentRunLeaseError, LeaseStoreUnavailableError, ScopeMismatchError
from deuz_workers.ports.leases import Lease, LeaseProvider, Released, Young

MOST_MS = 5_000
"""For which the lease is claimed: a few round trips to the store."""


@dataclass(frozen=True, slots=True)
class RunRepair:
    """What was found of the run. `record` has those parts that were asked about and apply (MEM-036)."""

    run_id: str
    memory: ExtractionStatus | None = None
    """Of the extraction, where the run has one and its memory was asked about."""
    warnings: tuple[ResultWarning, ...] = ()
    chat: ChatStatus | None = None
    """How its chat stands by now; None for a run without one."""

    @property
    def record(self) -> Mapping[str, object]:
        found: dict[str, object] = {"run_id": self.run_id}
        if self.memory is not None:
            found["memory"] = self.memory
        if self.chat is not None:
            found["chat"] = self.chat
        if self.warnings:
            found["warnings"] = [{"setting": warning.setting, "message": warning.message} for warning in self.warnings]
        return found


async def repair_run(access: Access, scope: str, run_id: str, ttl_ms: int) -> RunRepair:
    """Claim the run's lease, look what is left to do, and give it back. A cancel signal of a run that has ended is dropped, and
    its chat, or that of a run that waits, is written where that was interrupted.

    Raises `AgentRunLeaseError` with the code `lease_held` while somebody has the run; `ScopeMismatchError`,
    `CheckpointVersionError`, `CodecError`; nothing was written then.
    """
    head = await access.store.head(scope, run_id)
    if head is None:
        raise ScopeMismatchError(
            "Native checkpoint version, identity, or scope mismatch. "
            f"There is no run {run_id!r} in scope {scope!r}; check both",
            run_id=run_id,
        )
    chat = decode_envelope(head).chat
    if access.leases is not None:
        async with _claimed(access, access.leases, head, ttl_ms, most_ms=MOST_MS if chat is None else ttl_ms) as lease:
            now = await access.head(scope, run_id)
            if now.status in FINAL:
                await asyncio.to_thread(_drop_signal, access.leases, lease)
            if chat is not None:
                await project(access.store, access.chats, (scope, run_id), "asked")
    return RunRepair(run_id, chat=None if chat is None else (await access.store.chat_state(head.rid)).status)


async def finish_chat(access: Access, head: Head, ttl_ms: int) -> None:
    """Write the chat of a run that ended or waits, where that was interrupted; nothing while another executor has the run."""
    chat = chat_of(head)
    if chat is None or access.leases is None:
        return
    is_left = is_owed(await access.store.chat_state(head.rid), transcript_length(decode_envelope(head)), "asked")
    if not is_left and not head.has_work:
        return
    with contextlib.suppress(AgentRunLeaseError, LeaseStoreUnavailableError):
        async with _claimed(access, access.leases, head, ttl_ms, most_ms=ttl_ms):
            await project(access.store, access.chats, (head.scope, head.run_id), "asked")


async def drop_late_signal(access: Access, head: Head, ttl_ms: int) -> None:
    """A cancel that was signalled for a run which has ended waits for nobody any more. Best effort: it would do no harm."""
    if access.leases is None:
        return
    with contextlib.suppress(AgentRunLeaseError, LeaseStoreUnavailableError):
        async with _claimed(access, access.leases, head, ttl_ms) as lease:
            await asyncio.to_thread(_drop_signal, access.leases, lease)


@contextlib.asynccontextmanager
async def _claimed(
    access: Access, leases: LeaseProvider, head: Head, ttl_ms: int, *, most_ms: int = MOST_MS
) -> AsyncGenerator[Lease]:
    """The run's lease for a moment; whoever rang meanwhile is rung for again.

    One that a dead executor of an open run let lapse is let lapse again: that its step had no end, the next step has to count.
    """
    key = run_lease_key(head.scope, head.run_id)
    owner = f"{socket.gethostname()}:{os.getpid()}#{access.ids.token()}"
    ttl_ms = min(ttl_ms, most_ms)
    claim = await leases.acquire(key, owner, ttl_ms)
    if isinstance(claim, Young) and not head.mid_step:
        claim = await leases.acquire(key, owner, ttl_ms, force=True)
    if not isinstance(claim, Lease):
        raise AgentRunLeaseError(
            f"run {head.run_id!r} is being executed elsewhere; wait for its handle", code="lease_held", run_id=head.run_id
        )
    try:
        yield claim
    finally:
        if claim.predecessor != "lapsed" or head.status in FINAL:
            released = await leases.release(claim)
            if isinstance(released, Released) and released.again:
                await _ring_again(access, head)


async def _ring_again(access: Access, head: Head) -> None:
    now = await access.store.head(head.scope, head.run_id)
    if now is not None and now.has_work:
        await access.ring([Bell(now.scope, now.run_id, now.queue, now.revision, now.priority, now.agent)])


def _drop_signal(leases: LeaseProvider, lease: Lease) -> None:
    """A renewal is told what waits, once."""
    renewer = leases.renewer(timeout_ms=lease.ttl_ms)
    try:
        renewer.renew([lease])
    finally:
        renewer.close()
