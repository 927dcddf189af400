"""What one process needs to run steps of an application: store, leases, heartbeat and an engine over them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from deuz_workers.app.connections import leases_of, store_of
from deuz_workers.engine.engine import Engine
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.heartbeat import Heartbeat
from deuz_workers.engine.histories import Histories
from deuz_workers.engine.system_clock import SystemClock, SystemIds
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.runtime import Clock, Doorbell, Ids, LiveSink
from deuz_workers.ports.store import RunStore

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz


class Silence:
    """A `LiveSink` that nobody listens to."""

    def text(self, scope: str, run_id: str, step: int, epoch: int, text: str) -> None:
        """Dropped."""


class Runtime:
    """The gear of the calling process, for one event loop. Make it after a fork; nothing is connected before `open`."""

    def __init__(
        self,
        app: Deuz,
        doorbell: Doorbell,
        *,
        store: RunStore | None = None,
        leases: LeaseProvider | None = None,
        sink: LiveSink | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        """What is not given comes from `app.settings`, and is closed with the runtime; what is given is the caller's."""
        self._app = app
        self._own_store = store_of(app.settings) if store is None else None
        self._own_leases = leases_of(app.settings) if leases is None else None
        clock = clock or SystemClock()
        self.store: RunStore = store or self._own_store  # pyright: ignore[reportAttributeAccessIssue] - one of them is there
        self.leases: LeaseProvider = leases or self._own_leases  # pyright: ignore[reportAttributeAccessIssue] - the same
        settings = app.settings.engine
        self.heartbeat = Heartbeat(self.leases, settings.lease_ttl_ms, clock)
        self.gear = Gear(
            store=self.store,
            leases=self.leases,
            heartbeat=self.heartbeat,
            registry=app.registry,
            doorbell=doorbell,
            clock=clock,
            ids=ids or SystemIds(clock),
            prices=app.prices,
            sink=sink or Silence(),
            settings=settings,
            histories=Histories(settings.history_cache_chars),
        )
        self.engine = Engine(self.gear)

    async def open(self) -> None:
        """The schema fits, and the heartbeat runs and watches this loop.

        Raises `MigrationMissingError`, `SchemaTooNewError`, `StoreUnavailableError`.
        """
        await self.store.check_schema()
        self.heartbeat.watch(asyncio.get_running_loop())

    async def close(self) -> None:
        """The heartbeat has ended, connections of this runtime are closed; steps must have ended before."""
        await asyncio.to_thread(self.heartbeat.stop)
        for agent in self._app.registry.agents:
            await agent.model.close()
        async with contextlib.AsyncExitStack() as stack:
            if self._own_leases is not None:
                stack.push_async_callback(self._own_leases.close)
            if self._own_store is not None:
                stack.push_async_callback(self._own_store.close)
