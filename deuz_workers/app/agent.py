"""Agents and reducers as an application writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

from deuz_workers.app.compaction import check_compaction
from deuz_workers.app.memory import check_memory
from deuz_workers.app.names import check_id, check_name
from deuz_workers.app.servers import servers_of
from deuz_workers.core.limits import Limits
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.usage import Budget, check_budget
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.catalog import OnCatalogChange
from deuz_workers.ports.compaction import CompactionPolicy
from deuz_workers.ports.context import MakeContext
from deuz_workers.ports.definition import AgentDefinition, ApproveToolCall, OnFailure, Spawn
from deuz_workers.ports.guard import NO_GUARDRAILS, Guardrails, PrepareStep, StopWhen
from deuz_workers.ports.mcp import McpClient
from deuz_workers.ports.memory import Memory
from deuz_workers.ports.model import Model
from deuz_workers.ports.output import OutputType
from deuz_workers.ports.tool import Tool
from deuz_workers.ports.verify import Verify
from deuz_workers.tools.decorator import tool
from deuz_workers.tools.mcp.pool import McpPool
from deuz_workers.tools.mcp.server import McpServer
from deuz_workers.tools.output import Output
from deuz_workers.tools.transfer import TransferTool

F = TypeVar("F")

NO_EXTRA: Mapping[str, object] = {}


class Agent:
    """A model with instructions and tools, found by its name in every process. Never stored; runs refer to the name.

    The same definition has to be there wherever its runs go on: model, tools and their schemas are compared with what a run
    began with, and a process whose agent differs leaves the run to others.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str | Model,
        instructions: str | None = None,
        tools: Iterable[Tool | Callable[..., Any] | Agent] = (),
        limits: Limits | None = None,
        max_output_tokens: int | None = None,
        temperature: float | None = None,
        model_extra: Mapping[str, object] = NO_EXTRA,
        budget: Budget | None = None,
        queue: str = "default",
        concurrency_key: str | None = None,
        binding_id: str = "1",
        deps: Any = None,
        output_type: Any = None,
        guardrails: Guardrails = NO_GUARDRAILS,
        prepare_step: PrepareStep | None = None,
        stop_when: StopWhen | Iterable[StopWhen] = (),
        make_context: MakeContext | None = None,
        approve_tool_call: ApproveToolCall | None = None,
        verify: Verify | None = None,
        policy: ExecutionPolicy = NO_POLICY,
        compaction: Literal["auto"] | CompactionPolicy | None = None,
        fallback_models: Iterable[str | Model] = (),
        execution_estimate: Budget | None = None,
        memory: Memory | None = None,
        spawn: Spawn | None = None,
        on_failure: OnFailure | None = None,
        handoffs: Iterable[Agent | str | TransferTool] = (),
        mcp: Iterable[McpServer | McpClient] = (),
        on_catalog_change: OnCatalogChange = "stop",
        mcp_pool: McpPool | None = None,
    ) -> None:
        """Nothing is connected or sent.

        Args:
            model: `provider:model`, or an object that implements `Model`.
            instructions: system message of every request.
            tools: functions, which become tools by their signature, what `@tool` and `tool_from_schema` made, or agents, to
                which calls are delegated as `agent_tool` says.
            limits: of every run of this agent, see `Limits`.
            model_extra: further fields of the vendor's request body.
            budget: what one run may spend; a run that names its own replaces it.
            queue: where workers find its runs.
            concurrency_key: of its runs in a scope, only as many run at a time as this key has slots; a run may name another.
            binding_id: raised when tools behave differently under the same schema; older runs then stay with older workers.
            approve_tool_call: decides about calls that need an approval, here and at once, instead of people: True lets the
                call run, anything else and whatever it raises denies it.
            deps: what tools find as `ToolContext.deps`; made anew in every process, never stored.
            output_type: what the answer has to be: a pydantic model, dataclass, TypedDict or other type, or an `Output`, which
                also takes a JSON Schema with a validator. The run then ends with an `output` of that type; None: with a text.
            guardrails: what input, calls, results and the answer have to pass.
            prepare_step: takes `StepInfo` before every model call of the tool loop, returns a `StepPlan` or None.
            stop_when: conditions on `StepInfo`, any of which ends the run before the next model call of the loop.
            make_context: takes `RunFacts`, returns `RunContext(tools={tool name: value}, runtime=value)` for tools and hooks of
                one run; asked in every process that works on it. It may be a coroutine function. Never stored.
            verify: takes the output and a `VerifyContext`, returns `Verified`, `Rejected(feedback)` or `Inconclusive`; nothing
                completes without its word. It must be idempotent, since it is asked again after a crash.
            compaction: keeps the history within the window of the model, which the model object or the policy says; 'auto' is
                `CompactionPolicy()`. None: only a history that a provider refused is shortened, once.
            execution_estimate: what one model call is reserved at, in tokens, usd or both, instead of the bound that is made
                from the length of its request; for calls that use far less, and for models without a price.
            policy: what every run of the agent may do. A run keeps what it began with and only ever gets narrower, so a wider
                policy in a later release reaches new runs alone.
            fallback_models: each like `model`, in the order in which they are asked where the model of a call fails before it
                has answered anything. One that failed is not called again in that run. See docs/failover.md.
            memory: what its runs recall before they begin, and what is extracted from those that complete. See docs/memory.md.
            spawn: of a run that is a task of a swarm: takes the accepted output and a `SpawnContext`, returns `TaskRequest`s,
                which become tasks with the end of this one.
            on_failure: the same where it fails, with a `FailureContext`.
            handoffs: whom its runs may be handed over to, who then go on with the conversation: agents, names of those that the
                application has, or what `handoff` made. See docs/handoffs.md.
            mcp: servers whose tools the agent has beside its own, or connected clients. See docs/mcp.md.
            on_catalog_change: what becomes of a run whose servers offer other tools than it recorded: `stop` ends it, or
                refuses to take it up; `accept` records the new ones and goes on.
            mcp_pool: owns the connections; None: each worker process keeps them, and a run that is driven in a process of its
                own closes them when it ends.

        Raises: ConfigurationError, naming the agent and the value.
        """
        self.name = check_name("an agent", name)
        self.queue = check_name(f"agent {name!r}: the queue", queue)
        self.concurrency_key = None if concurrency_key is None else check_id("a concurrency key", concurrency_key)
        self.budget = _budget(name, budget)
        self.handoffs = _handoffs(name, handoffs)
        made = _model(name, model)
        fallbacks = _fallbacks(name, made, fallback_models)
        self.definition = AgentDefinition(
            name=name,
            model=made,
            instructions=_text(name, "instructions", instructions),
            tools=_tools(name, tools),
            limits=_limits(name, limits),
            max_output_tokens=_count(name, "max_output_tokens", max_output_tokens),
            temperature=_number(name, "temperature", temperature),
            model_extra=dict(model_extra),
            binding_id=_text(name, "binding_id", binding_id) or "1",
            deps=deps,
            output=_output(output_type),
            guardrails=_guardrails(name, guardrails),
            prepare_step=_function(name, "prepare_step", prepare_step),
            stop_when=_stops(name, stop_when),
            make_context=_function(name, "make_context", make_context),
            approve_tool_call=_function(name, "approve_tool_call", approve_tool_call),
            verify=_function(name, "verify", verify),
            policy=check_policy(f"agent {name!r}", policy) or NO_POLICY,
            compaction=None if compaction is None else check_compaction(name, compaction, (made, *fallbacks)),
            fallback_models=fallbacks,
            execution_estimate=None if execution_estimate is None else check_budget(f"agent {name!r}", execution_estimate),
            memory=check_memory(name, memory),
            budget=self.budget,
            queue=self.queue,
            concurrency_key=self.concurrency_key,
            spawn=_function(name, "spawn", spawn),
            on_failure=_function(name, "on_failure", on_failure),
            mcp=servers_of(name, mcp, on_catalog_change, mcp_pool),
        )

    @property
    def model(self) -> Model:
        return self.definition.model

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self.definition.tools

    @property
    def limits(self) -> Limits:
        return self.definition.limits

    def as_tool(self, **options: Any) -> Tool:
        """This agent as a tool of others: see `agent_tool`, which takes the same options."""
        from deuz_workers.app.subagents import agent_tool

        return agent_tool(self, **options)

    def __repr__(self) -> str:
        return f"<Agent {self.name!r} {self.model.name}, {len(self.tools)} tools>"


def _model(agent: str, model: object) -> Model:
    if isinstance(model, str):
        from deuz_workers.providers import model_from_name

        return model_from_name(model)
    if not callable(getattr(model, "call", None)) or not isinstance(getattr(model, "name", None), str):
        raise ConfigurationError(
            f"agent {agent!r}: model is a {type(model).__name__}; pass 'provider:model' or an object with `name` and `call`"
        )
    return cast(Model, model)


def _fallbacks(agent: str, model: Model, given: object) -> tuple[Model, ...]:
    """Raises `ConfigurationError` for two candidates of one name: records and budgets tell them apart by it."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"agent {agent!r}: fallback_models is a list of models, not a {type(given).__name__}")
    fallbacks = tuple(_model(agent, each) for each in cast(Iterable[object], given))
    names = [model.name, *(fallback.name for fallback in fallbacks)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(
            f"agent {agent!r}: {twice!r} is there twice among model and fallback_models; give one another provider name"
        )
    return fallbacks


def _handoffs(agent: str, given: Iterable[Agent | str | TransferTool]) -> tuple[TransferTool, ...]:
    from deuz_workers.app.handoffs import handoffs_of

    return handoffs_of(agent, given)


def _tools(agent: str, given: Iterable[Tool | Callable[..., Any] | Agent]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for item in given:
        item = item.as_tool() if isinstance(item, Agent) else item
        made = cast(Tool, item if _is_tool(item) else _from_function(agent, item))
        if made.name in found:
            raise ConfigurationError(
                f"agent {agent!r} has two tools named {made.name!r}; give one of them another with @tool(name=...)"
            )
        found[made.name] = made
    return found


def _is_tool(item: object) -> bool:
    return all(hasattr(item, part) for part in ("name", "spec", "replay", "validate", "run", "project"))


def _from_function(agent: str, item: object) -> object:
    if not callable(item):
        raise ConfigurationError(f"agent {agent!r}: a {type(item).__name__} is no tool; pass functions or what @tool made")
    return tool(item)


def _limits(agent: str, limits: Limits | None) -> Limits:
    limits = limits or Limits()
    for name, value in limits.to_record().items():
        least = 0 if name in ("max_retries", "max_reruns", "max_handoffs") else 1
        if type(value) is not int or value < least:
            raise ConfigurationError(f"agent {agent!r}: limit {name} is a whole number from {least}, not {value!r}")
    return limits


def _budget(agent: str, budget: Budget | None) -> Budget | None:
    return None if budget is None else check_budget(f"agent {agent!r}", budget)


def check_policy(whose: str, policy: object) -> ExecutionPolicy | None:
    """The policy. Raises `ConfigurationError` for what is none."""
    if policy is not None and not isinstance(policy, ExecutionPolicy):
        raise ConfigurationError(f"{whose}: the policy is a {type(policy).__name__}; pass ExecutionPolicy(allowed_tools=...)")
    return policy


def _output(given: object) -> OutputType | None:
    return given if given is None or isinstance(given, Output) else Output(given)


def _guardrails(agent: str, given: object) -> Guardrails:
    """Raises ConfigurationError for what is none, or for a guardrail that is no function."""
    if not isinstance(given, Guardrails):
        raise ConfigurationError(f"agent {agent!r}: guardrails is a {type(given).__name__}; pass Guardrails(on_input=...)")
    for hook in ("on_input", "on_tool_call", "on_tool_result", "on_output"):
        for rail in getattr(given, hook):
            _function(agent, f"each guardrail of {hook}", rail)
    return given


def _stops(agent: str, given: StopWhen | Iterable[StopWhen]) -> dict[str, StopWhen]:
    conditions = (given,) if callable(given) else tuple(given)
    for condition in conditions:
        _function(agent, "each condition of stop_when", condition)
    return {getattr(condition, "__name__", type(condition).__name__): condition for condition in conditions}


def _function(agent: str, what: str, value: F) -> F:
    if value is not None and not callable(value):
        raise ConfigurationError(f"agent {agent!r}: {what} is a function, not a {type(value).__name__}")
    return value


def _text(agent: str, what: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"agent {agent!r}: {what} is text, not a {type(value).__name__}")
    return value


def _count(agent: str, what: str, value: object) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigurationError(f"agent {agent!r}: {what} is a whole number from 1, not {value!r}")
    return value


def _number(agent: str, what: str, value: object) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigurationError(f"agent {agent!r}: {what} is a number, not a {type(value).__name__}")
    return value
