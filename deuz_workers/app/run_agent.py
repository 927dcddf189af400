"""`run_agent` and `resume_agent`: one agent, this process, nothing else needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

from deuz_workers.app.agent import Agent
from deuz_workers.app.answers import NO_OUTCOMES, NO_RESULTS, ClientResults
from deuz_workers.app.chat import Chat, own_chats
from deuz_workers.app.connections import leases_beside
from deuz_workers.app.conversation import Content, GivenMessage
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.memory_repair import reconcile_memory
from deuz_workers.app.nesting import home_of
from deuz_workers.app.order import NO_TAGS, Moment, OnConflict, SharedBudgets
from deuz_workers.app.record_version import check_record_version
from deuz_workers.app.repair import RunRepair, repair_run
from deuz_workers.app.results import AgentResult, refused
from deuz_workers.app.settings import Settings
from deuz_workers.app.verdicts import NO_VERDICTS, Verdicts
from deuz_workers.app.words import Reconciled
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.usage import Budget
from deuz_workers.errors import ConfigurationError
from deuz_workers.leases import memory_leases
from deuz_workers.ports.chat import ChatStore
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.store import RunStore
from deuz_workers.store.opening import MEMORY


async def run_agent(
    agent: Agent,
    prompt: Content | None = None,
    *,
    messages: Iterable[GivenMessage] | None = None,
    store: str | RunStore | None = None,
    leases: LeaseProvider | None = None,
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
    checkpoint_version: Literal[3] | None = None,
) -> AgentResult[Any]:
    """Run an agent on this loop until it has something to report.

    Args:
        prompt, messages: what the run starts from, exactly one of them.
        store: a database URL, a store of yours, or None for memory. In a file or a server the run outlives this process:
            `resume_agent` goes on with it.
        leases: who excludes other executors; None: a file beside an SQLite file, Redis where `DEUZ_REDIS_URL` names one, else
            the Postgres of the store. For a store object it is its own Postgres or a file beside its own; over memory, and over
            a store that is none of ours, this process alone, where all calls over one object share them.
        on_conflict: `return` goes on with the run that is there, if it was asked for the same. None: that with an
            `idempotency_key`, else `reject`.
        policy: what the run may do, where that is less than the agent's policy allows.
        chat: where its transcript is written at every suspension and at its end, see docs/chat.md.
        tools_context: values by tool name, which tools find as `ToolContext.context`. runtime_context: any object for tools and
            hooks. Neither is copied or stored; without both, the agent's `make_context` is asked.
        execution: `ctx.execution` of a tool or verifier that starts this run, or a child of it. The run is stored where that
            one's is, charged to its ledger, held to its policy and deadline, and cancelled with the call that started it.
        checkpoint_version: 3 asks for a record of that version, which no store of this release keeps: a failed result whose
            error is an `UnsupportedStoreError`, with nothing of the store asked.

    What the store or another executor refuses is a `failed` result whose `error` says so, and the stored run is as it was.
    Raises ConfigurationError for what cannot be meant; nothing was written then. Cancelling the task leaves the run to be
    resumed.
    """
    if (unsupported := check_record_version(checkpoint_version, store)) is not None:
        return refused(run_id or "", scope, agent.name, unsupported)
    app, owned = application_of(agent, store, leases, chat, execution)
    try:
        return await app.aio.run_embedded(
            agent,
            prompt,
            messages=messages,
            run_id=run_id,
            idempotency_key=idempotency_key,
            scope=scope,
            deadline=deadline,
            tags=tags,
            budget=budget,
            shared_budgets=shared_budgets,
            on_conflict=on_conflict,
            policy=policy,
            chat=chat,
            tools_context=tools_context,
            runtime_context=runtime_context,
            execution=execution,
        )
    finally:
        if owned:
            await app.aclose()


async def resume_agent(
    agent: Agent,
    run_id: str,
    *,
    store: str | RunStore | None = None,
    leases: LeaseProvider | None = None,
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
    checkpoint_version: Literal[3] | None = None,
) -> AgentResult[Any]:
    """Go on with a stored run on this loop until it has something to report; a run that has ended is only read.

    Args:
        approvals: verdicts by approval id, or records with `approval_id`, `approved`, `reason` and the request's `token`.
        client_tool_results: what clients' executions returned, by tool call id, or records with `tool_call_id`, `output` and
            `is_error`. Together they must cover all that is pending; otherwise nothing is stored and the run stays suspended.
        retry_tool_call_ids: interrupted calls that may run once more. One that is gated runs only if `approvals` has its
            verdict again; otherwise it is answered as denied.
        reconciled_tool_results: outcomes of interrupted calls that somebody found out: outputs by call id, or records of
            `tool_call_id`, `output` and `is_error`. Together both must settle all unknown effects, else nothing is stored.
        retry_failed: a run that failed for a cause which may have passed goes on where it stood, in the phase it failed in. A
            lasting cause gives a `failed` result whose error is a `TypeError`, with nothing stored; in every other state of a
            run it has no effect.
        policy: narrows what the run may do from here on; a wider one changes nothing.
        chat: the one that the run began with, if it names a store of its own; None: the stored one, beside the runs.
        tools_context, runtime_context: as for `run_agent`, since nothing of them is stored.
        store: where the run is; needed but with `execution`.
        shared_budgets: that its calls are charged to from here on as well, and stricter limits of those that they are charged
            to already; another window than a key has is refused.
        checkpoint_version: as for `run_agent`.
        execution: needed for a run that was started in one, and then the same part of the same run's.

    Refusals are `failed` results, as with `run_agent`. Raises `ReconciliationError`, which is a `TypeError`, where a call is
    named twice or was not interrupted, with nothing written.
    """
    if (unsupported := check_record_version(checkpoint_version, store)) is not None:
        return refused(run_id, scope, agent.name, unsupported)
    if store is None and execution is None:
        raise TypeError("resume_agent needs the store that the run is in: pass store=...")
    app, owned = application_of(agent, store, leases, chat, execution)
    try:
        return await app.aio.resume_embedded(
            run_id,
            scope=scope,
            approvals=approvals,
            client_tool_results=client_tool_results,
            retry_tool_call_ids=retry_tool_call_ids,
            reconciled_tool_results=reconciled_tool_results,
            retry_failed=retry_failed,
            policy=policy,
            chat=chat,
            tools_context=tools_context,
            runtime_context=runtime_context,
            execution=execution,
            shared_budgets=shared_budgets,
        )
    finally:
        if owned:
            await app.aclose()


async def reconcile_agent_run(
    run_id: str,
    *,
    store: str | RunStore,
    agent: Agent | None = None,
    leases: LeaseProvider | None = None,
    scope: str = "default",
    chats: ChatStore | None = None,
    checkpoint_version: Literal[3] | None = None,
) -> RunRepair:
    """What is left to do beside a run that nobody drives is done, under its lease: a cancel that was signalled for a run which
    has ended is dropped; one of a run that goes on is kept. The chat of a run that ended or waits is written, where that was
    interrupted and nobody has gone on with it since. With the `agent` of the run, which has its memory, an extraction
    that is pending or failed is settled: by what the memory store holds of it, or by executing it where that is nothing.

    `chats`: the store that the run's `Chat` named, if it did. `store`, `leases`: as for `resume_agent`, which is what goes on
    with the run itself. Raises `AgentRunLeaseError` with the code `lease_lost` where another executor has taken it meanwhile,
    and writes nothing from there on. Raises `AgentRunLeaseError` with the code `lease_held` while another one has it,
    `ScopeMismatchError`, `CheckpointVersionError`, store errors; `UnsupportedStoreError` for every `checkpoint_version`, as
    `run_agent` refuses it; nothing was written then.
    """
    if (unsupported := check_record_version(checkpoint_version, store)) is not None:
        raise unsupported
    app, owned = _application(() if agent is None else (agent,), store, leases, None if chats is store else chats)
    try:
        found = await repair_run(app.access, scope, run_id, app.settings.lease_ttl_ms)
        if agent is None or agent.definition.memory is None:
            return found
        return replace(await reconcile_memory(app, scope, run_id), chat=found.chat)
    finally:
        if owned:
            await app.aclose()


def run_agent_sync(agent: Agent, prompt: Content | None = None, **options: Any) -> AgentResult[Any]:
    """`run_agent` for code without an event loop; the same arguments."""
    return LOOP.run(run_agent(agent, prompt, **options))


def resume_agent_sync(agent: Agent, run_id: str, **options: Any) -> AgentResult[Any]:
    """`resume_agent` for code without an event loop; the same arguments."""
    return LOOP.run(resume_agent(agent, run_id, **options))


def application_of(
    agent: Agent,
    store: str | RunStore | None,
    leases: LeaseProvider | None = None,
    chat: Chat | None = None,
    execution: Execution | None = None,
) -> tuple[Deuz, bool]:
    """An application of this one agent over `store`, or where the run of `execution` is; whether its connections are ours to
    close."""
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
        raise ConfigurationError(f"run_agent takes an Agent, not a {type(agent).__name__}; a name needs an application")
    if execution is not None:
        return _below(agent, store, leases, chat, execution), True
    return _application((agent,), store, leases, own_chats(chat, store))


def _below(
    agent: Agent, store: str | RunStore | None, leases: LeaseProvider | None, chat: Chat | None, execution: Execution
) -> Deuz:
    above = home_of(execution)
    if leases is not None or (store is not None and store is not above.store):
        raise ConfigurationError("a run in an execution context is kept where the run above is; leave store and leases out")
    warn, chats = above.on_budget_warning, own_chats(chat, above.store)
    made = _Borrowing((agent,), settings=above.settings, on_budget_warning=warn, store=above.store, chats=chats)
    made.prices = above.prices
    made.__dict__ |= {"leases": above.leases, "breakers": above.breakers, "live": above.live}
    return made


def _application(
    agents: tuple[Agent, ...], store: str | RunStore | None, leases: LeaseProvider | None, chats: ChatStore | None
) -> tuple[Deuz, bool]:
    if store is not None and not isinstance(store, str):
        settings = Settings(broker_url=None, leases_url="memory://")
        given = leases or leases_beside(store)
        if given is None:
            return Deuz(agents, settings=settings, store=store, leases=_leases_of(store), chats=chats), False
        return _OverStoreOfCaller(agents, settings=settings, store=store, leases=given, chats=chats), leases is None
    return Deuz(agents, settings=_settings_at(store or MEMORY), leases=leases, chats=chats), True


class _OverStoreOfCaller(Deuz):
    """Its store is the caller's to close."""

    async def aclose(self) -> None:
        self.__dict__.pop("store", None)
        await super().aclose()


class _Borrowing(Deuz):
    """Works with the connections of another application, which closes them."""

    async def aclose(self) -> None:
        return None


_LEASES: WeakKeyDictionary[RunStore, LeaseProvider] = WeakKeyDictionary()


def _leases_of(store: RunStore) -> LeaseProvider:
    """The same for all calls of this process over one store object: each sees what the others execute."""
    try:
        return _LEASES.setdefault(store, memory_leases())
    except TypeError:  # an object of the caller's that cannot be a key
        return memory_leases()


def _settings_at(url: str) -> Settings:
    if url == MEMORY:
        return Settings(database_url=MEMORY, redis_url=None, broker_url=None, leases_url="memory://")
    return Settings(database_url=url)
