"""Whether a list of messages is a conversation that every provider takes.

Pure rules over `Message`, apart from any client: what a run sends after whatever crash, answer or rewriting has to pass them.
Providers refuse what breaks one, and refuse it again with every later turn, so a run whose history does is lost for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from deuz_workers.core.messages import FilePart, ImagePart, Message, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

Vendor = Literal["openai", "anthropic", "gemini"]
Side = Literal["user", "model"]
Turn = tuple[Side, tuple[Part, ...]]
"""Messages in a row of one side, as vendors that know two sides get them: results of tools belong to the user's."""

PARTS_OF_ROLE: Mapping[str, tuple[type, ...]] = {
    "system": (TextPart,),
    "user": (TextPart, ImagePart, FilePart),
    "assistant": (TextPart, ReasoningPart, ToolUsePart),
    "tool": (ToolResultPart,),
}


def conversation_problems(messages: Sequence[Message], *, is_request: bool) -> tuple[str, ...]:
    """What is wrong with `messages`, each as a sentence with the vendor that refuses it; nothing where all take them.

    `is_request`: the model is to answer them, so that they end with its counterpart's turn. Else they are the record of a run
    that has ended, and nothing in it may be left unanswered either.
    """
    found = [*_roles(messages), *_pairs(messages)]
    for vendor, refusals in _VENDORS.items():
        found += [f"{vendor}: {refusal}" for refusal in refusals(messages)]
    if is_request and messages and messages[-1].role == "assistant":
        found.append("it ends with a reply, so there is nothing to answer")
    return tuple(found)


def _roles(messages: Sequence[Message]) -> Iterator[str]:
    """Each message holds what its role may say; instructions come first; the model answers somebody, never itself."""
    for place, message in enumerate(messages):
        for part in message.parts:
            if not isinstance(part, PARTS_OF_ROLE[message.role]):
                yield f"message {place}: a {message.role} message cannot hold a {type(part).__name__}"
        if message.role == "system" and any(before.role != "system" for before in messages[:place]):
            yield f"message {place}: instructions stand behind the beginning"
        if message.role == "assistant" and place and messages[place - 1].role == "assistant":
            yield f"message {place}: the model answers itself"
    if all(message.role == "system" for message in messages):
        yield "nobody says anything"


def _pairs(messages: Sequence[Message]) -> Iterator[str]:
    """Every call has exactly one result, which follows its call before anything else does and names it as the call does."""
    asked: dict[str, ToolUsePart] = {}
    answered: set[str] = set()
    for place, message in enumerate(messages):
        if message.role == "tool":
            for result in message.tool_results:
                call = asked.get(result.call_id)
                if result.call_id in answered:
                    yield f"message {place}: call {result.call_id!r} is answered twice"
                elif call is None:
                    yield f"message {place}: {result.call_id!r} is answered, and the reply before did not call it"
                elif result.name != call.name:
                    yield f"message {place}: {result.call_id!r} calls {call.name!r} and is answered for {result.name!r}"
                elif result.provider_call_id != call.provider_call_id:
                    yield f"message {place}: {result.call_id!r} does not echo the provider's id of its call"
                answered.add(result.call_id)
            continue
        yield from _unanswered(place, asked, answered)
        asked, answered = {}, set()
        for call in message.tool_uses:
            if call.call_id in asked:
                yield f"message {place}: the id {call.call_id!r} stands for two calls"
            asked[call.call_id] = call
    yield from _unanswered(len(messages), asked, answered)


def _unanswered(place: int, asked: Mapping[str, ToolUsePart], answered: set[str]) -> Iterator[str]:
    for call_id in asked:
        if call_id not in answered:
            yield f"message {place}: call {call_id!r} was not answered before it"


def turns(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """The conversation of two sides; instructions travel beside it."""
    found: list[Turn] = []
    for message in messages:
        if message.role == "system":
            continue
        side: Side = "model" if message.role == "assistant" else "user"
        if found and found[-1][0] == side:
            found[-1] = (side, found[-1][1] + message.parts)
        else:
            found.append((side, message.parts))
    return tuple(found)


def _openai(messages: Sequence[Message]) -> Iterator[str]:
    """Chat Completions: a reply has content or calls; results are messages of their own right behind it (see `_pairs`)."""
    for place, message in enumerate(messages):
        said = any(isinstance(part, TextPart | ToolUsePart) for part in message.parts)
        if message.role == "assistant" and not said:
            yield f"message {place}: the reply has neither content nor calls"


def _anthropic(messages: Sequence[Message]) -> Iterator[str]:
    """Messages: the user begins, every turn says something, and results stand at the head of the turn behind their calls."""
    given = turns(messages)
    yield from _begins_with_user(given)
    for place, (_, parts) in enumerate(given):
        if not any(_says_something(part) for part in parts):
            yield f"turn {place}: it has no content"
        results = [isinstance(part, ToolResultPart) for part in parts]
        if any(results) and not all(results[: sum(results)]):
            yield f"turn {place}: a result stands behind other content"


def _gemini(messages: Sequence[Message]) -> Iterator[str]:
    """generateContent: the user begins, and behind a turn with calls as many responses as calls stand in the next one."""
    given = turns(messages)
    yield from _begins_with_user(given)
    for place, (side, parts) in enumerate(given):
        calls = sum(isinstance(part, ToolUsePart) for part in parts)
        following = given[place + 1][1] if place + 1 < len(given) else ()
        responses = sum(isinstance(part, ToolResultPart) for part in following)
        if side == "model" and calls != responses:
            yield f"turn {place}: {calls} calls and {responses} responses"


def _begins_with_user(given: Sequence[Turn]) -> Iterator[str]:
    if given and given[0][0] != "user":
        yield "the model begins"


def _says_something(part: Part) -> bool:
    return bool(part.text) if isinstance(part, TextPart) else not isinstance(part, ReasoningPart)


_VENDORS: Mapping[Vendor, Callable[[Sequence[Message]], Iterator[str]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
