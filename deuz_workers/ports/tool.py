"""A tool: what the engine knows of it, and what a running call is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from deuz_workers.core.approval import Approval
from deuz_workers.core.messages import Message
from deuz_workers.core.usage import Budget
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.model import ToolSpec


class CancelSignal(Protocol):
    """Set when the call should end: the run was cancelled, its lease lost, its limit passed. Readable from any thread."""

    @property
    def is_set(self) -> bool: ...

    def raise_if_set(self) -> None:
        """Raises the `Interruption` that says why."""
        ...

    def wait(self, timeout_ms: int) -> bool:
        """Block this thread until it is set, at most `timeout_ms`; True if it is set. For sync tools."""
        ...


@dataclass(frozen=True, slots=True)
class Delegation:
    """A tool that another agent does, in a run of its own."""

    agent: str
    """Name of the agent, known wherever its runs are executed."""
    max_depth: int = 2
    """How deep below the root the runs of its calls may be; the model of a deeper one is told that it may not delegate."""
    stream: Literal["all", "none"] = "all"
    """Whether readers of the root's stream are told what happens in its runs."""
    budget: Budget | None = None
    """Of each of its runs, beside those above; None: the agent's own."""
    concurrency_key: str | None = None


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running tool call knows. `(run_id, model_step, tool_call_id)` is the same when the call is repeated."""

    scope: str
    run_id: str
    agent: str
    model_step: int
    """Number of the root turn in which the call was issued, from 1."""
    tool_call_id: str
    tool_name: str
    attempt: int
    """1, and one more for every repetition of an idempotent call after an interruption."""
    deadline_in_ms: int | None
    """Until the run's deadline, when the call started."""
    signal: CancelSignal
    deps: Any = field(default=None, repr=False)
    """What the application registered for this agent's tools; never stored. None for a tool with a `context_schema`."""
    context: Any = field(default=None, repr=False)
    """The tool's own entry of `tools_context`, as its schema and validator made it; never stored."""
    runtime_context: Any = field(default=None, repr=False)
    """The run's, as it was given; never stored. None for a tool with a `context_schema`."""
    messages: Sequence[Message] = field(default=(), repr=False)
    """The conversation, the turn that issued the call included."""
    agent_path: tuple[str, ...] = ()
    """From the root agent of the run to the one that issued the call."""
    execution: Execution = field(default_factory=Execution)
    """Bounds of the run; hand a `child` of it on to runs that the tool starts, so that they count for this one."""

    @property
    def idempotency_key(self) -> str:
        """One string for the call: give it to services that take such a key."""
        return f"{self.run_id}/{self.model_step}/{self.tool_call_id}"


class Tool(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def replay(self) -> Literal["idempotent"] | None:
        """`idempotent`: may run again after an interruption under the same key."""
        ...

    @property
    def timeout_ms(self) -> int | None: ...

    @property
    def has_projection(self) -> bool:
        """User code runs on the raw result (`output_schema`, `validate_result`, `to_model_output`): it is committed before."""
        ...

    @property
    def max_result_bytes(self) -> int:
        """Encoded size above which the result is refused as a tool error."""
        ...

    @property
    def has_predicate(self) -> bool:
        """`needs_approval` runs code of the user's, which may wait."""
        ...

    @property
    def approval(self) -> Approval:
        """Who has to approve, and how long the request stands."""
        ...

    @property
    def is_client(self) -> bool:
        """A client executes it, outside: its calls are listed, and its results are answers. `run` is never called."""
        ...

    @property
    def delegation(self) -> Delegation | None:
        """Another agent does its calls, as runs of their own; `run` is never called. None: here, or a client executes it."""
        ...

    @property
    def transfers_to(self) -> str | None:
        """Name of the agent that an accepted call hands the run over to; None: it hands over to nobody."""
        ...

    def needs_approval(self, arguments: Mapping[str, object], context: ToolContext | None = None) -> bool:
        """A predicate of the user's that raises counts as True."""
        ...

    @property
    def is_scoped(self) -> bool:
        """It declares what its context is, and sees of the application's values that context alone."""
        ...

    def read_context(self, value: Any) -> Any:
        """What calls of a scoped tool get as `ToolContext.context`.

        Raises `ToolContextError`, which names places and repeats no value, and whatever the user's `validate_context` does.
        """
        ...

    def validate(self, arguments: Mapping[str, object]) -> None:
        """Raises `ToolArgumentsError` that tells the model what to change."""
        ...

    async def run(self, arguments: Mapping[str, object], context: ToolContext) -> object:
        """Execute. What the user's function raises comes out as it is; sync functions run in a thread."""
        ...

    def project(self, value: object) -> str:
        """Text for the model, made from the raw value.

        Raises `ToolResultError` where the value misses its schema or `validate_result` refuses it, otherwise whatever the
        user's `to_model_output` raises. Text of the same value is the same, live or read back from its receipt.
        """
        ...
