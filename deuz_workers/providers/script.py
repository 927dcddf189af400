"""What a scripted model answers: the vocabulary of `MockModel`.

::

    MockModel([calls(call("add", a=1, b=2)), "done"])
    MockModel([attempts(ModelRateLimitedError("slow down"), "done")])
    MockModel.function(lambda request: "seen" if len(request.messages) > 3 else calls(call("look")))
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from deuz_workers.core.messages import NOTHING, FinishReason, Message, Part, ReasoningPart, TextPart, ToolUsePart
from deuz_workers.core.usage import Usage
from deuz_workers.ports.asides import Aside
from deuz_workers.ports.model import ModelReply, ModelRequest

DEFAULT_USAGE = Usage(input_tokens=10, output_tokens=5, cost_micros=None)
"""Of every scripted reply that names no other (requirement DEP-004). The price table sets the cost."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One tool call. `provider_id` None: the script makes one from turn and place, `call_<turn>_<place>`, both from 1."""

    name: str
    arguments: Mapping[str, object] | None = None
    raw_arguments: str | None = None
    provider_id: str | None = None

    def with_id(self, provider_id: str) -> ScriptedCall:
        """The same call under an id of the provider's; the same id may be given twice, as some servers do."""
        return replace(self, provider_id=provider_id)

    def without_id(self) -> ScriptedCall:
        """The same call from a server that sends no ids."""
        return replace(self, provider_id="")


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One answer, or one failure after some fragments. Build it with `reply`, `calls` or `fails`."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: ReasoningPart | None = None
    finish_reason: FinishReason | None = None
    """None: `tool_calls` where there are calls, else `stop`."""
    usage: Usage | Literal["default"] | None = "default"
    """None: the provider does not say."""
    fragments: tuple[str, ...] | None = None
    """What the stream delivers; None: the text word by word."""
    delay_ms: int | None = 0
    """Before anything arrives; None: nothing ever arrives."""
    fragment_delay_ms: int = 0
    """Before every further fragment."""
    error: Exception | None = None
    """Raised instead of the answer, after the fragments."""
    provider: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Opaque metadata of the text part."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """A turn whose attempts end differently; see `attempts`."""

    entries: tuple[Entry, ...]


Answer = Callable[[ModelRequest], "Entry | Awaitable[Entry]"]
Entry = str | ScriptedReply | ScriptedCall | ModelReply | Exception | type[Exception] | Attempts | Answer
"""What a script may hold for a turn: a text, calls, a whole reply, an error to raise, or a function of the request."""


def call(name: str, /, **arguments: object) -> ScriptedCall:
    """One tool call with these arguments."""
    return ScriptedCall(name, arguments)


def raw_call(name: str, arguments: str) -> ScriptedCall:
    """One tool call whose arguments are this text, for text that is no JSON object."""
    return ScriptedCall(name, None, arguments)


def calls(*made: ScriptedCall, text: str = "", usage: Usage | Literal["default"] | None = "default") -> ScriptedReply:
    """A turn that asks for these calls, in parallel where there are several."""
    return ScriptedReply(text=text, calls=made, usage=usage)


def reply(
    text: str = "",
    *made: ScriptedCall,
    reasoning: str | ReasoningPart | None = None,
    finish_reason: FinishReason | None = None,
    usage: Usage | Literal["default"] | None = "default",
    fragments: Sequence[str] | None = None,
    delay_ms: int = 0,
    fragment_delay_ms: int = 0,
) -> ScriptedReply:
    """A turn with everything that can be said about it; times in milliseconds."""
    thought = ReasoningPart(reasoning) if isinstance(reasoning, str) else reasoning
    pieces = None if fragments is None else tuple(fragments)
    return ScriptedReply(text, made, thought, finish_reason, usage, pieces, delay_ms, fragment_delay_ms)


def fails(error: Exception, *, after: Sequence[str] = (), delay_ms: int = 0) -> ScriptedReply:
    """A turn that raises `error`, once the fragments `after` have been delivered."""
    return ScriptedReply(fragments=tuple(after), delay_ms=delay_ms, error=error)


def hangs() -> ScriptedReply:
    """A turn whose answer never arrives: it ends by cancellation, or at the request's `timeout_ms`."""
    return ScriptedReply(delay_ms=None)


def attempts(*entries: Entry) -> Attempts:
    """A turn whose first attempt gets the first entry, the second the second; the last entry answers all further ones.

    The number is the request's own `attempt`, so every process gives the same answer to the same attempt.
    """
    return Attempts(entries)


def fragments_of(scripted: ScriptedReply) -> tuple[str, ...]:
    """What a stream of this reply delivers, piece by piece."""
    if scripted.fragments is not None:
        return scripted.fragments
    return tuple(re.findall(r"\s*\S+\s*$|\s*\S+|\s+", scripted.text))


def asides_of(scripted: ScriptedReply) -> tuple[list[Aside], list[Aside]]:
    """What a stream of this reply delivers ahead of its text, and behind it: thoughts and arguments in halves."""
    thoughts = [Aside("reasoning", half) for half in _halves("" if scripted.reasoning is None else scripted.reasoning.text)]
    written = [call.raw_arguments or json.dumps(dict(call.arguments or {})) for call in scripted.calls]
    pieces = [
        Aside("arguments", half, place, scripted.calls[place].name)
        for place, text in enumerate(written)
        for half in _halves(text)
    ]
    return thoughts, pieces


def _halves(text: str) -> list[str]:
    middle = (len(text) + 1) // 2
    return [half for half in (text[:middle], text[middle:]) if half]


def finished(scripted: ScriptedReply, *, turn: int, model: str, default_usage: Usage) -> ModelReply:
    """The reply that `scripted` stands for in turn number `turn`, from 1."""
    parts: list[Part] = []
    if scripted.reasoning is not None:
        parts.append(scripted.reasoning)
    if scripted.text or scripted.provider:
        parts.append(TextPart(scripted.text, scripted.provider))
    parts.extend(_tool_use(made, f"call_{turn}_{place}") for place, made in enumerate(scripted.calls, start=1))
    return ModelReply(
        message=Message("assistant", tuple(parts)),
        finish_reason=scripted.finish_reason or ("tool_calls" if scripted.calls else "stop"),
        usage=default_usage if scripted.usage == "default" else scripted.usage,
        model=model,
    )


def _tool_use(made: ScriptedCall, own_id: str) -> ToolUsePart:
    call_id = own_id if made.provider_id is None else made.provider_id
    return ToolUsePart(call_id, made.name, made.arguments, made.raw_arguments)
