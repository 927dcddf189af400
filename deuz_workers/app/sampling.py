"""Model calls that MCP servers ask for: each is a run of its own, within the policy and the budgets of an execution context."""

from __future__ import annotations

import base64
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.execution import ExecutionContext
from deuz_workers.app.run_agent import application_of
from deuz_workers.core.failure import bounded
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import ImagePart, Message, Part, TextPart
from deuz_workers.errors import ConfigurationError, DeuzError, ExecutionPolicyError
from deuz_workers.ports.model import Model
from deuz_workers.ports.store import RunStore

DEFAULT_TOKENS = 1_024
"""Of an answer whose request names no limit."""
AGENT = "mcp-sampling"
"""Name of the agent whose runs these are."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What a server asks for, as `approve` sees it."""

    messages: tuple[Message, ...] = field(repr=False)
    system_prompt: str | None
    max_tokens: int
    """That the answer may have: what the server asks for, or less."""
    temperature: float | None = None


ApproveSampling = Callable[[SamplingRequest], object | Awaitable[object]]
"""True lets the model be asked; anything else, and whatever it raises, refuses."""


@dataclass(frozen=True, slots=True, eq=False)
class McpSampling:
    """Lets a server ask a model: `McpServer(..., sampling=McpSampling(...))`. Without it a server is not told that it may.

    A request is looked at by the policy of `execution` first, then by `approve`, and is then a run that reserves in the shared
    budgets of `execution`. A refusal is an error for the server and costs nothing.
    """

    model: str | Model
    execution: ExecutionContext
    """`context.narrowed(None, SharedBudget(...))` counts what servers ask for apart, within what `context` may spend."""
    store: str | RunStore
    """Where the runs and the budgets are: that of the application."""
    approve: ApproveSampling | None = None
    max_tokens: int = 4_096
    """A server may ask for less, not for more."""

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for what cannot be meant."""
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise ConfigurationError(f"max_tokens of McpSampling is a whole number from 1, not {self.max_tokens!r}")
        if self.approve is not None and not callable(self.approve):
            raise ConfigurationError(f"approve of McpSampling is a function, not a {type(self.approve).__name__}")
        self._agent(SamplingRequest((), None, self.max_tokens))

    async def answer(self, _: Any, asked: Any) -> Any:
        """What the client library calls with a server's request; the model's answer, or an error for the server."""
        import mcp_types

        try:
            request = self.request_of(asked.model_dump(by_alias=True, mode="json", exclude_none=True))
            text, model, is_cut_off = await self.sampled(request)
        except DeuzError as error:
            log.warning("sampling_refused error=%s", error.code)
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=bounded(error.message))
        content = mcp_types.TextContent(type="text", text=text)
        reason = "maxTokens" if is_cut_off else "endTurn"
        return mcp_types.CreateMessageResult(role="assistant", content=content, model=model, stop_reason=reason)

    def request_of(self, wire: Mapping[str, Any]) -> SamplingRequest:
        """As the protocol has it. Raises `ConfigurationError` for what cannot be asked for here."""
        if wire.get("tools"):
            raise ConfigurationError("a server may not bring tools for the model that it asks")
        wanted = wire.get("maxTokens")
        limit = wanted if type(wanted) is int and wanted > 0 else DEFAULT_TOKENS
        messages = tuple(_message(given) for given in wire.get("messages", ()))
        return SamplingRequest(messages, wire.get("systemPrompt"), min(limit, self.max_tokens), wire.get("temperature"))

    async def sampled(self, request: SamplingRequest) -> tuple[str, str, bool]:
        """Text of the answer, name of the model, and whether the answer was cut off.

        Raises `ExecutionPolicyError`, also where `approve` refuses, `DeuzError` for a run that failed.
        """
        agent, policy = self._agent(request), self.execution.policy
        app, owned = application_of(agent, self.store)
        try:
            policy.check_model(agent.model.name)
            if policy.deadline_ms is not None and await app.store.now_ms() >= policy.deadline_ms:
                raise ExecutionPolicyError("the deadline of what the server may ask for has passed", code="deadline_exceeded")
            if self.approve is not None and not await _allows(self.approve, request):
                raise ExecutionPolicyError("the request was not approved", code="sampling_not_approved")
            return await self._run(app, agent, request)
        finally:
            if owned:
                await app.aclose()

    async def _run(self, app: Deuz, agent: Agent, request: SamplingRequest) -> tuple[str, str, bool]:
        result = await app.aio.run_embedded(agent, messages=request.messages, **self.execution.options)
        if result.status != "completed":
            error = result.error or {}
            code = str(error.get("code") or result.reason or "sampling_failed")
            raise DeuzError(str(error.get("message") or f"the model did not answer: {result.reason}"), code=code)
        return result.text, agent.model.name, (result.stop_details or {}).get("finish_reason") == "length"

    def _agent(self, request: SamplingRequest) -> Agent:
        return Agent(
            AGENT,
            model=self.model,
            instructions=request.system_prompt,
            max_output_tokens=request.max_tokens,
            temperature=request.temperature,
            limits=Limits(max_steps=1),
            policy=self.execution.policy,
        )


async def _allows(approve: ApproveSampling, request: SamplingRequest) -> bool:
    try:
        said = approve(request)
        return (await said if inspect.isawaitable(said) else said) is True
    except Exception as error:  # noqa: BLE001 - whoever cannot say that it is right refuses
        log.warning("sampling_approve_failed error=%s", type(error).__name__)
        return False


def _message(given: Mapping[str, Any]) -> Message:
    blocks = given["content"] if isinstance(given["content"], list) else [given["content"]]
    return Message(given["role"], tuple(map(_part, blocks)))


def _part(block: Mapping[str, Any]) -> Part:
    match block.get("type"):
        case "text":
            return TextPart(str(block["text"]))
        case "image":
            return ImagePart(str(block["mimeType"]), base64.b64decode(block["data"]))
        case kind:
            raise ConfigurationError(f"a model is not asked about content of type {kind!r} here")
