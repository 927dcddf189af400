"""What the views of a stream show. `type` tells them apart, as does `match`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from deuz_workers.app.results import AgentResult

Phase = Literal["loop", "finalizing"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A fragment of the answer that the model is writing."""

    text: str
    type: Literal["text-delta"] = "text-delta"


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A fragment of what the model thinks before it answers, where its provider shows that."""

    text: str
    type: Literal["reasoning-delta"] = "reasoning-delta"


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A fragment of the arguments, as JSON, of a call that the model is about to ask for.

    Nothing runs before they are whole and saved, and nothing vouches for a fragment.
    """

    text: str
    place: int
    """Of the call among those of the reply, from 0."""
    tool_name: str
    type: Literal["arguments-delta"] = "arguments-delta"


@dataclass(frozen=True, slots=True)
class WarningData:
    """`setting` names the feature: `approvalResponses`, `clientToolResults`, `activeTools`, `fallbackModels`, `chat`, `mcp`."""

    setting: str
    message: str
    type: str = "warning"
    """`unsupported-tool` where a tool of a server is not offered."""


@dataclass(frozen=True, slots=True)
class WarningPart:
    """The run was warned of something; the same stands in `result.warnings`."""

    warning: WarningData
    type: Literal["warning"] = "warning"


@dataclass(frozen=True, slots=True)
class GuardrailPart:
    """A guardrail blocked or rewrote a value, and that is saved; one that lets a value pass leaves no trace."""

    hook: str
    """`on_input`, `on_tool_call`, `on_tool_result` or `on_output`."""
    action: str
    """`block` or `rewrite`."""
    name: str
    reason: str | None = None
    """Why it blocked."""
    tool_call_id: str | None = None
    """Of the hooks around a call."""
    type: Literal["guardrail"] = "guardrail"


@dataclass(frozen=True, slots=True)
class HandoffPart:
    """A transfer was accepted, and that is saved: `to` drives the run from the next turn on."""

    source: str
    """Name of the agent that called it."""
    to: str
    tool_call_id: str
    reason: str | None = None
    """What its model gave."""
    type: Literal["handoff"] = "handoff"


@dataclass(frozen=True, slots=True)
class SubAgentPart:
    """Something that happens in a run below: what a reader of that run is shown, drafts and results apart."""

    agent_path: tuple[str, ...]
    """Agents from that of this run to the one that works."""
    run_id: str
    """Tells runs of the same agents apart."""
    event: PartEvent | PhaseEvent | ToolOutput | Discard | Missed
    type: Literal["sub-agent"] = "sub-agent"


@dataclass(frozen=True, slots=True)
class PartEvent:
    """An ordinary part of the stream. `step` is the turn, 0 where the part belongs to none."""

    part: TextDelta | ReasoningDelta | ArgumentsDelta | GuardrailPart | HandoffPart | WarningPart | SubAgentPart
    step: int = 0
    type: Literal["part"] = "part"


@dataclass(frozen=True, slots=True)
class PhaseEvent:
    """A model call begins. `call_attempt`: which one of its turn; `attempt`: which request for the final answer, 0 before."""

    phase: Phase
    step: int
    call_attempt: int
    attempt: int = 0
    model: str | None = None
    """Which is called, where it is not that of the run's own agent."""
    type: Literal["phase"] = "phase"


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A call of a tool has ended, and that is saved. What the model is shown of it is another matter."""

    tool_call_id: str
    tool_name: str
    step: int
    raw_result: object = None
    """As the tool returned it, read back from its stored form, also where it could not be shown; None where the tool failed."""
    error: str | None = None
    outcome: str | None = None
    """How a call ended that did not succeed: `error`, `denied`, `timeout` ..."""
    type: Literal["tool-output"] = "tool-output"

    @property
    def is_error(self) -> bool:
        return self.error is not None


@dataclass(frozen=True, slots=True)
class OutputDraft:
    """The final answer as far as it is written, as untyped data. Only a completed result vouches for a value."""

    value: object
    attempt: int
    """Request for the final answer that it belongs to; a repair is the next one and starts anew."""
    step: int = 0
    type: Literal["output-draft"] = "output-draft"


@dataclass(frozen=True, slots=True)
class OutputElement:
    """An element of a final answer that is a list, once it is written whole and its element type and validator accept it."""

    element: Any
    index: int
    """Its place in the answer, from 0."""
    attempt: int
    step: int = 0
    type: Literal["output-element"] = "output-element"


@dataclass(frozen=True, slots=True)
class Discard:
    """The attempt at turn `step` that was being shown is void: drop its text, drafts and elements.

    Its call failed and is repeated, its worker died, or what was shown is not what was saved. What follows starts anew.
    """

    step: int
    type: Literal["discard"] = "discard"


@dataclass(frozen=True, slots=True)
class Missed:
    """Something was not shown to this reader; the stored run has it.

    `late`: the reader came when the run had begun. `slow`: it did not read what waited for it. `dropped`: the executor wrote
    more than the channel took. `lost`: the channel was away or forgot.
    """

    reason: Literal["late", "slow", "dropped", "lost"]
    count: int | None = None
    """How many; None: nobody knows."""
    type: Literal["missed"] = "missed"


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """The end of the stream: the same result that awaiting it gives."""

    result: AgentResult[Any]
    type: Literal["result"] = "result"


StreamEvent = PartEvent | PhaseEvent | ToolOutput | OutputDraft | OutputElement | Discard | Missed | ResultEvent
