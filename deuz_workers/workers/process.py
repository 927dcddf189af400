"""One worker process: its loop, its engine, and the duties that run beside the steps.

Events, in the log as a name and key-values: ``worker_waiting`` (`error`; the store is not ready), ``worker_open``,
``worker_draining`` (`steps`), ``worker_hurrying`` (`steps`). After ``loop_died`` of its loop a process ends at once, with the
exit code of a wedged one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.runtime import Runtime
from deuz_workers.core.change import Bell
from deuz_workers.engine.engine import StepReport
from deuz_workers.errors import DeuzError
from deuz_workers.workers.companion import Companion, end_with_worker
from deuz_workers.workers.drain import DrainFlag, Urgency
from deuz_workers.workers.sweeper import Sweeper
from deuz_workers.workers.wedge import EXIT_CODE, WedgeWatch

LOOK_MS = 100
"""How often a process looks at the drain flag; a fifth of what a person notices."""
REFUSED_PAUSE_MS = 200
"""Before a refused doorbell is rung for others: for up to a second Celery still takes messages, perhaps this one again."""
OPEN_AGAIN_MS = 1_000
"""Between attempts to open a store that is away or not migrated yet."""
END_PATIENCE_MS = 5_000
"""How long a process that has to end waits for steps whose model calls were aborted, so that their leases go back."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class WorkerProcess:
    """Made after the fork. Steps may come from any thread but the loop's; they wait until the store is open."""

    def __init__(self, app: Deuz, flag: DrainFlag, *, queues: Sequence[str], alone: bool, is_child: bool = False) -> None:
        """`queues`: what it takes from. `alone`: one step at a time. `is_child`: a prefork child, which its parent replaces."""
        self.app = app
        self._flag = flag
        self._queues = queues
        self._is_child = is_child
        self._alone = alone
        self._companion = None if alone else Companion(queues, app.clock, grace_ms=app.settings.drain_grace_ms)
        self._runtime: Runtime | None = None
        self._ready: asyncio.Event | None = None
        self._duties: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Heartbeat, sweep and the watch over the drain flag have begun; nothing is connected yet.

        Raises `ConfigurationError` for settings that nothing can be made of.
        """
        LOOP.run(self._start())
        LOOP.on_death = _leave

    def step(self, bell: Bell) -> StepReport:
        """Look at one run; `bell.revision` was saved, as this pool signed.

        A step that is refused because of a drain is rung again, for another worker, and one that could not reach a server,
        for when it can.
        """
        return LOOP.run(self._step(bell), outlive=True)

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something else on the loop of this process, once the store is open."""
        return LOOP.run(self._when_ready(work), outlive=True)

    def stop(self) -> None:
        """Steps had a moment to give back their leases, connections are closed, the loop has ended."""
        with contextlib.suppress(Exception):  # it ends anyway; what did not close in order is closed by the system
            LOOP.run(self._stop())
        LOOP.stop()
        LOOP.on_death = None
        if self._companion is not None:
            self._companion.stop()

    async def _start(self) -> None:
        self._ready = asyncio.Event()
        self._runtime = runtime = Runtime(
            self.app, self.app.doorbell, settings=replace(self.app.settings.engine, alone=self._alone)
        )
        WedgeWatch(runtime, grace_ms=self.app.settings.drain_grace_ms, is_child=self._is_child).start()
        settings = self.app.settings
        sweeper = Sweeper(
            runtime.gear,
            self._queues,
            self.app.doorbell.waiting,
            interval_ms=settings.sweep_interval_ms,
            window=settings.sweep_batch,
            on_suspicious=None if self._companion is None else self._companion.ensure,
        )
        self._duties = [
            asyncio.create_task(self._watch(runtime), name="deuz-watch"),
            asyncio.create_task(self._open(runtime, self._ready, sweeper), name="deuz-sweep"),
        ]

    async def _open(self, runtime: Runtime, ready: asyncio.Event, sweeper: Sweeper) -> None:
        told = ""
        while True:
            try:
                await runtime.open()
                break
            except DeuzError as error:
                if error.code != told:
                    log.warning("worker_waiting error=%s message=%s", error.code, error.message)
                told = error.code
            await asyncio.sleep(OPEN_AGAIN_MS / 1000)
        log.info("worker_open pid=%d", os.getpid())
        ready.set()
        await sweeper.run()

    async def _step(self, bell: Bell) -> StepReport:
        async def look() -> StepReport:
            assert self._runtime is not None
            report = await self._runtime.engine.step(bell.scope, bell.run_id, seen=bell.revision)
            if report.end == "suspicious" and self._companion is not None:
                await self._companion.ensure()
            if report.end == "refused":
                await asyncio.sleep(REFUSED_PAUSE_MS / 1000)
                await self.app.doorbell.ring((bell,))
            elif report.end == "unreachable" and bell.revision:
                await asyncio.sleep(OPEN_AGAIN_MS / 1000)
                await self.app.doorbell.ring((bell,))  # after a failover it may be the only one who knows what was saved
            return report

        return await self._when_ready(look)

    async def _when_ready(self, work: Callable[[], Awaitable[T]]) -> T:
        assert self._ready is not None
        if not self._ready.is_set():
            await self._ready.wait()
        return await work()

    async def _watch(self, runtime: Runtime) -> None:
        """Do what the drain flag asks for."""
        engine, clock = runtime.engine, runtime.gear.clock
        grace_ends_ms: int | None = None
        hurried = False
        while True:
            end_with_worker()
            urgency = self._flag.urgency
            if urgency >= Urgency.DRAIN and grace_ends_ms is None:
                grace_ends_ms = clock.monotonic_ms() + self.app.settings.drain_grace_ms
                log.info("worker_draining pid=%d steps=%d", os.getpid(), engine.running_steps)
                engine.drain()
                if self._ready is not None:
                    self._ready.set()  # what waits for a store is refused, and rung for others
            grace_is_over = grace_ends_ms is not None and clock.monotonic_ms() >= grace_ends_ms
            if (urgency >= Urgency.HURRY or grace_is_over) and not hurried:
                hurried = True
                log.info("worker_hurrying pid=%d steps=%d", os.getpid(), engine.running_steps)
                engine.abort_model_calls()
            await clock.sleep_ms(LOOK_MS)

    async def _stop(self) -> None:
        for duty in self._duties:
            duty.cancel()
        runtime = self._runtime
        if runtime is None:
            return
        runtime.engine.abort_model_calls()
        until_ms = runtime.gear.clock.monotonic_ms() + END_PATIENCE_MS
        while runtime.engine.running_steps and runtime.gear.clock.monotonic_ms() < until_ms:
            await runtime.gear.clock.sleep_ms(10)
        await runtime.close()
        await self.app.aclose()


def _leave() -> None:
    """Without its loop a process executes nothing, and its heartbeat must not go on vouching for what it holds: leases lapse,
    and others take the runs over."""
    logging.shutdown()
    os._exit(EXIT_CODE)
