"""Runs under a virtual clock, in processes that die where a schedule says.

A *point* is a moment before or after a commit, a model call, a tool call or the verifier; points are counted over the whole
simulation. When the count reaches a number of `deaths`, the process of that moment is dead: nothing of it reaches store or
leases any more, its lease is not given back, and the next process comes after the lease has lapsed. Store and leases are the
real ones, in memory.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from deuz_workers.core.change import Bell, Change, MessageRow, Outcome
from deuz_workers.core.codec import encode
from deuz_workers.core.envelope import AgentRunEnvelope, encode_body
from deuz_workers.core.messages import message_to_record, user
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.run import Run, read_run
from deuz_workers.core.unclean_ends import QUARANTINE
from deuz_workers.core.usage import Budget, Usage
from deuz_workers.engine.engine import Engine
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.heartbeat import Heartbeat
from deuz_workers.engine.settings import EngineSettings
from deuz_workers.engine.system_clock import SystemIds
from deuz_workers.errors import SimulatedDeath
from deuz_workers.leases.sqlite import SqliteLeases
from deuz_workers.ports.definition import AgentDefinition, ReducerDefinition
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.live import Silence
from deuz_workers.ports.model import Model, ModelReply, ModelRequest, OnText
from deuz_workers.ports.store import NewRun, When
from deuz_workers.ports.tool import Tool, ToolContext
from deuz_workers.ports.verify import Verify, VerifyContext
from deuz_workers.store.sql_store import SqlStore
from deuz_workers.testing.migrated_sqlite import MigratedSqlite
from deuz_workers.tools.threads import THREADS

SCOPE = "simulation"


class Died(SimulatedDeath):
    """The process is dead. No code of ours or of a tool's survives it."""


class VirtualClock:
    """Stands still until somebody waits or moves it."""

    def __init__(self) -> None:
        self.passed_ms = 0

    def monotonic_ms(self) -> int:
        return self.passed_ms

    def unix_ms(self) -> int:
        return 1_800_000_000_000 + self.passed_ms

    async def sleep_ms(self, ms: int) -> None:
        self.passed_ms += ms
        await asyncio.sleep(0)


class Simulation:
    """One store, one lease provider, and processes that come and go. `agents` by name.

    `leases` None: in memory, under the virtual clock.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentDefinition],
        deaths: Collection[int] = (),
        *,
        ttl_ms: int = 3_000,
        leases: LeaseProvider | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.store = SqlStore(MigratedSqlite(clock=self.clock), ttl_ms=ttl_ms)
        self.leases: LeaseProvider = leases or SqliteLeases(":memory:", clock=self.clock)
        self.ids = SystemIds(self.clock)
        self.agents = agents
        self.deaths = frozenset(deaths)
        self.settings = EngineSettings(lease_ttl_ms=ttl_ms)
        self.points = 0
        self.places: list[str] = []
        """What each point was, in order."""
        self.deaths_met = 0
        self.fatal_place: str | None = None
        """The first point whose place begins so is deadly too."""

    async def enqueue(
        self,
        agent: str,
        run_id: str,
        prompt: str = "go",
        *,
        deadline_in_ms: int | None = None,
        budget: Budget | None = None,
        concurrency_key: str | None = None,
    ) -> None:
        rid = self.ids.rid()
        scopes = () if budget is None else (run_scope_key(rid),)
        envelope = AgentRunEnvelope(rid, SCOPE, run_id, "agent", agent, limits=self.agents[agent].limits, scopes=scopes)
        body = encode(message_to_record(user(prompt)))
        deadline = None if deadline_in_ms is None else When(in_ms=deadline_in_ms)
        first = (MessageRow(0, body),)
        await self.store.create(
            NewRun(
                rid,
                SCOPE,
                run_id,
                "agent",
                agent,
                encode_body(envelope),
                first,
                deadline=deadline,
                budget=budget,
                concurrency_key=concurrency_key,
            )
        )

    async def run(self, run_id: str, on_parked: Callable[[Run], Awaitable[None]] | None = None, *, steps: int = 500) -> Run:
        """Step the run, in one process after the other, until it has ended; returns it as stored.

        `on_parked` has to leave the note that a parked run waits for. Raises AssertionError when `steps` are not enough.
        """
        process = Process(self)
        for _ in range(steps):
            head = await self.store.head(SCOPE, run_id)
            assert head is not None
            run = await self.load(run_id)
            if run.envelope.is_final:
                return run
            if head.parked == QUARANTINE:
                await self.store.add_note(SCOPE, run_id, "retry", "{}")  # a person finds nothing wrong with it
                continue
            if head.parked is not None:
                assert on_parked is not None, f"run {run_id} is parked: {head.parked}"
                await on_parked(run)
                continue
            if not head.has_work:
                assert head.due_in_ms is not None, f"run {run_id} waits for an input that nobody will give"
                self.clock.passed_ms += head.due_in_ms
            try:
                await process.engine.step(SCOPE, run_id)
            except Died:
                self.deaths_met += 1
                self.clock.passed_ms += self.settings.lease_ttl_ms + 1
                process = Process(self)
        raise AssertionError(f"run {run_id} has not ended after {steps} steps; it stood at {self.places[-5:]}")

    async def step_until_death(self, run_id: str, place: str, *, steps: int = 100) -> None:
        """Step the run in one process until it dies at the first point that begins with `place`; its lease has lapsed then."""
        self.fatal_place = place
        process = Process(self)
        for _ in range(steps):
            try:
                await process.engine.step(SCOPE, run_id)
            except Died:
                self.deaths_met += 1
                self.clock.passed_ms += self.settings.lease_ttl_ms + 1
                return
        raise AssertionError(f"run {run_id} never came to {place!r}; it stood at {self.places[-5:]}")

    async def load(self, run_id: str) -> Run:
        loaded = await self.store.load(SCOPE, run_id)
        assert loaded is not None
        return read_run(loaded.head, loaded.messages, loaded.receipts)


class Process:
    """One worker process: an engine whose every way out is cut when it dies."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.is_dead = False
        heartbeat = Heartbeat(simulation.leases, simulation.settings.lease_ttl_ms, simulation.clock, threaded=False)
        gear = Gear(
            store=cast(Any, _Mortal(self, simulation.store, points=("commit",))),
            leases=cast(Any, _Mortal(self, simulation.leases)),
            heartbeat=heartbeat,
            registry=_Registry(self, simulation.agents),
            doorbell=_Nobody(),
            clock=simulation.clock,
            ids=simulation.ids,
            prices=_Nobody(),
            sink=Silence(),
            threads=THREADS,
            settings=simulation.settings,
        )
        self.engine = Engine(gear)

    def check(self) -> None:
        if self.is_dead:
            raise Died

    def point(self, place: str) -> None:
        """A moment at which the schedule may end this process."""
        self.check()
        simulation = self.simulation
        number = simulation.points
        simulation.points += 1
        simulation.places.append(place)
        fatal = simulation.fatal_place is not None and place.startswith(simulation.fatal_place)
        if fatal:
            simulation.fatal_place = None
        if fatal or number in simulation.deaths:
            self.is_dead = True
            raise Died


class _Mortal:
    """A store or lease provider as a process sees it: out of reach once it is dead."""

    def __init__(self, process: Process, inner: object, points: Collection[str] = ()) -> None:
        self._process = process
        self._inner = inner
        self._points = points

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Awaitable[Any]] = getattr(self._inner, name)
        process = self._process
        if name not in self._points:

            async def reach(*args: Any, **kwargs: Any) -> object:
                process.check()
                return await method(*args, **kwargs)

            return reach

        async def reach_with_points(change: Change) -> Outcome:
            process.point(f"before {name} of revision {change.expected + 1}")
            outcome = await method(change)
            process.point(f"after {name} of revision {change.expected + 1}")
            return outcome

        return reach_with_points


class _Registry:
    def __init__(self, process: Process, agents: Mapping[str, AgentDefinition]) -> None:
        self._agents = {name: _mortal(process, agent) for name, agent in agents.items()}

    def agent(self, name: str) -> AgentDefinition | None:
        return self._agents.get(name)

    def reducer(self, name: str) -> ReducerDefinition | None:
        return None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._agents)


def _mortal(process: Process, agent: AgentDefinition) -> AgentDefinition:
    return replace(
        agent,
        model=_MortalModel(process, agent.model),
        fallback_models=tuple(_MortalModel(process, model) for model in agent.fallback_models),
        tools={key: cast(Tool, _MortalTool(process, tool)) for key, tool in agent.tools.items()},
        transfers={to: cast(Tool, _MortalTool(process, tool)) for to, tool in agent.transfers.items()},
        team={name: _mortal(process, member) for name, member in agent.team.items()},
        verify=None if agent.verify is None else _mortal_verify(process, agent.verify),
    )


class _MortalModel:
    def __init__(self, process: Process, inner: Model) -> None:
        self._process = process
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        self._process.point("before model call")
        reply = await self._inner.call(request, on_text)
        self._process.point("after model call")
        return reply

    async def close(self) -> None:
        await self._inner.close()


class _MortalTool:
    def __init__(self, process: Process, inner: Tool) -> None:
        self._process = process
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def run(self, arguments: Mapping[str, object], context: ToolContext) -> object:
        self._process.point(f"before tool {context.tool_call_id}")
        value = await self._inner.run(arguments, context)
        self._process.point(f"after tool {context.tool_call_id}")
        return value

    def project(self, value: object) -> str:
        self._process.check()
        return self._inner.project(value)


def _mortal_verify(process: Process, inner: Verify) -> Verify:
    async def verify(output: object, context: VerifyContext) -> object:
        process.point(f"before verify {context.attempt}")
        said = inner(output, context)
        said = await said if inspect.isawaitable(said) else said
        process.point(f"after verify {context.attempt}")
        return said

    return verify


class _Nobody:
    """Doorbell and prices of a simulation: nobody listens."""

    async def offer(self, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
        return ()

    def leave(self, queues: Collection[str]) -> None:
        return None

    async def has_room(self, queue: str) -> bool:
        return True

    def cost_micros(self, model: str, usage: Usage) -> int | None:
        return None
