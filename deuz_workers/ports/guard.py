"""Hooks of an agent: guardrails, what prepares a step, what ends the loop. Looked up by the agent's name, never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deuz_workers.core.messages import Message, ToolUsePart
from deuz_workers.core.usage import Usage
from deuz_workers.ports.model import Model, ToolChoice

GuardHook = Literal["on_input", "on_tool_call", "on_tool_result", "on_output"]


@dataclass(frozen=True, slots=True)
class Block:
    """The input is refused, the call does not run, the result or the answer is withheld."""

    reason: str = "no reason given"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Go on with this value instead: a text, or arguments of a call."""

    value: Any


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What a guardrail knows beside the value."""

    scope: str
    run_id: str
    agent: str
    step: int
    messages: Sequence[Message] = field(repr=False)
    runtime_context: Any = field(default=None, repr=False)
    call: ToolUsePart | None = None
    """The call as the model asked for it; None for input and output."""
    active_agent: str = ""
    """Name of the agent that drives the run: its own, or whom it was handed over to."""


Guardrail = Callable[[Any, GuardContext], Any]
"""Returns None to pass, `Block` or `Rewrite`; may be a coroutine function. It must be pure: it is asked again on a resume, and
its newer verdict counts. What it raises fails the run."""


Rails = Guardrail | Iterable[Guardrail]
"""What a hook is given: one function, or a list of them."""


@dataclass(frozen=True, slots=True, init=False)
class Guardrails:
    """In listed order, each on what the one before made of the value, up to the first block."""

    on_input: tuple[Guardrail, ...]
    """Text of the newest user message, once per leg before its first model call."""
    on_tool_call: tuple[Guardrail, ...]
    """Arguments of a call, before approval."""
    on_tool_result: tuple[Guardrail, ...]
    """Text for the model; the receipt keeps the result as it is."""
    on_output: tuple[Guardrail, ...]
    """Text of the accepted answer."""

    def __init__(
        self, *, on_input: Rails = (), on_tool_call: Rails = (), on_tool_result: Rails = (), on_output: Rails = ()
    ) -> None:
        """Each hook takes one function or a list of them."""
        given = {"on_input": on_input, "on_tool_call": on_tool_call, "on_tool_result": on_tool_result, "on_output": on_output}
        for hook, rails in given.items():
            object.__setattr__(self, hook, (rails,) if callable(rails) else tuple(rails))


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What hooks of the tool loop know before a model call."""

    scope: str
    run_id: str
    agent: str
    step: int
    """Number of the turn that is about to begin."""
    messages: Sequence[Message] = field(repr=False)
    usage: Usage
    """Of the run so far."""
    runtime_context: Any = field(default=None, repr=False)
    active_agent: str = ""
    """Name of the agent that drives the run: its own, or whom it was handed over to."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What `prepare_step` wants to be different; None: as it is."""

    messages: Sequence[Message] | None = None
    """The history from here on, for all later steps."""
    active_tools: Sequence[str] | None = None
    """Names of the tools that this step offers."""
    tool_choice: ToolChoice | None = None
    """Of this step."""
    model: Model | None = None
    """Of this step; it is what the call is priced by."""


PrepareStep = Callable[[StepInfo], Any]
"""Returns a `StepPlan` or None; may be a coroutine function."""
StopWhen = Callable[[StepInfo], Any]
"""Says whether the tool loop ends before this step; may be a coroutine function."""

NO_GUARDRAILS = Guardrails()
NO_STOPS: Mapping[str, StopWhen] = {}


def tokens_above(tokens: int) -> StopWhen:
    """Ends the loop once the run has used more than this many tokens, input and output together."""

    def tokens_above(info: StepInfo) -> bool:
        return info.usage.total_tokens > tokens

    return tokens_above


def cost_above(usd: float) -> StopWhen:
    """Ends the loop once the run has cost more than this; an unknown cost counts as more."""

    def cost_above(info: StepInfo) -> bool:
        return info.usage.cost_micros is None or info.usage.cost_micros > usd * 1_000_000

    return cost_above
