"""What a run starts from: a prompt or messages, as people write them, to messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from deuz_workers.core.message_check import check_message
from deuz_workers.core.messages import (
    FilePart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    message_from_record,
    user,
)
from deuz_workers.errors import CodecError, ConfigurationError

Content = str | Iterable[Part]
GivenMessage = Message | Mapping[str, object]
"""A message, or `{"role": ..., "content": text or list of parts}` with parts as `{"type": "text", "text": ...}`."""

_PARTS = (TextPart, ImagePart, FilePart, ReasoningPart, ToolUsePart, ToolResultPart)


def first_messages(prompt: Content | None, messages: Iterable[GivenMessage] | None) -> tuple[Message, ...]:
    """The history that the run starts with. Raises `ConfigurationError` unless exactly one of both is given and makes sense."""
    if (prompt is None) == (messages is None):
        raise ConfigurationError("a run starts from a prompt or from messages: give exactly one of the two")
    if messages is None:
        return (_user(cast(Content, prompt)),)
    if isinstance(messages, str | Mapping | Message) or not isinstance(messages, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError("messages is a list of messages; pass a single text as prompt")
    found = tuple(_message(place, given) for place, given in enumerate(messages))
    if not found:
        raise ConfigurationError("messages is empty; a run needs something to answer")
    _check_order(found)
    return found


def _user(prompt: Content) -> Message:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigurationError("the prompt is empty; a run needs something to answer")
        return user(prompt)
    if not isinstance(prompt, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
        raise ConfigurationError(f"prompt is text or a list of parts, not a {type(prompt).__name__}")
    parts = tuple(prompt)
    if not parts or not all(isinstance(part, _PARTS) for part in parts):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError("prompt is text or a list of parts such as TextPart and ImagePart")
    return _readable("prompt", user(parts))


def _message(place: int, given: GivenMessage) -> Message:
    if isinstance(given, Message):
        return _readable(f"message {place}", given)
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
        raise ConfigurationError(
            f"message {place} is a {type(given).__name__}; pass Message or a mapping with role and content"
        )
    content = given.get("content", given.get("parts"))
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    try:
        return _readable(f"message {place}", message_from_record({"role": given.get("role"), "parts": parts}))
    except CodecError as error:
        raise ConfigurationError(f"message {place} cannot be understood: {error.message}") from None


def _readable(what: str, given: Message) -> Message:
    """The message, which whoever reads the run will be able to read back."""
    try:
        message = check_message(given)
    except CodecError as error:
        raise ConfigurationError(f"{what} cannot be understood: {error.message}") from None
    if any(result.receipt_step is not None for result in message.tool_results):
        raise ConfigurationError(
            f"{what} has a result whose text stands in a receipt; give the text itself, without receipt_step"
        )
    return message


def _check_order(messages: tuple[Message, ...]) -> None:
    """Every call is answered right after it, once, and the last word is not the model's (MSG-002)."""
    asked: list[str] = []
    for place, message in enumerate(messages):
        answered = [part.call_id for part in message.tool_results]
        if sorted(answered) != sorted(asked):
            raise ConfigurationError(
                f"message {place} answers the calls {sorted(answered)} where the message before it asks {sorted(asked)}; "
                "every tool call needs exactly one result, in the message right after it"
            )
        asked = [part.call_id for part in message.tool_uses]
    if messages[-1].role == "assistant":
        raise ConfigurationError("the last message is the model's own; end with a message of the user")
