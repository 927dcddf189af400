"""Durable LLM agent runs and swarms on Celery, Redis and Postgres.

::

    from deuz_workers import Agent, Deuz, tool

    @tool(replay="idempotent")
    def weather(city: str) -> str:
        "The weather in a city."
        ...

    app = Deuz([Agent("guide", model="openai:gpt-5-mini", tools=[weather])])
    print(app.enqueue("guide", "What to wear in Oslo?").result(timeout=60).output)

Names are imported at their first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from deuz_workers.errors import (
    AdmissionFailedError,
    AgentRunLeaseError,
    AnswerConflictError,
    AnswerRefusedError,
    BudgetLedgerError,
    CheckpointVersionError,
    CodecError,
    ConfigurationError,
    DeadlinePassed,
    DeuzError,
    EgressRefusedError,
    EnqueueRefusedError,
    ExecutionPolicyError,
    ForkRefusedError,
    HookError,
    Interruption,
    LeaseLost,
    LeaseStoreUnavailableError,
    LedgerContendedError,
    LoopDiedError,
    McpUnavailableError,
    MemoryReplyError,
    MigrationMissingError,
    ModelAuthenticationError,
    ModelBreakerOpenError,
    ModelContextOverflowError,
    ModelError,
    ModelNotFoundError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelStreamBrokenError,
    ModelTimeoutError,
    ModelUnavailableError,
    OutputError,
    ReconciliationError,
    ResultTimeoutError,
    RetryRefusedError,
    RevisionConflictError,
    RunCancelled,
    RunContextError,
    RunExistsError,
    RunFailedError,
    RunFileError,
    RunNotEndedError,
    RunNotFoundError,
    SchemaTooNewError,
    ScopeMismatchError,
    ServerUnavailableError,
    SpawnRefusedError,
    StoreContendedError,
    StoreError,
    StoreUnavailableError,
    SwarmConflictError,
    SwarmDefinitionError,
    SwarmTaskTimeout,
    ToolArgumentsError,
    ToolContextError,
    ToolError,
    ToolResultError,
    UnknownAgentError,
    UnknownToolError,
    UnsupportedPoolError,
    UnsupportedStoreError,
)

if TYPE_CHECKING:
    from deuz_workers.app.agent import Agent
    from deuz_workers.app.agent_stream import AgentStream
    from deuz_workers.app.async_handle import AsyncHandle
    from deuz_workers.app.async_swarm_handle import AsyncSwarmHandle
    from deuz_workers.app.chat import Chat
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.app.execution import ExecutionContext, create_execution_context
    from deuz_workers.app.handle import Handle, SwarmHandle
    from deuz_workers.app.handoffs import handoff
    from deuz_workers.app.pending import PendingApproval, PendingClientCall
    from deuz_workers.app.producer_key import ProducerKey
    from deuz_workers.app.reducer import Reducer, reducer
    from deuz_workers.app.repair import RunRepair
    from deuz_workers.app.report import RunReport, inspect_run
    from deuz_workers.app.results import AgentResult, UnknownEffect
    from deuz_workers.app.run_agent import (
        reconcile_agent_run,
        resume_agent,
        resume_agent_sync,
        run_agent,
        run_agent_sync,
    )
    from deuz_workers.app.sampling import McpSampling, SamplingRequest
    from deuz_workers.app.settings import Settings
    from deuz_workers.app.stream import Stream
    from deuz_workers.app.stream_agent import (
        resume_stream_agent,
        resume_stream_agent_sync,
        stream_agent,
        stream_agent_sync,
    )
    from deuz_workers.app.stream_events import (
        ArgumentsDelta,
        Discard,
        GuardrailPart,
        HandoffPart,
        Missed,
        OutputDraft,
        OutputElement,
        PartEvent,
        PhaseEvent,
        ReasoningDelta,
        ResultEvent,
        SubAgentPart,
        TextDelta,
        ToolOutput,
        WarningPart,
    )
    from deuz_workers.app.subagents import agent_tool
    from deuz_workers.app.swarm import Swarm, Task
    from deuz_workers.app.swarm_event import SwarmEvent
    from deuz_workers.app.swarm_result import SwarmResult
    from deuz_workers.app.ui_state import AgentState, agent_state_from_parts
    from deuz_workers.app.webhook_request import verify_asgi, verify_wsgi
    from deuz_workers.core.accounting import Accounting, Amount
    from deuz_workers.core.approval import Approval
    from deuz_workers.core.budget_warning import BudgetWarning
    from deuz_workers.core.catalog import ToolDrift, detect_tool_drift, fingerprint_tools
    from deuz_workers.core.chat import ChatRecord
    from deuz_workers.core.dynamic_limits import DynamicLimits
    from deuz_workers.core.limits import Limits
    from deuz_workers.core.memory import MemoryQuery, MemoryRecord, MemoryScope
    from deuz_workers.core.messages import FilePart, ImagePart, Message, TextPart
    from deuz_workers.core.policy import ExecutionPolicy
    from deuz_workers.core.shared_budget import SharedBudget, Window
    from deuz_workers.core.signature import sign_order
    from deuz_workers.core.task_request import TaskRequest
    from deuz_workers.core.usage import Budget, Usage
    from deuz_workers.core.webhook_check import (
        SignedRequest,
        UnsignedRequest,
        verify_github_webhook,
        verify_hmac_signature,
        verify_slack_request,
        verify_webhook,
    )
    from deuz_workers.ports.chat import ChatStore, ConditionalChatStore
    from deuz_workers.ports.compaction import CompactionPolicy
    from deuz_workers.ports.context import RunContext, RunFacts
    from deuz_workers.ports.definition import FailureContext, ReducerContext, SpawnContext, ToolCallRequest
    from deuz_workers.ports.guard import (
        Block,
        GuardContext,
        Guardrails,
        Rewrite,
        StepInfo,
        StepPlan,
        cost_above,
        tokens_above,
    )
    from deuz_workers.ports.mcp import McpClient, McpConnectionLost
    from deuz_workers.ports.memory import Embedding, Memory, MemoryReply, MemorySeams, MemoryStore
    from deuz_workers.ports.tool import ToolContext
    from deuz_workers.ports.verify import Inconclusive, Rejected, Verified, VerifyContext
    from deuz_workers.providers.anthropic.model import AnthropicModel
    from deuz_workers.providers.chat.model import ChatCompletionsModel
    from deuz_workers.providers.gemini.model import GeminiModel
    from deuz_workers.providers.http import Timeouts
    from deuz_workers.providers.mock import MockModel
    from deuz_workers.providers.prices import Price
    from deuz_workers.providers.responses.model import ResponsesModel
    from deuz_workers.tools.client import client_tool
    from deuz_workers.tools.decorator import tool, tool_from_schema
    from deuz_workers.tools.mcp.pool import McpPool, connect_mcp
    from deuz_workers.tools.mcp.server import McpReconnect, McpServer
    from deuz_workers.tools.output import Output

__all__ = [
    "Accounting",
    "AdmissionFailedError",
    "Agent",
    "AgentResult",
    "AgentRunLeaseError",
    "AgentState",
    "AgentStream",
    "Amount",
    "AnswerConflictError",
    "AnswerRefusedError",
    "AnthropicModel",
    "Approval",
    "ArgumentsDelta",
    "AsyncHandle",
    "AsyncSwarmHandle",
    "Block",
    "Budget",
    "BudgetLedgerError",
    "BudgetWarning",
    "Chat",
    "ChatCompletionsModel",
    "ChatRecord",
    "ChatStore",
    "CheckpointVersionError",
    "CodecError",
    "CompactionPolicy",
    "ConditionalChatStore",
    "ConfigurationError",
    "DeadlinePassed",
    "Deuz",
    "DeuzError",
    "Discard",
    "DynamicLimits",
    "EgressRefusedError",
    "Embedding",
    "EnqueueRefusedError",
    "ExecutionContext",
    "ExecutionPolicy",
    "ExecutionPolicyError",
    "FailureContext",
    "FilePart",
    "ForkRefusedError",
    "GeminiModel",
    "GuardContext",
    "GuardrailPart",
    "Guardrails",
    "Handle",
    "HandoffPart",
    "HookError",
    "ImagePart",
    "Inconclusive",
    "Interruption",
    "LeaseLost",
    "LeaseStoreUnavailableError",
    "LedgerContendedError",
    "Limits",
    "LoopDiedError",
    "McpClient",
    "McpConnectionLost",
    "McpPool",
    "McpReconnect",
    "McpSampling",
    "McpServer",
    "McpUnavailableError",
    "Memory",
    "MemoryQuery",
    "MemoryRecord",
    "MemoryReply",
    "MemoryReplyError",
    "MemoryScope",
    "MemorySeams",
    "MemoryStore",
    "Message",
    "MigrationMissingError",
    "Missed",
    "MockModel",
    "ModelAuthenticationError",
    "ModelBreakerOpenError",
    "ModelContextOverflowError",
    "ModelError",
    "ModelNotFoundError",
    "ModelRateLimitedError",
    "ModelRequestError",
    "ModelResponseError",
    "ModelStreamBrokenError",
    "ModelTimeoutError",
    "ModelUnavailableError",
    "Output",
    "OutputDraft",
    "OutputElement",
    "OutputError",
    "PartEvent",
    "PendingApproval",
    "PendingClientCall",
    "PhaseEvent",
    "Price",
    "ProducerKey",
    "ReasoningDelta",
    "ReconciliationError",
    "Reducer",
    "ReducerContext",
    "Rejected",
    "ResponsesModel",
    "ResultEvent",
    "ResultTimeoutError",
    "RetryRefusedError",
    "RevisionConflictError",
    "Rewrite",
    "RunCancelled",
    "RunContext",
    "RunContextError",
    "RunExistsError",
    "RunFacts",
    "RunFailedError",
    "RunFileError",
    "RunNotEndedError",
    "RunNotFoundError",
    "RunRepair",
    "RunReport",
    "SamplingRequest",
    "SchemaTooNewError",
    "ScopeMismatchError",
    "ServerUnavailableError",
    "Settings",
    "SharedBudget",
    "SignedRequest",
    "SpawnContext",
    "SpawnRefusedError",
    "StepInfo",
    "StepPlan",
    "StoreContendedError",
    "StoreError",
    "StoreUnavailableError",
    "Stream",
    "SubAgentPart",
    "Swarm",
    "SwarmConflictError",
    "SwarmDefinitionError",
    "SwarmEvent",
    "SwarmHandle",
    "SwarmResult",
    "SwarmTaskTimeout",
    "Task",
    "TaskRequest",
    "TextDelta",
    "TextPart",
    "Timeouts",
    "ToolArgumentsError",
    "ToolCallRequest",
    "ToolContext",
    "ToolContextError",
    "ToolDrift",
    "ToolError",
    "ToolOutput",
    "ToolResultError",
    "UnknownAgentError",
    "UnknownEffect",
    "UnknownToolError",
    "UnsignedRequest",
    "UnsupportedPoolError",
    "UnsupportedStoreError",
    "Usage",
    "Verified",
    "VerifyContext",
    "WarningPart",
    "Window",
    "agent_state_from_parts",
    "agent_tool",
    "client_tool",
    "connect_mcp",
    "cost_above",
    "create_execution_context",
    "detect_tool_drift",
    "fingerprint_tools",
    "handoff",
    "inspect_run",
    "reconcile_agent_run",
    "reducer",
    "resume_agent",
    "resume_agent_sync",
    "resume_stream_agent",
    "resume_stream_agent_sync",
    "run_agent",
    "run_agent_sync",
    "sign_order",
    "stream_agent",
    "stream_agent_sync",
    "tokens_above",
    "tool",
    "tool_from_schema",
    "verify_asgi",
    "verify_github_webhook",
    "verify_hmac_signature",
    "verify_slack_request",
    "verify_webhook",
    "verify_wsgi",
]

_HOMES = {
    "app.agent": ("Agent",),
    "app.agent_stream": ("AgentStream",),
    "app.async_handle": ("AsyncHandle",),
    "app.async_swarm_handle": ("AsyncSwarmHandle",),
    "app.chat": ("Chat",),
    "app.deuz": ("Deuz",),
    "app.execution": ("ExecutionContext", "create_execution_context"),
    "app.handle": ("Handle", "SwarmHandle"),
    "app.handoffs": ("handoff",),
    "app.pending": ("PendingApproval", "PendingClientCall"),
    "app.producer_key": ("ProducerKey",),
    "app.reducer": ("Reducer", "reducer"),
    "app.report": ("RunReport", "inspect_run"),
    "app.results": ("AgentResult", "UnknownEffect"),
    "app.repair": ("RunRepair",),
    "app.run_agent": ("reconcile_agent_run", "resume_agent", "resume_agent_sync", "run_agent", "run_agent_sync"),
    "app.sampling": ("McpSampling", "SamplingRequest"),
    "app.settings": ("Settings",),
    "app.stream": ("Stream",),
    "app.stream_agent": ("resume_stream_agent", "resume_stream_agent_sync", "stream_agent", "stream_agent_sync"),
    "app.stream_events": (
        "ArgumentsDelta",
        "Discard",
        "GuardrailPart",
        "HandoffPart",
        "Missed",
        "OutputDraft",
        "OutputElement",
        "PartEvent",
        "PhaseEvent",
        "ReasoningDelta",
        "ResultEvent",
        "SubAgentPart",
        "TextDelta",
        "ToolOutput",
        "WarningPart",
    ),
    "app.subagents": ("agent_tool",),
    "app.swarm": ("Swarm", "Task"),
    "app.swarm_event": ("SwarmEvent",),
    "app.swarm_result": ("SwarmResult",),
    "app.ui_state": ("AgentState", "agent_state_from_parts"),
    "core.accounting": ("Accounting", "Amount"),
    "core.approval": ("Approval",),
    "core.budget_warning": ("BudgetWarning",),
    "core.chat": ("ChatRecord",),
    "core.dynamic_limits": ("DynamicLimits",),
    "core.catalog": ("ToolDrift", "detect_tool_drift", "fingerprint_tools"),
    "core.limits": ("Limits",),
    "core.memory": ("MemoryQuery", "MemoryRecord", "MemoryScope"),
    "core.messages": ("FilePart", "ImagePart", "Message", "TextPart"),
    "core.policy": ("ExecutionPolicy",),
    "core.shared_budget": ("SharedBudget", "Window"),
    "core.signature": ("sign_order",),
    "core.task_request": ("TaskRequest",),
    "core.usage": ("Budget", "Usage"),
    "core.webhook_check": (
        "SignedRequest",
        "UnsignedRequest",
        "verify_github_webhook",
        "verify_hmac_signature",
        "verify_slack_request",
        "verify_webhook",
    ),
    "app.webhook_request": ("verify_asgi", "verify_wsgi"),
    "ports.chat": ("ChatStore", "ConditionalChatStore"),
    "ports.compaction": ("CompactionPolicy",),
    "ports.context": ("RunContext", "RunFacts"),
    "ports.definition": ("FailureContext", "ReducerContext", "SpawnContext", "ToolCallRequest"),
    "ports.guard": (
        "Block",
        "GuardContext",
        "Guardrails",
        "Rewrite",
        "StepInfo",
        "StepPlan",
        "cost_above",
        "tokens_above",
    ),
    "ports.memory": ("Embedding", "Memory", "MemoryReply", "MemorySeams", "MemoryStore"),
    "ports.mcp": ("McpClient", "McpConnectionLost"),
    "ports.tool": ("ToolContext",),
    "ports.verify": ("Inconclusive", "Rejected", "Verified", "VerifyContext"),
    "providers.anthropic.model": ("AnthropicModel",),
    "providers.chat.model": ("ChatCompletionsModel",),
    "providers.http": ("Timeouts",),
    "providers.gemini.model": ("GeminiModel",),
    "providers.mock": ("MockModel",),
    "providers.prices": ("Price",),
    "providers.responses.model": ("ResponsesModel",),
    "tools.client": ("client_tool",),
    "tools.decorator": ("tool", "tool_from_schema"),
    "tools.mcp.pool": ("McpPool", "connect_mcp"),
    "tools.mcp.server": ("McpReconnect", "McpServer"),
    "tools.output": ("Output",),
}
"""Module below the package: the public names that live there."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'deuz_workers' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"deuz_workers.{home}"), name)
    globals()[name] = found  # found without this function from now on
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
