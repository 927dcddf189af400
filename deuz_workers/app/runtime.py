"""What one process needs to run steps of an application: store, leases, heartbeat and an engine over them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from deuz_workers.app.servers import catalogs_of
from deuz_workers.engine.engine import Engine
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.heartbeat import Heartbeat
from deuz_workers.engine.histories import Histories
from deuz_workers.engine.memory_llm import llm_of
from deuz_workers.engine.settings import EngineSettings
from deuz_workers.ports.builds import Builds, NoBuilds
from deuz_workers.ports.context import RunContext
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.live import LiveSink
from deuz_workers.ports.runtime import Clock, Doorbell, Ids
from deuz_workers.ports.store import RunStore
from deuz_workers.tools.threads import THREADS

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz


NO_CONTEXTS: Mapping[tuple[str, str], RunContext] = {}


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
        settings: EngineSettings | None = None,
        builds: Builds | None = None,
        contexts: Mapping[tuple[str, str], RunContext] = NO_CONTEXTS,
    ) -> None:
        """What is not given is the application's. `contexts`: see `Gear`."""
        self._app = app
        clock = clock or app.clock
        self.store: RunStore = store or app.store
        self.leases: LeaseProvider = leases or app.leases
        if app.settings.prices_file is not None:
            app.prices.read(app.settings.prices_file)
        settings = settings or app.settings.engine
        self.heartbeat = Heartbeat(self.leases, settings.lease_ttl_ms, clock)
        self.gear = Gear(
            store=self.store,
            leases=self.leases,
            heartbeat=self.heartbeat,
            registry=app.registry,
            doorbell=doorbell,
            clock=clock,
            ids=ids or app.ids,
            prices=app.prices,
            sink=sink or app.live.sink,
            threads=THREADS,
            on_budget_warning=app.on_budget_warning,
            chats=app.chats,
            signer=app.signer,
            settings=settings,
            histories=Histories(settings.history_cache_bytes),
            breakers=app.breakers,
            builds=builds or NoBuilds(),
            catalogs=catalogs_of(app.registry.agents, clock),
            contexts=contexts,
            telemetry=app.telemetry,
            application=app,
            process=f"{socket.gethostname()}:{os.getpid()}",
        )
        self.engine = Engine(self.gear)

    async def open(self) -> None:
        """The schema fits, and the heartbeat runs and watches this loop.

        Raises `MigrationMissingError`, `SchemaTooNewError`, `StoreUnavailableError`.
        """
        await self.store.check_schema()
        self.heartbeat.watch(asyncio.get_running_loop())

    async def close(self) -> None:
        """The heartbeat has ended, and neither models nor tool servers hold a connection; steps must have ended before.

        Store and leases stay the application's: `Deuz.aclose` closes their connections.
        """
        await asyncio.to_thread(self.heartbeat.stop)
        await self.gear.catalogs.close()
        for agent in self._app.registry.agents:
            for model in (
                agent.model,
                *agent.fallback_models,
                *(() if agent.memory is None else (llm_of(agent, agent.memory),)),
            ):
                await model.close()
