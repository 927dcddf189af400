"""The application object: what can run, where it is stored, and the clients that start and watch runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

from deuz_workers.app.access import Access
from deuz_workers.app.agent import Agent
from deuz_workers.app.async_client import AsyncClient
from deuz_workers.app.bell import bell_of
from deuz_workers.app.chat import Chat, check_chat_store
from deuz_workers.app.connections import breakers_of, leases_beside, leases_of, live_of, marks_of, store_of
from deuz_workers.app.conversation import Content, GivenMessage
from deuz_workers.app.doorbell import AppDoorbell
from deuz_workers.app.handle import Handle, SwarmHandle
from deuz_workers.app.handoffs import with_team
from deuz_workers.app.live_channel import LiveChannel
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.operating import Operator
from deuz_workers.app.order import NO_TAGS, Moment, OnConflict, SharedBudgets
from deuz_workers.app.reducer import Reducer
from deuz_workers.app.registry import AppRegistry
from deuz_workers.app.results import AgentResult
from deuz_workers.app.settings import Settings
from deuz_workers.app.stream import Stream
from deuz_workers.app.subagents import with_subagents
from deuz_workers.app.swarm import Swarm
from deuz_workers.app.swarm_result import SwarmResult
from deuz_workers.app.webhooks import AsyncWebhooks, Webhooks
from deuz_workers.core.approval_token import ApprovalSigner
from deuz_workers.core.budget_warning import BudgetWarning
from deuz_workers.core.build import Build, build_of
from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.usage import Budget
from deuz_workers.engine.binding import binding_of
from deuz_workers.engine.system_clock import SystemClock, SystemIds
from deuz_workers.errors import ConfigurationError
from deuz_workers.leases import memory_leases
from deuz_workers.ports.breakers import Breakers
from deuz_workers.ports.budgets import LedgerCompaction
from deuz_workers.ports.chat import ChatStore
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.output import OutputType
from deuz_workers.ports.runtime import Clock, Ids
from deuz_workers.ports.store import RunStore
from deuz_workers.ports.telemetry import Telemetry
from deuz_workers.providers.prices import Price, PriceList
from deuz_workers.telemetry import open_telemetry

T = TypeVar("T")

NO_PRICES: Mapping[str, Price] = {}


class Deuz:
    """An application. Made at import, in every process of it; connects to nothing before the first call that needs to.

    Without agents it is a client: it starts, watches and answers runs that other processes execute.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        *,
        reducers: Iterable[Reducer] = (),
        settings: Settings | None = None,
        prices: Mapping[str, Price] = NO_PRICES,
        on_budget_warning: Callable[[BudgetWarning], object] | None = None,
        store: RunStore | None = None,
        leases: LeaseProvider | None = None,
        chats: ChatStore | None = None,
    ) -> None:
        """`settings` None: read from environment and file at the first use. `prices`: see `PriceList`.

        `on_budget_warning` is called in the worker when a model call lifts what is used of a budget to its threshold, once per
        run, scope and dimension; it may be a coroutine function, and what it raises is logged.
        `chats`: where runs that have a chat write it, in every process of the application; None: beside the runs.
        `store` and `leases` take the place of those that the settings name; for stores of one's own and for tests. With a
        store alone, and settings that name no leases, they are held in its database, in a file beside its file, or in memory.
        Raises ConfigurationError for a name that is there twice, and for what is no agent or reducer.
        """
        given = with_subagents(_checked(agents, Agent, "an agent"))
        self.agents: Mapping[str, Agent] = {agent.name: agent for agent in given}
        self.registry = AppRegistry(
            [with_team(agent, self.agents) for agent in given],
            [reducer.definition for reducer in _checked(reducers, Reducer, "a reducer")],
        )
        self.prices = PriceList(prices)
        self.on_budget_warning = on_budget_warning
        self.clock: Clock = SystemClock()
        self.ids: Ids = SystemIds(self.clock)
        self._settings = settings
        self._store = store
        self._leases = leases
        if chats is not None:
            check_chat_store(chats)
        self.chats = chats

    # -- clients -------------------------------------------------------------------------------------------------------

    @cached_property
    def aio(self) -> AsyncClient:
        """The same functions for code on an event loop."""
        return AsyncClient(self, self.access)

    @cached_property
    def access(self) -> Access:
        """What clients, doors, handles and the gateway work with."""
        return Access(
            self.store,
            self.doorbell,
            self._leases_if_any(),
            self.clock,
            self.registry,
            self.signer,
            self.live.source,
            self.ids,
            self.chats,
        )

    @cached_property
    def operator(self) -> Operator:
        """Brakes and rates."""
        return Operator(self.aio.operator)

    @cached_property
    def webhooks(self) -> Webhooks:
        """Endpoints that are told what happens to runs."""
        return Webhooks(AsyncWebhooks(self))

    def enqueue(
        self,
        agent: str | Agent,
        prompt: Content | None = None,
        *,
        messages: Iterable[GivenMessage] | None = None,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        scope: str = "default",
        start_at: Moment | None = None,
        deadline: Moment | None = None,
        start_before: Moment | None = None,
        tags: Mapping[str, str] = NO_TAGS,
        queue: str | None = None,
        priority: int = 0,
        budget: Budget | None = None,
        shared_budgets: SharedBudgets = (),
        concurrency_key: str | None = None,
        on_conflict: OnConflict = "return",
        policy: ExecutionPolicy | None = None,
        chat: Chat | None = None,
        connection: Any = None,
    ) -> Handle:
        """The run is a row, and a worker was asked to look; returns at once. See `AsyncClient.enqueue` for all of it.

        With `connection`, an open psycopg connection of yours, the row is part of your transaction.
        """
        _refuse_async(connection, "enqueue")
        return Handle(
            LOOP.run(
                self.aio.enqueue(
                    agent,
                    prompt,
                    messages=messages,
                    run_id=run_id,
                    idempotency_key=idempotency_key,
                    scope=scope,
                    start_at=start_at,
                    deadline=deadline,
                    start_before=start_before,
                    tags=tags,
                    queue=queue,
                    priority=priority,
                    budget=budget,
                    shared_budgets=shared_budgets,
                    concurrency_key=concurrency_key,
                    on_conflict=on_conflict,
                    policy=policy,
                    chat=chat,
                    connection=connection,
                )
            )
        )

    def stream(
        self,
        agent: str | Agent,
        prompt: Content | None = None,
        *,
        messages: Iterable[GivenMessage] | None = None,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        scope: str = "default",
        deadline: Moment | None = None,
        start_before: Moment | None = None,
        tags: Mapping[str, str] = NO_TAGS,
        queue: str | None = None,
        priority: int = 0,
        budget: Budget | None = None,
        shared_budgets: SharedBudgets = (),
        concurrency_key: str | None = None,
        on_conflict: OnConflict = "return",
        chat: Chat | None = None,
    ) -> Stream:
        """The run that `enqueue` would start, as a stream; nothing is written yet. See `AsyncClient.stream`."""
        return Stream(
            self.aio.stream(
                agent,
                prompt,
                messages=messages,
                run_id=run_id,
                idempotency_key=idempotency_key,
                scope=scope,
                deadline=deadline,
                start_before=start_before,
                tags=tags,
                queue=queue,
                priority=priority,
                budget=budget,
                shared_budgets=shared_budgets,
                concurrency_key=concurrency_key,
                on_conflict=on_conflict,
                chat=chat,
            )
        )

    def resume_stream(self, run_id: str, **options: Any) -> Stream:
        """Hand in answers and follow the leg that they begin. See `AsyncClient.resume_stream`."""
        return Stream(self.aio.resume_stream(run_id, **options))

    def run_swarm(
        self,
        swarm: Swarm,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        scope: str = "default",
        start_at: Moment | None = None,
        deadline: Moment | None = None,
        tags: Mapping[str, str] = NO_TAGS,
        queue: str | None = None,
        priority: int = 0,
        budget: Budget | None = None,
        shared_budgets: SharedBudgets = (),
        policy: ExecutionPolicy | None = None,
        connection: Any = None,
    ) -> SwarmHandle:
        """The swarm and all its tasks are rows, and workers were asked to look. See `AsyncClient.run_swarm` for all of it."""
        _refuse_async(connection, "run_swarm")
        return SwarmHandle(
            LOOP.run(
                self.aio.run_swarm(
                    swarm,
                    run_id=run_id,
                    idempotency_key=idempotency_key,
                    scope=scope,
                    start_at=start_at,
                    deadline=deadline,
                    tags=tags,
                    queue=queue,
                    priority=priority,
                    budget=budget,
                    shared_budgets=shared_budgets,
                    policy=policy,
                    connection=connection,
                )
            )
        )

    def run_swarm_embedded(self, swarm: Swarm, **options: Any) -> SwarmResult:
        """Run a swarm in this process until it has ended or only waits. See `AsyncClient.run_swarm_embedded`."""
        return LOOP.run(self.aio.run_swarm_embedded(swarm, **options))

    def resume_swarm_embedded(self, run_id: str, *, scope: str = "default") -> SwarmResult:
        """Go on with a stored swarm in this process."""
        return LOOP.run(self.aio.resume_swarm_embedded(run_id, scope=scope))

    def swarm_handle(self, run_id: str, scope: str = "default") -> SwarmHandle:
        """Of a swarm that exists; nothing is looked up yet."""
        return SwarmHandle(self.aio.swarm_handle(run_id, scope))

    def run_embedded(self, agent: str | Agent, prompt: Content | None = None, **options: Any) -> AgentResult[Any]:
        """Run an agent in this process until it has something to report. See `AsyncClient.run_embedded`."""
        return LOOP.run(self.aio.run_embedded(agent, prompt, **options))

    def resume_embedded(self, run_id: str, **options: Any) -> AgentResult[Any]:
        """Go on with a stored run in this process. See `AsyncClient.resume_embedded`."""
        return LOOP.run(self.aio.resume_embedded(run_id, **options))

    def limit_key(self, key: str, slots: int, *, scope: str = "default") -> None:
        """So many runs of the scope that name this concurrency key run at a time. See `AsyncClient.limit_key`."""
        LOOP.run(self.aio.limit_key(key, slots, scope=scope))

    def fork(self, run_id: str, turn: int, *, scope: str = "default", **options: Any) -> Handle:
        """A new run that goes on from a turn of this one. See `AsyncClient.fork`."""
        return Handle(LOOP.run(self.aio.fork(run_id, turn, scope=scope, **options)))

    def export_run(self, run_id: str, scope: str = "default") -> str:
        """The run as the text of a file, with its checksum."""
        return LOOP.run(self.aio.export_run(run_id, scope))

    def import_run(self, text: str) -> Handle:
        """The run of an exported file. See `AsyncClient.import_run`."""
        return Handle(LOOP.run(self.aio.import_run(text)))

    def prune(self, older_than: timedelta, **options: Any) -> int:
        """Delete runs that ended so long ago. See `AsyncClient.prune`."""
        return LOOP.run(self.aio.prune(older_than, **options))

    def compact_ledger(self, run_id: str, **options: Any) -> LedgerCompaction:
        """Replace the settled calls of an ended run by sums. See `AsyncClient.compact_ledger`."""
        return LOOP.run(self.aio.compact_ledger(run_id, **options))

    def handle(self, run_id: str, scope: str = "default") -> Handle:
        """Of a run that exists; nothing is looked up yet."""
        return Handle(self.aio.handle(run_id, scope))

    def inspect(self, run_id: str, scope: str = "default") -> AgentRunEnvelope:
        """The stored record of a run as it is. Raises `RunNotFoundError`, `CheckpointVersionError`."""
        return self.handle(run_id, scope).envelope()

    # -- what it works with --------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> Settings:
        return self._settings or Settings()

    @property
    def has_own_store(self) -> bool:
        """It was given a store, so that no setting says where runs are."""
        return self._store is not None

    @cached_property
    def store(self) -> RunStore:
        """Connects at its first use in each process and loop."""
        return self._store or store_of(self.settings)

    @cached_property
    def leases(self) -> LeaseProvider:
        """Connects at its first use in each process and loop. Raises `ConfigurationError` where no provider is set."""
        if self._leases is not None:
            return self._leases
        if self._store is not None and not self.settings.says_leases:
            return leases_beside(self._store) or memory_leases()
        return leases_of(self.settings)

    @cached_property
    def doorbell(self) -> AppDoorbell:
        """Rings the drivers in this process and the workers of this application; usable from any loop."""
        return AppDoorbell(bell_of(self.settings.broker, self.ids, marks_of(self.settings, "bell"), self.settings.least_window))

    @cached_property
    def live(self) -> LiveChannel:
        """Fragments of answers and what else readers are told while runs go on."""
        return LiveChannel(live_of(self.settings, self.clock))

    @cached_property
    def breakers(self) -> Breakers:
        """Which models are left alone for a while; shared by the pool where there is a Redis."""
        return breakers_of(self.settings, self.clock)

    @cached_property
    def telemetry(self) -> Telemetry:
        """Where spans and metrics of its runs go. Raises `ConfigurationError` where it is on and not installed."""
        return open_telemetry(self.settings.telemetry, self.clock)

    @cached_property
    def signer(self) -> ApprovalSigner | None:
        """Of the tokens that approvals have to bring back, if the settings say so."""
        secret = self.settings.approval_secret
        return None if secret is None else ApprovalSigner(secret.get_secret_value())

    @cached_property
    def build(self) -> Build:
        """What this application can run, as workers announce it to each other."""
        bindings = {agent.name: binding_of(agent) for agent in self.registry.agents}
        return build_of(bindings, [reducer.name for reducer in self.registry.reducers])

    async def aclose(self) -> None:
        """Connections of this process and the running loop are closed; the next call would open new ones.

        What a database in memory held is gone.
        """
        for name in ("live", "breakers", "leases", "store"):
            if name in self.__dict__:
                await self.__dict__[name].close()

    def close(self) -> None:
        """Connections of the synchronous functions are closed."""
        LOOP.run(self.aclose())

    def output_type(self, agent: str) -> OutputType | None:
        """Of an agent of this application; None: a text, or the agent is not known here."""
        definition = self.registry.agent(agent)
        return None if definition is None else definition.output

    def _leases_if_any(self) -> LeaseProvider | None:
        """A producer needs none: without, a cancel only takes effect a little later."""
        try:
            return self.leases
        except ConfigurationError:
            return None


def _refuse_async(connection: Any, function: str) -> None:
    if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        raise ConfigurationError(f"an async connection belongs to its own loop: await app.aio.{function}(..., connection=...)")


def _checked(given: Iterable[T], kind: type[T], what: str) -> list[T]:
    found = list(given)
    for item in found:
        if not isinstance(item, kind):
            raise ConfigurationError(f"a {type(item).__name__} is not {what}; pass {kind.__name__}(...)")
    return found
