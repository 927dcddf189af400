"""A model: one call in, one reply out, fragments on the side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from deuz_workers.core.messages import NOTHING, FinishReason, Message
from deuz_workers.core.usage import Usage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What the reply has to be; `schema` is a JSON Schema of type object."""

    name: str
    schema: Mapping[str, object]


ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What is sent. `messages` starts with the instructions as a system message, if there are any."""

    request_id: str
    """Stable for one admitted attempt; also the key of its reservation."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    max_output_tokens: int | None = None
    temperature: float | None = None
    timeout_ms: int | None = None
    """Limit of the whole call, retries inside the client included."""
    extra: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Vendor's own body fields, passed on as they are."""
    output_format: OutputFormat | None = None
    """None: the reply is free."""
    attempt: int = 1
    """Number of this attempt at the turn, from 1; never sent. Scripted models answer by it."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A finished answer. `usage` None: the provider did not say. Calls without a provider id have an empty `call_id`."""

    message: Message
    finish_reason: FinishReason
    usage: Usage | None
    model: str
    """`provider:model` with the model as the provider reported it: the name that prices are looked up by."""


OnText = Callable[[str], None]
"""One that also is a `ports.asides.TellsAsides` is told of thoughts and arguments as they come, by models that have them."""


class Model(Protocol):
    """A model may say with an attribute `output_mode`, `json` or `tool`, how it is best asked for an `OutputFormat`: in the
    request, or by one forced tool (`tool_choice` `required`). Without one it is `json`. An attribute `context_window_tokens`
    says how long a request may be, for agents that compact their history; `writes_cache`, that the provider is asked to keep
    requests in a cache that costs more to write to than sending does. `protocol` names the wire that it speaks, for records.
    `rejects`, a collection of field names, says which of `temperature` and `max_output_tokens` it does not take; they are not
    set for it then."""

    @property
    def name(self) -> str:
        """`provider:model`, the identity that a resume compares."""
        ...

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Send one request.

        Raises `ModelError`; for a request longer than what the model takes `ModelContextOverflowError`, upon which
        the history is compacted and sent once more. Cancelling the coroutine ends the call at once. `on_text` gets fragments
        as they arrive and must not wait; what it got of a call that failed is void.
        """
        ...

    async def close(self) -> None:
        """Give back connections of the running loop."""
        ...
