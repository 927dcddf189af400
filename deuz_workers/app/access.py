"""What a client works with: the store, and how to make workers look."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from deuz_workers.app.below import read_below, reports
from deuz_workers.app.chat import with_chat
from deuz_workers.app.ledger import accounting
from deuz_workers.app.pending import Signing
from deuz_workers.app.results import AgentResult, result_of
from deuz_workers.core.approval_token import ApprovalSigner
from deuz_workers.core.change import Bell, Head
from deuz_workers.core.names import run_lease_key
from deuz_workers.engine.ring import ring_or_ripen
from deuz_workers.engine.system_clock import SystemClock, SystemIds
from deuz_workers.errors import LeaseStoreUnavailableError, RunNotFoundError, StoreUnavailableError
from deuz_workers.ports.chat import ChatStore
from deuz_workers.ports.definition import Registry
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.live import LiveSource
from deuz_workers.ports.output import OutputType
from deuz_workers.ports.runtime import Clock, Doorbell, Ids
from deuz_workers.ports.store import RunStore

log = logging.getLogger(__name__)

FIRST_POLL_MS, LONGEST_POLL_MS = 5, 250
"""A waiting handle asks the store after 5 ms, then ever less often: four indexed reads a second for long runs."""
POLL_GROWTH = 1.3


@dataclass(frozen=True, slots=True)
class Access:
    store: RunStore
    doorbell: Doorbell
    leases: LeaseProvider | None
    """None: a cancel is seen at the run's next commit, not in the middle of a model call."""
    clock: Clock
    registry: Registry | None = None
    """What this process knows of agents, None for nothing."""
    signer: ApprovalSigner | None = None
    """Makes and checks tokens of approvals; None: they need none."""
    live: LiveSource | None = None
    """Where runs are read while they happen; None: nowhere."""
    ids: Ids = field(default_factory=lambda: SystemIds(SystemClock()))
    """For commits that a door makes itself."""
    chats: ChatStore | None = None
    """Of the application; None: chats are kept beside the runs."""

    def output_type(self, agent: str) -> OutputType | None:
        """Of an agent that is known here."""
        definition = None if self.registry is None else self.registry.agent(agent)
        return None if definition is None else definition.output

    async def signing(self) -> Signing | None:
        """For tokens of requests that are shown now."""
        return None if self.signer is None else Signing(self.signer, await self.store.now_ms())

    async def head(self, scope: str, run_id: str) -> Head:
        """Raises `RunNotFoundError`."""
        head = await self.store.head(scope, run_id)
        if head is None:
            raise not_found(scope, run_id)
        return head

    async def result(self, scope: str, run_id: str) -> AgentResult[Any]:
        """Of a run that has something to report. Raises `RunNotFoundError`."""
        loaded = await self.store.load(scope, run_id)
        if loaded is None:
            raise not_found(scope, run_id)
        signing = await self.signing() if loaded.items else None
        below = await read_below(self.store, loaded.head, signing)
        result = result_of(loaded, self.output_type(loaded.head.agent), signing, await accounting(self.store, loaded), below)
        return await with_chat(self.store, loaded, result)

    async def reported(self, scope: str, run_id: str) -> tuple[Head, AgentResult[Any] | None]:
        """The head, and what the run has to report, of one moment; None where it has nothing yet. The output is plain data.

        Raises `RunNotFoundError`.
        """
        loaded = await self.store.load(scope, run_id)
        if loaded is None:
            raise not_found(scope, run_id)
        if loaded.head.kind == "swarm" or not await reports(self.store, loaded.head):
            return loaded.head, None
        signing = await self.signing() if loaded.items else None
        result = result_of(loaded, None, signing, below=await read_below(self.store, loaded.head, signing))
        return loaded.head, await with_chat(self.store, loaded, result)

    async def ring(self, bells: Iterable[Bell | None]) -> None:
        """Make workers look, as far as they can be reached and have room; the sweep finds the rest.

        Whoever calls has stored why, so a store that is away now costs time only.
        """
        with contextlib.suppress(StoreUnavailableError):
            await ring_or_ripen(self.store, self.doorbell, [bell for bell in bells if bell is not None])

    async def point_at_cancel(self, scope: str, run_id: str) -> None:
        """Tell the holder of the run, if there is one, that its inbox holds a cancel."""
        if self.leases is None:
            return
        try:
            await self.leases.signal(run_lease_key(scope, run_id), "cancel")
        except LeaseStoreUnavailableError as error:
            log.warning("cancel_unsignalled run=%s error=%s", run_id, error.code)


class Pauses:
    """Ever longer waits between two looks at the store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ms: float = FIRST_POLL_MS

    async def wait(self, least_ms: float = 0) -> None:
        await self._clock.sleep_ms(round(max(self._next_ms, least_ms)))
        self._next_ms = min(self._next_ms * POLL_GROWTH, LONGEST_POLL_MS)

    def start_again(self) -> None:
        self._next_ms = FIRST_POLL_MS


def not_found(scope: str, run_id: str) -> RunNotFoundError:
    return RunNotFoundError(f"there is no run {run_id!r} in scope {scope!r}; check both", run_id=run_id)
