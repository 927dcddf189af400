"""One worker process: its loop, its engine, and the duties that run beside the steps.

Events, in the log as a name and key-values: ``worker_waiting`` (`error`; the store is not ready), ``worker_open``,
``worker_draining`` (`steps`), ``worker_hurrying`` (`steps`), ``ring_failed`` (`error`, `at`). After ``loop_died`` of its loop a
process ends at once, with the exit code of a wedged one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from deuz_workers.app.connections import builds_of
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.runtime import Runtime
from deuz_workers.core.build import shared_queue
from deuz_workers.core.change import Bell
from deuz_workers.core.failure import place_of
from deuz_workers.engine.engine import StepReport
from deuz_workers.engine.ring import ring_or_ripen
from deuz_workers.errors import DeuzError
from deuz_workers.leases.builds import RedisBuilds
from deuz_workers.workers.companion import Companion, end_with_worker
from deuz_workers.workers.drain import DrainFlag, Urgency
from deuz_workers.workers.pulse import Pulse
from deuz_workers.workers.stuck import StuckWatch
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

ANNOUNCEMENTS_PER_TTL = 3
HASTENED = 10_000
"""Runs at most that a new build makes the sweep look at, some ten sweeps' worth."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class WorkerProcess:
    """Made after the fork. Steps may come from any thread but the loop's; they wait until the store is open."""

    def __init__(
        self,
        app: Deuz,
        flag: DrainFlag,
        *,
        queues: Sequence[str],
        alone: bool,
        announced: Sequence[str] = (),
        misfits: Counter[str] | None = None,
        is_child: bool = False,
    ) -> None:
        """`queues`: what it takes from; `announced`: where it takes what other builds send. `alone`: one step at a time.

        `misfits` counts doorbells for runs that it cannot execute. `is_child`: a prefork child, which its parent replaces.
        """
        self.app = app
        self._flag = flag
        self._queues = queues
        self._announced = announced
        self._misfits: Counter[str] = Counter() if misfits is None else misfits
        self._builds: RedisBuilds | None = None
        self._is_child = is_child
        self._alone = alone
        self._companion = None if alone else Companion(app, queues, app.clock, grace_ms=app.settings.drain_grace_ms)
        self._runtime: Runtime | None = None
        self._ready: asyncio.Event | None = None
        self._drains = asyncio.Event()
        self._stuck_watch: StuckWatch | None = None
        self._duties: list[asyncio.Task[None]] = []
        self._ringing: set[asyncio.Task[None]] = set()
        self._feeder: Callable[[Collection[str]], None] | None = None

    def start(self) -> None:
        """Heartbeat, sweep and the watch over the drain flag have begun; nothing is connected yet.

        Raises `ConfigurationError` for settings that nothing can be made of.
        """
        LOOP.run(self._start())
        LOOP.on_death = _leave

    def watch_consumer(self, pulse: Pulse, *, steps_block: bool) -> None:
        """The process ends when the thread that consumes for it does not come back; `steps_block`: it executes steps itself."""
        assert self._runtime is not None
        silence_ms = self.app.settings.silence_ms
        self._stuck_watch = StuckWatch(
            self._runtime, self._flag, pulse, silence_ms=silence_ms, is_child=self._is_child, steps_block=steps_block
        )
        self._stuck_watch.start()

    def step(self, bell: Bell) -> StepReport:
        """Look at one run; `bell.revision` was saved, as this pool signed.

        What it made due is being rung when this returns: Celery learns meanwhile that this slot is free again, so that the next
        step may come to the process that has just had one. A step that is refused because of a drain is rung again, for another
        worker, and one that could not reach a server, for when it can.
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
        if self._stuck_watch is not None and not self._stuck_watch.is_leaving:
            self._stuck_watch.stop()
        if self._companion is not None:
            self._companion.stop()

    async def _start(self) -> None:
        self._ready = asyncio.Event()
        settings = self.app.settings
        self._builds = builds_of(settings, self.app.build, self.app.ids.token())
        self._runtime = runtime = Runtime(
            self.app, self.app.doorbell, settings=replace(settings.engine, alone=self._alone), builds=self._builds
        )
        WedgeWatch(runtime, grace_ms=settings.drain_grace_ms, is_child=self._is_child).start()
        sweeper = Sweeper(
            runtime.gear,
            self._queues,
            self.app.doorbell.look,
            interval_ms=settings.sweep_interval_ms,
            window=settings.least_window,
            most=settings.most_window,
            on_suspicious=None if self._companion is None else self._companion.ensure,
        )
        self._feeder = sweeper.leave
        self.app.doorbell.feeders.append(self._feeder)
        self._duties = [
            asyncio.create_task(self._watch(runtime), name="deuz-watch"),
            asyncio.create_task(self._open(runtime, self._ready, sweeper), name="deuz-sweep"),
            asyncio.create_task(self._announce(runtime, self._ready), name="deuz-announce"),
        ]
        if (courier := self.app.webhooks.aio.courier()) is not None:
            self._duties.append(asyncio.create_task(self._when_ready(courier.run), name="deuz-webhooks"))

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

    async def _announce(self, runtime: Runtime, ready: asyncio.Event) -> None:
        """Others know what this process can run, until it drains; what only it can run is looked at at once."""
        await ready.wait()
        ttl_ms, builds, told = self.app.settings.lease_ttl_ms, self._builds, False
        while not self._drains.is_set():
            is_first = not told if builds is None else await builds.announce(self._announced, ttl_ms)
            told = True
            if is_first:
                with contextlib.suppress(DeuzError):  # they are looked at later
                    await runtime.store.hasten(self._queues, sorted(self.app.registry.names), HASTENED)
            if builds is not None:
                for queue in await builds.forgotten():
                    await self.app.doorbell.discard_queue(queue)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ttl_ms / ANNOUNCEMENTS_PER_TTL / 1000):
                    await self._drains.wait()
        if builds is not None:
            await builds.withdraw(self._announced)

    async def _step(self, bell: Bell) -> StepReport:
        async def look() -> StepReport:
            assert self._runtime is not None
            engine = self._runtime.engine
            report = await engine.look(bell.scope, bell.run_id, seen=bell.revision, at=bell.queue)
            if report.bells:
                ringing = asyncio.create_task(engine.ring(bell.scope, bell.run_id, report), name="deuz-ring")
                self._ringing.add(ringing)
                ringing.add_done_callback(self._rang)
            if report.end in ("nobody", "other_build"):
                self._misfits[report.end] += 1
            again = replace(bell, queue=shared_queue(bell.queue))  # others of this build may not be there
            if report.end == "suspicious" and self._companion is not None:
                await self._companion.ensure()
            if report.end == "refused":
                await asyncio.sleep(REFUSED_PAUSE_MS / 1000)
                with contextlib.suppress(DeuzError):  # the store may not be there yet, or no more: the sweep finds the run
                    await ring_or_ripen(self._runtime.store, self.app.doorbell, (again,))
            elif report.end == "unreachable" and bell.revision:
                # after a failover it may be the only one who knows what was saved, so it is not left to the sweep
                is_left = True
                while is_left and not self._drains.is_set():
                    await asyncio.sleep(OPEN_AGAIN_MS / 1000)
                    is_left = bool(await self.app.doorbell.offer((again,), spare=True))
            return report

        return await self._when_ready(look)

    def _rang(self, ringing: asyncio.Task[None]) -> None:
        self._ringing.discard(ringing)
        if not ringing.cancelled() and (error := ringing.exception()) is not None:  # the sweep finds what was not rung
            log.error("ring_failed error=%s at=%s", type(error).__name__, place_of(error))

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
                self._drains.set()
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
        if self._feeder is not None:
            self.app.doorbell.feeders.remove(self._feeder)
        runtime = self._runtime
        if runtime is None:
            return
        runtime.engine.abort_model_calls()
        until_ms = runtime.gear.clock.monotonic_ms() + END_PATIENCE_MS
        while runtime.engine.running_steps and runtime.gear.clock.monotonic_ms() < until_ms:
            await runtime.gear.clock.sleep_ms(10)
        if self._ringing:  # each has the time limits of store and broker
            await asyncio.wait(self._ringing)
        await runtime.close()
        if self._builds is not None:
            await self._builds.close()
        await self.app.aclose()


def _leave() -> None:
    """Without its loop a process executes nothing, and its heartbeat must not go on vouching for what it holds: leases lapse,
    and others take the runs over."""
    logging.shutdown()
    os._exit(EXIT_CODE)
