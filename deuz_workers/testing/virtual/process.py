"""One worker process: an engine with its slots, its heartbeat and its sweep, which all stop when it dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from deuz_workers.core.change import Change
from deuz_workers.core.unclean_ends import SUFFIX
from deuz_workers.core.window import Look
from deuz_workers.engine.engine import Engine
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.heartbeat import BEATS_PER_TTL, Heartbeat
from deuz_workers.engine.ring import ring_or_ripen
from deuz_workers.errors import SimulatedDeath, StoreUnavailableError
from deuz_workers.ports.leases import Lease
from deuz_workers.ports.live import Silence
from deuz_workers.testing.virtual.broker import ProcessBell
from deuz_workers.testing.virtual.faults import Doom
from deuz_workers.testing.virtual.loop import Lane
from deuz_workers.testing.virtual.servers import ProcessStore, RemoteLeases
from deuz_workers.testing.virtual.user_code import MortalRegistry, VirtualThreads
from deuz_workers.workers.sweeper import Sweeper

if TYPE_CHECKING:
    from deuz_workers.core.usage import Usage
    from deuz_workers.testing.virtual.world import World

T = TypeVar("T")
_claim: ContextVar[str] = ContextVar("deuz_virtual_claim")
"""Owner of the lease under which a step works, in all of its tasks."""
WHOLE_FREEZES = 0.6
"""Of all; the others are of a loop that user code blocks, or of a heartbeat that gets no turn."""
REFUSED_PAUSE_MS = 200
"""Before a doorbell that a draining process took is rung for others."""
UNREACHABLE_PAUSE_MS = 1_000
"""Before a doorbell is rung again whose run could not be looked at."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a process takes, and how many steps it executes side by side. `alone`: one, of suspicious runs."""

    queue: str = "default"
    slots: int = 2

    @property
    def alone(self) -> bool:
        return self.slots == 1

    @property
    def sweeps(self) -> bool:
        """The process of a quarantine queue leaves that to the others."""
        return not self.queue.endswith(SUFFIX)


class VirtualProcess:
    """Begins to work when made. Everything of it runs in lanes of its own, which end with it."""

    def __init__(self, world: World, role: Role, number: int) -> None:
        self.world = world
        self.role = role
        self.name = f"p{number}"
        self.is_alive = True
        self.is_frozen = False
        self.is_draining = False
        self._sweeper: Sweeper | None = None
        self._lanes: list[Lane] = []
        self._gone: set[str] = set()
        """Owners of claims that were told that their lease is gone."""
        settings = replace(world.settings, alone=role.alone)
        self.heartbeat = Heartbeat(RemoteLeases(self), settings.lease_ttl_ms, world.clock, threaded=False)
        self.gear = Gear(
            store=ProcessStore(
                self,
                ttl_ms=settings.lease_ttl_ms,
                patience_ms=world.chance.choice((0, 5_000) if world.faults.impatient else (5_000,)),
            ),
            leases=RemoteLeases(self),
            heartbeat=self.heartbeat,
            registry=MortalRegistry(self, world.agents, world.reducers),
            doorbell=ProcessBell(self),
            clock=world.clock,
            ids=world.ids,
            prices=_Nobody(),
            sink=Silence(),
            threads=VirtualThreads(self),
            settings=settings,
            signer=world.signer,
            process=self.name,
        )
        self.engine = Engine(self.gear)
        self._start("loop", self._work())
        self._start("heartbeat", self._beat())

    # -- duties --------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Slots, as of a Celery worker with early acknowledgement, and the sweep beside them."""
        duties: list[Coroutine[Any, Any, None]] = [self._slot() for _ in range(self.role.slots)]
        if self.role.sweeps:
            duties.append(self._sweep())
        await asyncio.gather(*duties)

    async def _slot(self) -> None:
        while not self.is_draining:
            bell = await self.world.broker.take(self)
            report = await self.engine.step(bell.scope, bell.run_id, seen=bell.revision, at=bell.queue)
            self.world.ended(self, bell, report)
            if report.end == "refused" or (report.end == "unreachable" and bell.revision):
                await self.world.clock.sleep_ms(REFUSED_PAUSE_MS if report.end == "refused" else UNREACHABLE_PAUSE_MS)
                with contextlib.suppress(StoreUnavailableError):
                    await ring_or_ripen(self.gear.store, self.gear.doorbell, (bell,))

    async def _sweep(self) -> None:
        world = self.world
        gear = replace(self.gear, doorbell=ProcessBell(self, is_sweep=True))
        self._sweeper = Sweeper(
            gear, (self.role.queue,), self._look_at, interval_ms=world.sweep_interval_ms, window=world.window
        )
        await world.clock.sleep_ms(world.chance.randint(0, world.sweep_interval_ms))
        await (self._sweeper.run() if world.sweeps else self._sweeper.attend())

    def leave(self, queues: Collection[str]) -> None:
        """Runs of these queues wait as rows."""
        if self._sweeper is not None:
            self._sweeper.leave(queues)

    async def _look_at(self, queue: str, *, size: int | None = None, apart_ms: int = 0) -> Look | None:
        return self.world.broker.look(queue)

    async def _beat(self) -> None:
        clock = self.world.clock
        await clock.sleep_ms(self.world.settings.lease_ttl_ms // BEATS_PER_TTL)
        while True:
            await clock.sleep_ms(self.heartbeat.beat_in_time())

    # -- ends ----------------------------------------------------------------------------------------------------------

    def die(self, why: str) -> None:
        """Nothing of it runs any more: no `finally`, no answer is read, no lease is given back."""
        if self.is_alive:
            self.is_alive = False
            for lane in self._lanes:
                self.world.loop.end_lane(lane)
            self.world.bury(self, why)

    def freeze(self, ms: int, why: str) -> None:
        """Stand still for `ms`, and then go on as if nothing had been: the process, or only one of its threads."""
        if not self.is_alive or self.is_frozen:
            return
        self.is_frozen = True
        lanes = self._lanes if self.world.chance.random() < WHOLE_FREEZES else [self.world.chance.choice(self._lanes)]
        names = ", ".join(lane.label for lane in lanes)
        self.world.fate.tell(f"{self.world.clock.monotonic_ms()} {names} stand still for {ms} ms {why}")
        for lane in lanes:
            self.world.loop.close_lane(lane)
        self.world.outside_later(ms / 1_000, self._wake)

    def _wake(self) -> None:
        self.is_frozen = False
        if self.is_alive:
            for lane in self._lanes:
                self.world.loop.open_lane(lane)

    async def drain(self) -> None:
        """As after SIGTERM: no new step, and the process ends when every step has, model calls after the grace."""
        self.is_draining = True
        self._start("signal", self._drain())

    async def _drain(self) -> None:
        clock = self.world.clock
        self.engine.drain()
        grace_ends_ms = clock.monotonic_ms() + self.world.drain_grace_ms
        while self.engine.running_steps:
            if clock.monotonic_ms() >= grace_ends_ms:
                self.engine.abort_model_calls()
            await clock.sleep_ms(50)
        await clock.sleep_ms(REFUSED_PAUSE_MS + 100)  # bells that it took meanwhile are rung again
        self.die("drained")

    async def point(self, place: str) -> None:
        """A moment at which this process may die or freeze."""
        match self._meets(place):
            case "death":
                self.die(place)
                await self.world.loop.create_future()
            case "freeze":
                self.freeze(self.world.freeze_ms(), place)
                await asyncio.sleep(0)
            case None:
                pass

    def point_now(self, place: str) -> None:
        """The same for code that cannot wait."""
        match self._meets(place):
            case "death":
                self.die(place)
                raise SimulatedDeath
            case "freeze":
                self.freeze(self.world.freeze_ms(), place)
            case None:
                pass

    def _meets(self, place: str) -> Doom | None:
        if not self.is_alive:
            raise SimulatedDeath
        return self.world.fate.at(place)

    # -- leases --------------------------------------------------------------------------------------------------------

    @staticmethod
    def claimed(lease: Lease) -> None:
        _claim.set(lease.owner)

    def told_gone(self, lease: Lease) -> None:
        self._gone.add(lease.owner)

    def check_may_write(self, change: Change) -> None:
        """Whoever was told that its lease is gone writes nothing more."""
        if _claim.get("") in self._gone:
            run_id = self.world.names.get(change.rid)
            self.world.complain(f"{self.name} offers revision {change.expected + 1} of {run_id} without its lease")

    def _start(self, label: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        lane = Lane(f"{self.name} {label}")
        self._lanes.append(lane)
        task = self.world.loop.start(lane, work)
        task.add_done_callback(self._look)
        return task

    def start_thread(self, label: str, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Another thread of this process."""
        task = self._start(label, work())
        lane = self._lanes[-1]
        task.add_done_callback(lambda _: self._lanes.remove(lane))
        return task

    def _look(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and self.is_alive and (error := task.exception()) is not None:
            self.world.complain(f"{self.name} {task.get_name()} ended with {error!r}")


class _Nobody:
    """Prices of a simulation: none is known."""

    def cost_micros(self, model: str, usage: Usage) -> int | None:
        return None
