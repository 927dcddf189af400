"""What an agent, a reducer and a swarm task are to the engine: looked up by name in every process, never stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from deuz_workers.core.change import TaskStatus
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import NOTHING
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.task_request import TaskRequest
from deuz_workers.core.usage import Budget
from deuz_workers.ports.catalog import Catalog, ToolServers
from deuz_workers.ports.compaction import CompactionPolicy
from deuz_workers.ports.context import MakeContext
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.guard import NO_GUARDRAILS, NO_STOPS, Guardrails, PrepareStep, StopWhen
from deuz_workers.ports.memory import Memory
from deuz_workers.ports.model import Model
from deuz_workers.ports.output import OutputType
from deuz_workers.ports.tool import CancelSignal, Tool
from deuz_workers.ports.verify import Verify

NO_TOOLS: Mapping[str, Tool] = MappingProxyType({})
NO_STATUSES: Mapping[str, TaskStatus] = MappingProxyType({})
NO_TEAM: Mapping[str, AgentDefinition] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """A call that needs an approval, as `approve_tool_call` sees it."""

    scope: str
    run_id: str
    agent: str
    step: int
    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, object]
    deps: Any = None


ApproveToolCall = Callable[[ToolCallRequest], object | Awaitable[object]]
"""True lets the call run; anything else, and whatever it raises, denies it."""


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    name: str
    model: Model
    instructions: str | None = None
    tools: Mapping[str, Tool] = field(default_factory=lambda: NO_TOOLS)
    limits: Limits = field(default_factory=Limits)
    max_output_tokens: int | None = None
    temperature: float | None = None
    model_extra: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    binding_id: str = "1"
    """Raised when the behaviour of tools changes although their schemas do not."""
    deps: Any = None
    make_context: MakeContext | None = None
    output: OutputType | None = None
    """What the answer has to be; None: the text of the last reply."""
    approve_tool_call: ApproveToolCall | None = None
    """Decides about gated calls here, in the step; None: the run is suspended and people decide."""
    policy: ExecutionPolicy = NO_POLICY
    """Of every run of the agent, as this process has it; no part of the binding, since it only narrows what runs began with."""
    guardrails: Guardrails = NO_GUARDRAILS
    prepare_step: PrepareStep | None = None
    stop_when: Mapping[str, StopWhen] = field(default_factory=lambda: NO_STOPS)
    """By the name that is reported."""
    verify: Verify | None = None
    """Says whether an answer is right; None: whatever has the right form is accepted."""
    execution_estimate: Budget | None = None
    """What one model call is reserved at, instead of the bound that is made from the length of its request."""
    compaction: CompactionPolicy | None = None
    """None: history is shortened only when a provider refuses it as too long."""
    fallback_models: tuple[Model, ...] = ()
    """Candidates of a call whose model fails before it answered, in this order; each has a name of its own."""
    memory: Memory | None = None
    """What its runs remember of earlier ones; a delegated run has none."""
    budget: Budget | None = None
    """Of one run, where nobody gives it another."""
    queue: str = "default"
    concurrency_key: str | None = None
    spawn: Spawn | None = None
    """Which tasks follow from an accepted output, where a run is a task of a swarm."""
    on_failure: OnFailure | None = None
    """Which tasks follow where it fails as one."""
    team: Mapping[str, AgentDefinition] = field(default_factory=lambda: NO_TEAM)
    """All others that a run of this agent may be handed to, by name, each with the tools that are its own."""
    transfers: Mapping[str, Tool] = field(default_factory=lambda: NO_TOOLS)
    """By whom they hand over to, the agent itself among them: the tools that `team` is reached by."""
    driver: str = ""
    """Whose model, instructions and tools these are, in a run that was handed over; empty: the agent's own."""
    mcp: ToolServers | None = None
    """Servers whose tools the agent has beside its own; None: there are none."""
    catalog: Catalog | None = None
    """What they offer, in the copy that a step goes on with; its tools are among `tools`."""

    @property
    def own_tools(self) -> Mapping[str, Tool]:
        """Those of the agent itself."""
        offered = NO_TOOLS if self.catalog is None else self.catalog.tools
        return self.tools if not offered else {name: tool for name, tool in self.tools.items() if tool is not offered.get(name)}

    @property
    def tool_deps(self) -> Any:
        """What its tools get: they are the driver's."""
        return self.team[self.driver].deps if self.driver else self.deps


def with_transfers(agent: AgentDefinition, own: Mapping[str, Tool], driver: str) -> dict[str, Tool]:
    """What the model of `driver` is offered in a run of `agent`: its own tools, and transfers to everybody else (HND-008)."""
    transfers = {tool.name: tool for to, tool in agent.transfers.items() if to != driver and tool.name not in own}
    return {**own, **transfers}


def driven(agent: AgentDefinition, driver: str) -> AgentDefinition:
    """`agent` as its run is executed while `driver` has it.

    How the model is asked and what it may call are the driver's. All else belongs to the run: limits, hooks, guardrails,
    approver, output type, verifier, compaction, fallbacks. What the driver's own policy forbids is forbidden meanwhile. Raises
    `KeyError` for somebody that no run of `agent` is handed to.
    """
    if driver == agent.name:
        return agent
    member = agent.team[driver]
    return replace(
        agent,
        model=member.model,
        instructions=member.instructions,
        tools=with_transfers(agent, member.tools, driver),
        max_output_tokens=member.max_output_tokens,
        temperature=member.temperature,
        model_extra=member.model_extra,
        binding_id=member.binding_id,
        execution_estimate=member.execution_estimate,
        policy=agent.policy.narrowed(member.policy),
        driver=driver,
    )


@dataclass(frozen=True, slots=True)
class ReducerContext:
    scope: str
    run_id: str
    task_id: str
    signal: CancelSignal
    settled: Mapping[str, TaskStatus] = field(default_factory=lambda: NO_STATUSES)
    """How every task that it waited for has ended."""
    execution: Execution = field(default_factory=Execution)
    """The bounds of the swarm and of this task, its time included."""
    requests: list[TaskRequest] = field(default_factory=list[TaskRequest])
    """What `spawn` was asked for so far."""

    def spawn(self, requests: Iterable[TaskRequest]) -> None:
        """These tasks exist from the moment at which this one is completed; nothing comes of them if it raises.

        They are checked then, with all others that it asks for: one that cannot be makes this task fail.
        """
        self.requests.extend(requests)


Reduce = Callable[[Mapping[str, object], ReducerContext], object | Awaitable[object]]
"""Results of the tasks it depends on, by task id, to one storable value."""


@dataclass(frozen=True, slots=True)
class SpawnContext:
    """What `spawn` of an agent is told beside the output."""

    scope: str
    run_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class FailureContext:
    """What `on_failure` of an agent or a reducer is told."""

    scope: str
    run_id: str
    task_id: str
    error: Mapping[str, object] | None
    """None: it was stopped."""
    reason: str | None
    """Of a stop, such as `max-steps`."""


Spawn = Callable[[Any, SpawnContext], Iterable[TaskRequest] | Awaitable[Iterable[TaskRequest]]]
OnFailure = Callable[[FailureContext], Iterable[TaskRequest] | Awaitable[Iterable[TaskRequest]]]


@dataclass(frozen=True, slots=True)
class ReducerDefinition:
    name: str
    reduce: Reduce
    replay_safe: bool = True
    """A reducer that dies half way runs again; False: its task waits for reconciliation instead."""
    timeout_ms: int = 900_000
    max_result_bytes: int = 5_000_000
    """Encoded size above which the value is refused."""
    policy: ExecutionPolicy = NO_POLICY
    budget: Budget | None = None
    on_failure: OnFailure | None = None
    """Which tasks follow where it fails."""


class Registry(Protocol):
    def agent(self, name: str) -> AgentDefinition | None: ...

    def reducer(self, name: str) -> ReducerDefinition | None: ...

    @property
    def names(self) -> frozenset[str]:
        """All that this process can run."""
        ...
