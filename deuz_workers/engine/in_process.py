"""Driving runs on the loop of the caller: no broker, no worker, the same engine (architecture D4).

A doorbell in memory takes the place of the broker, and a pass of the sweep a few times a second that of the pool's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from deuz_workers.core.change import Bell
from deuz_workers.core.delegation import is_below
from deuz_workers.core.names import run_lease_key, swarm_run_id
from deuz_workers.engine.engine import Engine, StepReport
from deuz_workers.engine.sweep import sweep_pass
from deuz_workers.errors import (
    AgentRunLeaseError,
    DeuzError,
    ExecutionPolicyError,
    LeaseStoreUnavailableError,
    RunNotFoundError,
    StoreUnavailableError,
    UnknownAgentError,
)
from deuz_workers.ports.catalog import Catalogs
from deuz_workers.ports.tree import only_waits

log = logging.getLogger(__name__)

Name = tuple[str, str]
"""Scope and run id."""

UNREACHABLE_TRIES = 3
"""Steps in a row that found no server; each has waited for as long as the store itself is patient."""
WIND_DOWN_MS = 2_000
"""For steps in flight when the driver is cancelled: model calls end at once and say so, a tool may finish."""


Belonging = Callable[[str, str], "LocalDoorbell | None"]
"""The doorbell of the driver that was asked for a run, by scope and run id; None where it is anybody's."""


class LocalDoorbell:
    """A `Doorbell` for one driver in this process; may be rung from any thread and loop."""

    def __init__(self, queues: Collection[str] | None = None, *, belongs_to: Belonging | None = None) -> None:
        """`queues`: bells for other ones are dropped, those are for others to answer; None: all are heard.

        `belongs_to`: whose a run is that another driver of the process was asked for; its bells are handed on.
        """
        self._loop = asyncio.get_running_loop()
        self._belongs_to = belongs_to
        self._queues = None if queues is None else frozenset(queues)
        self._waiting: dict[Name, Bell] = {}
        self.rang = asyncio.Event()
        self.expected: Collection[Name] = ()
        """Runs whose bells are heard whatever their queue is, and those of their tasks."""

    async def ring(self, bells: Sequence[Bell]) -> None:
        heard = [bell for bell in bells if self._hears(bell)]
        if self._belongs_to is None:
            self.hand(heard)
            return
        for bell in heard:
            (self._belongs_to(bell.scope, bell.run_id) or self).hand([bell])

    def hand(self, bells: Sequence[Bell]) -> None:
        """They wait here for the driver, whatever their queues are; called on any running loop."""
        if asyncio.get_running_loop() is self._loop:
            self.put(bells)
        else:
            with contextlib.suppress(RuntimeError):  # it was closed; the sweep finds them
                self._loop.call_soon_threadsafe(self.put, bells)

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        """They are rung: what waits in memory costs nothing."""
        await self.ring(bells)
        return ()

    def leave(self, queues: Collection[str]) -> None:
        """It leaves nothing."""

    async def has_room(self, queue: str) -> bool:
        """It hears its own queues."""
        return self._queues is None or queue in self._queues

    def _hears(self, bell: Bell) -> bool:
        return self._queues is None or bell.queue in self._queues or (bell.scope, swarm_run_id(bell.run_id)) in self.expected

    def put(self, bells: Sequence[Bell]) -> None:
        for bell in bells:
            self._waiting[bell.scope, bell.run_id] = bell
        if bells:
            self.rang.set()

    @property
    def waiting(self) -> int:
        """Bells that nobody took yet."""
        return len(self._waiting)

    def take(self) -> Bell | None:
        """The bell that has waited longest."""
        if not self._waiting:
            return None
        return self._waiting.pop(next(iter(self._waiting)))


@dataclass(slots=True)
class _Wanted:
    """A run that the caller waits for."""

    held_since_ms: int | None = None
    unreachable: int = 0
    delegates: bool = False
    """It rang for runs below it, or waits for them: those that go on when it ends are cancelled, and driven to their ends."""


class InProcess:
    """Takes steps of whatever rings, `concurrency` at a time. For one call of `drive` or `serve` at a time."""

    def __init__(
        self,
        engine: Engine,
        doorbell: LocalDoorbell,
        *,
        concurrency: int = 64,
        sweep_interval_ms: int = 200,
        queues: Sequence[str] | None = None,
        lease_patience_ms: int | None = None,
    ) -> None:
        """`queues`: what the sweep rings, None for all; runs that are driven by name may be in any.

        `lease_patience_ms`: how long a run that another executor holds is waited for; None: a lease TTL, after which one of a
        dead executor has lapsed.
        """
        self._engine = engine
        self._gear = engine.gear
        self.doorbell = doorbell
        self._concurrency = concurrency
        self._interval_ms = sweep_interval_ms
        self._queues = queues
        self._lease_patience_ms = lease_patience_ms or engine.gear.settings.lease_ttl_ms
        self._steps: dict[asyncio.Task[StepReport], Name] = {}
        self._meanwhile: dict[Name, Bell] = {}
        """Rung while a step of the run was under way here: it is looked at again behind that step, unless that fails."""
        self._noticing: set[asyncio.Task[None]] = set()
        self._wanted: dict[Name, _Wanted] = {}
        self._refused: dict[Name, DeuzError] = {}
        self._suspicious: list[Name] = []
        self._alone: asyncio.Task[StepReport] | None = None
        """A step beside which nothing is begun."""
        self._look_ms = 0
        """When everything is looked at next, by the monotonic clock."""

    async def drive(self, runs: Iterable[Name]) -> dict[Name, DeuzError]:
        """Go on until every one of `runs` has something to report (`Head.has_report`), or is a swarm that only waits.

        Returns the runs that could not be driven there, and why; nothing is written about that. Cancelling ends model calls
        at once and gives leases back; the runs go on where they are driven next.
        """
        self._wanted = {name: _Wanted() for name in runs}
        self._refused = {}
        self.doorbell.expected = frozenset(self._wanted)
        self.doorbell.put([Bell(scope, run_id, "") for scope, run_id in self._wanted])
        await self._go_on(lambda: bool(self._wanted))
        return self._refused

    async def serve(self, stop: asyncio.Event, *, grace_ms: int = WIND_DOWN_MS) -> None:
        """Take steps of everything that is due until `stop` is set, then drain: no further turn, and every step ends.

        Tools in flight are waited for, model calls up to `grace_ms` or until `hurry`. Cancelling ends everything at once.
        """
        stopping = asyncio.ensure_future(stop.wait())
        stopping.add_done_callback(lambda _: self.doorbell.rang.set())
        try:
            await self._go_on(lambda: not stop.is_set(), lambda: self._drain(grace_ms))
        finally:
            stopping.cancel()

    def hurry(self) -> None:
        """The grace period of a drain is over: model calls end now."""
        self._engine.abort_model_calls()

    @property
    def running_steps(self) -> int:
        return len(self._steps)

    @property
    def catalogs(self) -> Catalogs:
        """Tools of servers, as steps here get them."""
        return self._gear.catalogs

    async def _go_on(self, wanted: Callable[[], bool], ending: Callable[[], Awaitable[None]] | None = None) -> None:
        self._look_ms = self._now_ms() + self._interval_ms
        try:
            while wanted():
                self._start_steps()
                if self._now_ms() >= self._look_ms:
                    await self._look_around()
                    continue
                await self._pause()
                for task in [task for task in self._steps if task.done()]:
                    await self._take_report(self._steps.pop(task), task.result())
            if ending is not None:
                await ending()
        finally:
            await self._wind_down()

    def _start_steps(self) -> None:
        """Begin what there is room for; a suspicious run has to wait until nothing else is going on, and then others for it."""
        if self._alone in self._steps:
            return
        if self._suspicious:
            if not self._steps:
                self._alone = self._start(self._suspicious.pop(0), alone=True)
            return
        while len(self._steps) < self._concurrency and (bell := self.doorbell.take()) is not None:
            name = (bell.scope, bell.run_id)
            if name in self._steps.values():
                self._meanwhile[name] = bell
                task = asyncio.ensure_future(self._engine.notice(*name))
                self._noticing.add(task)
                task.add_done_callback(self._noticing.discard)
            else:
                self._start(name)

    def _start(self, name: Name, *, alone: bool | None = None) -> asyncio.Task[StepReport]:
        task = asyncio.ensure_future(self._engine.step(*name, alone=alone))
        task.add_done_callback(lambda _: self.doorbell.rang.set())
        self._steps[task] = name
        return task

    async def _pause(self) -> None:
        """Until a step has ended, somebody rang, or it is time to look around."""
        try:
            async with asyncio.timeout(max(0, self._look_ms - self._now_ms()) / 1000):
                await self.doorbell.rang.wait()
        except TimeoutError:
            return
        self.doorbell.rang.clear()

    async def _look_around(self) -> None:
        """Ring what is due and nobody rang for, and see whether somebody else has brought a run to its end."""
        self._look_ms = self._now_ms() + self._interval_ms
        try:
            room = self._concurrency - len(self._steps) - self.doorbell.waiting
            if room > 0:  # what it cannot begin is left to other processes
                await sweep_pass(self._gear, self._queues, batch=room)
            for name in [name for name in self._wanted if name not in self._steps.values()]:
                await self._look_at(name)
        except (StoreUnavailableError, LeaseStoreUnavailableError) as error:
            log.warning("sweep_unreachable error=%s", error.code)

    async def _take_report(self, name: Name, report: StepReport) -> None:
        rung = self._meanwhile.pop(name, None)
        await self._judge(name, report)
        if rung is not None and name not in self._refused and report.end != "suspicious":
            self.doorbell.put([rung])

    async def _judge(self, name: Name, report: StepReport) -> None:
        if report.end == "suspicious" and name not in self._suspicious:
            self._suspicious.append(name)
            return
        wanted = self._wanted.get(name)
        if wanted is None:
            if not self._steps and self._wanted:
                await self._look_at_waiting()
            return
        if any(is_below(bell.run_id, name[1]) for bell in report.bells):
            wanted.delegates = True
        match report.end:
            case "turn":
                wanted.held_since_ms = None
            case "unreachable":
                wanted.unreachable += 1
                if wanted.unreachable >= UNREACHABLE_TRIES:
                    self._refuse(name, report.error or StoreUnavailableError())
                else:
                    self.doorbell.put([Bell(*name, "")])
            case "unreadable" | "crashed" | "other_tools":
                self._refuse(name, report.error or DeuzError(f"run {name[1]!r} could not be driven"))
            case "nobody" | "other_build" | "unknown_run":
                self._refuse(name, await self._misfit(name, report.end))
            case "held_back" | "young":
                wanted.held_since_ms = None  # it is looked at again with everything else
            case "held":
                await self._wait_for_holder(name, wanted)
            case "over" if report.error is not None:
                self._refuse(name, report.error)
            case _:
                await self._look_at(name)

    async def _look_at(self, name: Name) -> None:
        """See from its head whether a run is where the caller wants it, and when it has work again."""
        head = await self._gear.store.head(*name)
        if head is None:
            self._refuse(name, _unknown(name))
        elif head.has_report:
            if not self._wanted[name].delegates or only_waits(await self._gear.store.tree(*name)):
                del self._wanted[name]
        elif head.has_work:
            self.doorbell.put([Bell(*name, head.queue, head.revision)])
        elif head.waits_for_children:
            await self._look_below(name, ring=True)
        elif head.kind == "swarm":
            await self._look_at_tasks(name, head.rid, ring=True)
        elif head.due_in_ms is not None:
            self._look_ms = min(self._look_ms, self._now_ms() + head.due_in_ms + 1)

    async def _look_below(self, name: Name, *, ring: bool) -> None:
        """If nothing is going on here: does all that it delegated only wait, or (`ring`) did somebody ring for it in vain?"""
        self._wanted[name].delegates = True
        if self._steps or self.doorbell.waiting:
            return
        tree = await self._gear.store.tree(*name)
        if only_waits(tree):
            del self._wanted[name]
        elif ring:
            self.doorbell.put([Bell(name[0], run.run_id, "") for run in tree if run.goes_on])

    async def _look_at_waiting(self) -> None:
        """A step of another run has ended and nothing else is going on: perhaps all that is left waits for answers."""
        for name in list(self._wanted):
            head = await self._gear.store.head(*name)
            if head is not None and head.waits_for_children and not head.has_work:
                await self._look_below(name, ring=False)
            if head is not None and head.kind == "swarm" and not head.has_work:
                await self._look_at_tasks(name, head.rid, ring=False)

    async def _look_at_tasks(self, name: Name, swarm_rid: UUID, *, ring: bool) -> None:
        """If nothing is going on here: does the swarm only wait, or (`ring`) did somebody ring for its tasks in vain?"""
        if self._steps or self.doorbell.waiting:
            return
        snapshot = await self._gear.store.swarm_snapshot(swarm_rid)
        if snapshot is None:
            return
        if snapshot.only_waits:
            tree = await self._gear.store.tree(*name)
            if only_waits([run for run in tree if run.parent_rid is not None]):
                del self._wanted[name]
        elif ring:
            self.doorbell.put([Bell(name[0], task.run_id, "") for task in snapshot.tasks if task.status == "running"])

    async def _wait_for_holder(self, name: Name, wanted: _Wanted) -> None:
        """Another executor works on the run. A dead one's lease lapses; a living one is waited for no longer than that."""
        now_ms = self._now_ms()
        wanted.held_since_ms = wanted.held_since_ms or now_ms
        if now_ms - wanted.held_since_ms >= self._lease_patience_ms:
            text = f"run {name[1]!r} is being executed elsewhere; wait for its handle instead of driving it here"
            self._refuse(name, AgentRunLeaseError(text, run_id=name[1]))
            return
        peek = await self._gear.leases.peek(run_lease_key(*name))
        self._look_ms = min(self._look_ms, now_ms + (peek.ms_left or 0) + 1)

    async def _misfit(self, name: Name, end: str) -> DeuzError:
        head = await self._gear.store.head(*name)
        if head is None:
            return _unknown(name)
        if end == "nobody":
            return UnknownAgentError(
                f"run {name[1]!r} belongs to agent {head.agent!r}, which is not known here", agent=head.agent
            )
        return binding_changed(name[1], head.agent)

    def _refuse(self, name: Name, error: DeuzError) -> None:
        self._refused[name] = error
        del self._wanted[name]

    def _now_ms(self) -> int:
        return self._gear.clock.monotonic_ms()

    async def _drain(self, grace_ms: int) -> None:
        """No step is left: each has come to its end."""
        self._engine.drain()
        if self._steps:
            await asyncio.wait(self._steps, timeout=grace_ms / 1000)
            self._engine.abort_model_calls()
            await asyncio.wait(self._steps)
            self._steps.clear()

    async def _wind_down(self) -> None:
        """No step is left: each has ended, or was cancelled and has given its lease back."""
        if self._steps:
            self._engine.abort_model_calls()
            _, left = await asyncio.wait(self._steps, timeout=WIND_DOWN_MS / 1000)
            for task in left:
                task.cancel()
            await asyncio.gather(*self._steps, return_exceptions=True)
            self._steps.clear()


def _unknown(name: Name) -> RunNotFoundError:
    return RunNotFoundError(f"there is no run {name[1]!r} in scope {name[0]!r}; check both", run_id=name[1])


def binding_changed(run_id: str, agent: str) -> ExecutionPolicyError:
    """What a resume is told whose agent differs from the one that began the run."""
    return ExecutionPolicyError(
        f"Native agent binding changed across resume. Run {run_id!r} began with another model, other tools or another "
        f"binding_id of agent {agent!r}; resume it with those",
        code="binding_changed",
    )
