"""Starting and finding runs, for code on an event loop: `app.aio`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from deuz_workers.app.access import Access
from deuz_workers.app.agent import Agent, check_policy
from deuz_workers.app.agent_stream import AgentStream
from deuz_workers.app.answers import NO_OUTCOMES, NO_RESULTS, Answers, ClientResults, hand_in_and_ring
from deuz_workers.app.async_handle import AsyncHandle
from deuz_workers.app.async_swarm_client import AsyncSwarmClient
from deuz_workers.app.chat import Chat, run_chat
from deuz_workers.app.client_source import Begun, ClientSource
from deuz_workers.app.conversation import Content, GivenMessage
from deuz_workers.app.embedded import resume_embedded, run_embedded
from deuz_workers.app.nesting import scope_below
from deuz_workers.app.operating import AsyncOperator
from deuz_workers.app.order import (
    NO_TAGS,
    Moment,
    OnConflict,
    Options,
    SharedBudgets,
    agent_run,
    check_created,
    embedded_options,
)
from deuz_workers.app.results import AgentResult
from deuz_workers.app.stream_sources import EmbeddedSource, Named
from deuz_workers.app.verdicts import NO_VERDICTS, Verdicts
from deuz_workers.app.words import Reconciled
from deuz_workers.core.change import Bell
from deuz_workers.core.chat import RunChat
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.usage import Budget
from deuz_workers.ports.context import given_context
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.store import Created, NewRun

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz


LOOK_AGAIN_MS = 5_000
"""After a new run was rung for, in case that its producer died before, or that the doorbell got lost."""


class AsyncClient(AsyncSwarmClient):
    """Clients hold no connection of their own and may be used from any loop of the process."""

    def __init__(self, app: Deuz, access: Access) -> None:
        super().__init__(app, access)
        self.operator = AsyncOperator(access)
        """Brakes and rates."""

    async def enqueue(
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
    ) -> AsyncHandle:
        """The run is a row, and a worker was asked to look; returns at once.

        Args:
            agent: its name; an app without agents may name any.
            prompt, messages: what the run starts from, exactly one of them.
            run_id: unique over all scopes; None makes one. idempotency_key: unique per scope. Asking again for the same under
                either gives the run that is there.
            start_at, deadline, start_before: a datetime with a zone, or a timedelta from now by the database's clock.
            queue: None: the agent's. priority: -100 to 100, higher first.
            budget: what the run may spend; None: the agent's.
            shared_budgets: keys (`user:42`) or `SharedBudget`s that its calls are charged to as well.
            concurrency_key: of the runs of the scope that name it, only as many run at a time as it has slots (`limit_key`, the
                setting concurrency_limits, else one); the others wait as rows. None: the agent's.
            on_conflict: `reject` raises although the run that is there was asked for the same.
            policy: what the run may do, where that is less than its agent's policy allows.
            chat: where its transcript is written at every suspension and at its end, see docs/chat.md.
            connection: a psycopg connection in whose transaction the row is written. It is visible after your commit; the
                sweep finds it within a second, or you ring: `await handle.ring()`.

        Raises: UnknownAgentError, ConfigurationError; RunExistsError, the key or id belongs to another request;
        ScopeMismatchError; StoreUnavailableError, MigrationMissingError, SchemaTooNewError. Nothing was written then; after
        StoreUnavailableError nobody knows, and asking again under the same key is safe.
        """
        options = Options(
            run_id,
            idempotency_key,
            scope,
            start_at,
            deadline,
            start_before,
            tags,
            queue,
            priority,
            budget,
            concurrency_key,
            on_conflict,
            policy,
            shared_budgets,
            self._chat(chat, scope),
        )
        return await self._create(self._asked(agent, prompt, messages, options), options, connection)

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
    ) -> AgentStream:
        """The run that `enqueue` would start, read from the worker that executes it. Nothing is written before the stream is
        started; then it subscribes first, so that nothing of the run is missed.

        What `enqueue` would raise from the store is a `failed` result. Raises UnknownAgentError, ConfigurationError.
        """
        options = Options(
            run_id,
            idempotency_key,
            scope,
            None,
            deadline,
            start_before,
            tags,
            queue,
            priority,
            budget,
            concurrency_key,
            on_conflict,
            shared_budgets=shared_budgets,
            chat=self._chat(chat, scope),
        )
        asked = self._asked(agent, prompt, messages, options)

        async def begin() -> Begun:
            created = await self._created(asked, options, None)
            return Begun(created.run_id, 0 if created.created else None)

        return self._stream(scope, asked.run_id, asked.agent, begin)

    def resume_stream(
        self,
        run_id: str,
        *,
        scope: str = "default",
        approvals: Verdicts = NO_VERDICTS,
        client_tool_results: ClientResults = NO_RESULTS,
        retry_tool_call_ids: Iterable[str] = (),
        reconciled_tool_results: Reconciled = NO_OUTCOMES,
        policy: ExecutionPolicy | None = None,
    ) -> AgentStream:
        """Hand in answers and a policy, as `resume_agent` takes them, and read the leg that a worker executes then.

        Nothing is stored before the stream is started, nor if they leave something open: then the result says what.
        """
        check_policy("this resume", policy)
        answers = Answers(approvals, client_tool_results, tuple(retry_tool_call_ids), reconciled_tool_results)

        async def begin() -> Begun:
            return Begun(run_id, *await hand_in_and_ring(self._access, scope, run_id, answers, policy))

        return self._stream(scope, run_id, "", begin)

    def _stream(self, scope: str, run_id: str, agent: str, begin: Callable[[], Awaitable[Begun]]) -> AgentStream:
        return AgentStream(ClientSource(self._access, self._app.live.source, scope, run_id, agent, begin))

    async def run_embedded(
        self,
        agent: str | Agent,
        prompt: Content | None = None,
        *,
        messages: Iterable[GivenMessage] | None = None,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        scope: str = "default",
        deadline: Moment | None = None,
        tags: Mapping[str, str] = NO_TAGS,
        budget: Budget | None = None,
        shared_budgets: SharedBudgets = (),
        on_conflict: OnConflict | None = None,
        policy: ExecutionPolicy | None = None,
        chat: Chat | None = None,
        tools_context: Mapping[str, Any] | None = None,
        runtime_context: Any = None,
        execution: Execution | None = None,
    ) -> AgentResult[Any]:
        """Run an agent of the application on this loop until it has something to report; no worker is involved.

        See `run_agent`. Workers leave such a run alone unless they take from the queue `in-process`.
        """
        options = embedded_options(
            run_id,
            idempotency_key,
            scope,
            deadline,
            tags,
            budget,
            on_conflict,
            policy,
            shared_budgets,
            self._chat(chat, scope_below(execution, scope)),
            execution,
        )
        asked = self._asked(agent, prompt, messages, options)
        return await run_embedded(self._app, asked, options, given_context(tools_context, runtime_context))

    def stream_embedded(
        self,
        agent: str | Agent,
        prompt: Content | None = None,
        *,
        messages: Iterable[GivenMessage] | None = None,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        scope: str = "default",
        deadline: Moment | None = None,
        tags: Mapping[str, str] = NO_TAGS,
        budget: Budget | None = None,
        shared_budgets: SharedBudgets = (),
        on_conflict: OnConflict | None = None,
        policy: ExecutionPolicy | None = None,
        chat: Chat | None = None,
        tools_context: Mapping[str, Any] | None = None,
        runtime_context: Any = None,
        owned: bool = False,
    ) -> AgentStream:
        """The run that `run_embedded` would make, as a stream; nothing is started or written yet. See `stream_agent`.

        `owned`: the application is closed when the stream ends.
        """
        options = embedded_options(
            run_id, idempotency_key, scope, deadline, tags, budget, on_conflict, policy, shared_budgets, self._chat(chat, scope)
        )
        asked, context = self._asked(agent, prompt, messages, options), given_context(tools_context, runtime_context)

        async def work(named: Named) -> AgentResult[Any]:
            return await run_embedded(self._app, asked, options, context, named)

        return AgentStream(EmbeddedSource(self._app, scope, asked.run_id, asked.agent, work, owned=owned))

    async def resume_embedded(
        self,
        run_id: str,
        *,
        scope: str = "default",
        approvals: Verdicts = NO_VERDICTS,
        client_tool_results: ClientResults = NO_RESULTS,
        retry_tool_call_ids: Iterable[str] = (),
        reconciled_tool_results: Reconciled = NO_OUTCOMES,
        retry_failed: bool = False,
        policy: ExecutionPolicy | None = None,
        chat: Chat | None = None,
        tools_context: Mapping[str, Any] | None = None,
        runtime_context: Any = None,
        execution: Execution | None = None,
        shared_budgets: SharedBudgets = (),
    ) -> AgentResult[Any]:
        """Go on with a stored run on this loop until it has something to report. See `resume_agent`."""
        answers = Answers(approvals, client_tool_results, tuple(retry_tool_call_ids), reconciled_tool_results)
        context = given_context(tools_context, runtime_context)
        check_policy("this resume", policy)
        asked = self._chat(chat, scope_below(execution, scope))
        more: dict[str, Any] = {"retry_failed": retry_failed, "execution": execution, "shared": shared_budgets}
        return await resume_embedded(self._app, scope, run_id, answers, context, policy, asked, **more)

    def resume_stream_embedded(
        self,
        agent: str | Agent,
        run_id: str,
        *,
        scope: str = "default",
        approvals: Verdicts = NO_VERDICTS,
        client_tool_results: ClientResults = NO_RESULTS,
        retry_tool_call_ids: Iterable[str] = (),
        reconciled_tool_results: Reconciled = NO_OUTCOMES,
        retry_failed: bool = False,
        policy: ExecutionPolicy | None = None,
        chat: Chat | None = None,
        tools_context: Mapping[str, Any] | None = None,
        runtime_context: Any = None,
        owned: bool = False,
    ) -> AgentStream:
        """The next leg of a stored run of `agent`, as a stream; nothing is started yet. See `resume_stream_agent`."""
        answers = Answers(approvals, client_tool_results, tuple(retry_tool_call_ids), reconciled_tool_results)
        context = given_context(tools_context, runtime_context)
        check_policy("this resume", policy)
        name, asked = agent if isinstance(agent, str) else agent.name, self._chat(chat, scope)

        async def work(_: Named) -> AgentResult[Any]:
            return await resume_embedded(self._app, scope, run_id, answers, context, policy, asked, retry_failed=retry_failed)

        return AgentStream(EmbeddedSource(self._app, scope, run_id, name, work, owned=owned))

    def _asked(
        self, agent: str | Agent, prompt: Content | None, messages: Iterable[GivenMessage] | None, options: Options
    ) -> NewRun:
        name = agent if isinstance(agent, str) else agent.name
        self._app.registry.check_agent(name)
        known, trace = self._app.agents.get(name), self._app.telemetry.carried()
        return agent_run(self._app.ids, name, known, prompt=prompt, messages=messages, options=options, trace=trace)

    def _chat(self, chat: Chat | None, scope: str) -> RunChat | None:
        return None if chat is None else run_chat(chat, scope, self._app.chats, self._app.store)

    async def _create(self, asked: NewRun, options: Options, connection: Any) -> AsyncHandle:
        created = await self._created(asked, options, connection)
        return self.handle(created.run_id, created.scope)

    async def _created(self, asked: NewRun, options: Options, connection: Any) -> Created:
        may_ring = connection is None and asked.start is None
        rings = may_ring and await self._access.doorbell.has_room(asked.queue)
        ring_in_ms = LOOK_AGAIN_MS if rings else 0
        created = await self._access.store.create(asked, ring_in_ms=ring_in_ms, connection=connection)
        check_created(asked, created, options)
        if created.created and rings:
            await self._access.ring([bell_of(asked)])
        elif created.created and may_ring:
            await self._app.doorbell.ring_here([bell_of(asked)])
        return created


def bell_of(run: NewRun) -> Bell:
    return Bell(run.scope, run.run_id, run.queue, 0, run.priority, run.agent, run.trace)
