"""Every call of a request is answered exactly once, before the next turn.

Providers refuse anything else with a 400 whose text names none of our ids, and they refuse it again on every later turn. So it
is found here, before the request is sent and where the turn and the call can be named.
"""

from __future__ import annotations

from collections.abc import Sequence

from deuz_workers.core.messages import Message
from deuz_workers.errors import ModelRequestError


def check_pairs(messages: Sequence[Message]) -> None:
    """Nothing, if the calls of each assistant message are answered one to one by the `tool` messages that follow it.

    Raises: `ModelRequestError` with code `unpaired_tool_call`, naming the message and the call; nothing was sent.
    """
    open_calls: set[str] = set()
    answered: set[str] = set()
    for place, message in enumerate(messages):
        if message.role == "tool":
            for result in message.tool_results:
                if result.call_id in answered:
                    raise _refusal(place, result.call_id, "is answered twice; keep one result")
                if result.call_id not in open_calls:
                    raise _refusal(place, result.call_id, "is answered, but the turn before did not ask for it")
                open_calls.remove(result.call_id)
                answered.add(result.call_id)
            continue
        if open_calls:
            raise _refusal(place, min(open_calls), "is not answered; append its tool result first")
        answered = set()
        for made in message.tool_uses:
            if made.call_id in open_calls:
                raise _refusal(place, made.call_id, "stands twice in one turn; give each call an id of its own")
            open_calls.add(made.call_id)
    if open_calls:
        raise _refusal(len(messages), min(open_calls), "is not answered; append its tool result first")


def _refusal(place: int, call_id: str, what: str) -> ModelRequestError:
    return ModelRequestError(
        f"message {place}: call {call_id!r} {what}", code="unpaired_tool_call", call_id=call_id, message_index=place
    )
