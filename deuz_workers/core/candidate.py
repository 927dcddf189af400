"""Answers to the request for the final output."""

from __future__ import annotations

import json
from dataclasses import replace

from deuz_workers.core.messages import Message, ReasoningPart, TextPart, ToolUsePart, user

ASK = "Now give the final answer of this task, in the required format and nothing else."
UNACCEPTABLE = "This answer cannot be accepted: "
NOT_ACCEPTED = "This answer was not accepted: "


def ask_for_output() -> Message:
    """The user turn that ends the tool loop of a run with an output type."""
    return user(ASK)


def ask_for_repair(problem: str) -> Message:
    """The user turn after an answer that cannot be accepted."""
    return user(f"{UNACCEPTABLE}{problem}\nGive the whole final answer again, corrected, in the required format.")


def ask_for_another(feedback: str) -> Message:
    """The user turn after a candidate that the verifier rejected."""
    return user(f"{NOT_ACCEPTED}{feedback}\nGive the whole answer again, corrected.")


def is_asked_by_engine(message: Message) -> bool:
    """A user turn that nobody outside wrote: one of the three above."""
    return message.role == "user" and (message.text == ASK or message.text.startswith((UNACCEPTABLE, NOT_ACCEPTED)))


def candidate(message: Message, tool_name: str | None) -> Message:
    """The reply as it is kept: its text, or the arguments of the call of `tool_name` as text, and no call.

    Calls are not executed while the answer is asked for, and one that nobody answers would make the history unusable.
    """
    text = next((_arguments(use) for use in message.tool_uses if use.name == tool_name), None)
    thoughts = [part for part in message.parts if isinstance(part, ReasoningPart)]
    if text is not None:
        return replace(message, parts=(*thoughts, TextPart(text)))
    parts = tuple(part for part in message.parts if not isinstance(part, ToolUsePart))
    return replace(message, parts=parts if message.text else (*thoughts, TextPart("")))


def _arguments(use: ToolUsePart) -> str:
    if use.arguments is None:
        return use.raw_arguments or ""
    return json.dumps(dict(use.arguments), ensure_ascii=False)
