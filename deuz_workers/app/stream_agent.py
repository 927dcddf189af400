"""`stream_agent` and `resume_stream_agent`: `run_agent` and `resume_agent`, read while they happen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from deuz_workers.app.agent import Agent
from deuz_workers.app.agent_stream import AgentStream
from deuz_workers.app.answers import NO_OUTCOMES, NO_RESULTS, ClientResults
from deuz_workers.app.chat import Chat
from deuz_workers.app.conversation import Content, GivenMessage
from deuz_workers.app.order import NO_TAGS, Moment, OnConflict, SharedBudgets
from deuz_workers.app.record_version import check_record_version
from deuz_workers.app.results import AgentResult, refused
from deuz_workers.app.run_agent import application_of
from deuz_workers.app.stream import Stream
from deuz_workers.app.stream_sources import EmbeddedSource, Named
from deuz_workers.app.verdicts import NO_VERDICTS, Verdicts
from deuz_workers.app.words import Reconciled
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.usage import Budget
from deuz_workers.errors import DeuzError
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.store import RunStore


def stream_agent(
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
    checkpoint_version: Literal[3] | None = None,
) -> AgentStream:
    """A run of an agent on the loop that reads it. Returns at once; the first access to `result`, step of a view, or `consume`
    starts it.

    The arguments are those of `run_agent`. What the store or another executor refuses is a `failed` result; raises
    ConfigurationError at once for what cannot be meant.
    """
    if (unsupported := check_record_version(checkpoint_version, store)) is not None:
        return _refused(agent, scope, run_id or "", unsupported)
    app, owned = application_of(agent, store, leases, chat)
    return app.aio.stream_embedded(
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
        owned=owned,
    )


def resume_stream_agent(
    agent: Agent,
    run_id: str,
    *,
    store: str | RunStore,
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
    checkpoint_version: Literal[3] | None = None,
) -> AgentStream:
    """The next leg of a stored run on the loop that reads it: the views of `stream_agent`, the arguments of `resume_agent`."""
    if (unsupported := check_record_version(checkpoint_version, store)) is not None:
        return _refused(agent, scope, run_id, unsupported)
    app, owned = application_of(agent, store, leases, chat)
    return app.aio.resume_stream_embedded(
        agent,
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
        owned=owned,
    )


def _refused(agent: Agent, scope: str, run_id: str, error: DeuzError) -> AgentStream:
    """A stream of nothing but the failed result."""

    async def work(_: Named) -> AgentResult[Any]:
        return refused(run_id, scope, agent.name, error)

    app, owned = application_of(agent, None)
    return AgentStream(EmbeddedSource(app, scope, run_id, agent.name, work, owned=owned))


def stream_agent_sync(agent: Agent, prompt: Content | None = None, **options: Any) -> Stream:
    """`stream_agent` for code without an event loop; the same arguments."""
    return Stream(stream_agent(agent, prompt, **options))


def resume_stream_agent_sync(agent: Agent, run_id: str, **options: Any) -> Stream:
    """`resume_stream_agent` for code without an event loop; the same arguments."""
    return Stream(resume_stream_agent(agent, run_id, **options))
