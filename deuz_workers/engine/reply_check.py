"""What a model handed over, looked at before anything is done with it.

A model is code of the user's or a client of somebody's server, and its reply is paid for by the time it is here. Whatever could
not be saved must end as a failed call, which is counted and settled; an error at the commit would buy the same reply again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from deuz_workers.core.codec import encode
from deuz_workers.core.failure import bounded
from deuz_workers.core.limits import MAX_RETRY_AFTER_MS
from deuz_workers.core.lowering import type_name
from deuz_workers.core.message_check import check_message, stored_form
from deuz_workers.core.messages import Part, ToolResultPart, ToolUsePart
from deuz_workers.core.usage import MAX_COST_MICROS, MAX_TOKENS, Usage
from deuz_workers.errors import CodecError, ModelError, ModelResponseError, Scalar, as_record
from deuz_workers.ports.model import ModelReply

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Of one reply as it is stored, a hundred times what the longest output limits of models in use come to. It is sent again with
every later turn, so a longer one is of no use to a run."""
MAX_NAME_CHARS = 500
"""Of a model's name and a finish reason."""


def check_reply(reply: object) -> ModelReply:
    """`reply`, every field of which is of the right type; texts are not looked into.

    Raises `ModelResponseError` that names what is wrong and quotes nothing of it.
    """
    if not isinstance(reply, ModelReply):
        raise _refusal(f"it is a {type_name(reply)}, not a ModelReply")
    try:
        message = check_message(reply.message, max_bytes=MAX_REPLY_BYTES)
        if message.role != "assistant":
            raise _refusal(f"its message has the role {message.role}, not assistant")
        for place, part in enumerate(message.parts):
            if isinstance(part, ToolResultPart):
                raise _refusal(f"part {place} of its message is the result of a call, which a model cannot give")
        _check_name("finish_reason", reply.finish_reason)
        _check_name("model", reply.model)
        if reply.usage is not None:
            check_usage(reply.usage)
    except CodecError as error:
        raise _refusal(f"message: {error.message}") from None
    except ModelResponseError:
        raise
    except Exception as error:  # noqa: BLE001 - a subclass of ours may do anything when it is read
        raise _refusal(f"reading it raised {type_name(error)}") from None
    return reply


def stored_reply(reply: ModelReply) -> ModelReply:
    """`reply`, which passed `check_reply`, with its message as it will be read back. Takes time where the message is long.

    Arguments with a number that no wire can say again are none: their text is kept, and the model is told.
    Raises `ModelResponseError`, for a message that cannot be stored or is above `MAX_REPLY_BYTES`.
    """
    try:
        message = stored_form(reply.message, max_bytes=MAX_REPLY_BYTES)
    except CodecError as error:
        raise _refusal(f"message: {error.message}") from None
    if any(isinstance(part, ToolUsePart) for part in message.parts):
        message = replace(message, parts=tuple(_sayable(part) for part in message.parts))
    return ModelReply(message, reply.finish_reason, reply.usage, reply.model)


def _sayable(part: Part) -> Part:
    if isinstance(part, ToolUsePart) and part.arguments is not None:
        try:
            repr(part.arguments)
        except ValueError:  # an integer of more digits than Python writes in decimal, so than `json` does
            return replace(part, arguments=None, raw_arguments=part.raw_arguments or encode(part.arguments))
    return part


def failure_record(error: ModelError) -> dict[str, Scalar]:
    """The error as plain data that can be stored, whatever a client put into it."""
    try:
        given = cast(dict[object, object], as_record(error))
    except Exception:  # noqa: BLE001 - a class of the user's that does not call our __init__
        given = {
            "name": type(error).__name__,
            "message": "the error of the model client cannot be read",
            "code": "model_client",
        }
    return {str(name)[:MAX_NAME_CHARS]: _scalar(value) for name, value in given.items()}


def asked_wait_ms(error: ModelError) -> int:
    """What the provider asked to wait, from 0 to `MAX_RETRY_AFTER_MS`; 0 where that is no number."""
    asked: object = error.retry_after_ms
    if not isinstance(asked, int | float) or asked != asked:  # NaN; math.isnan refuses long integers
        return 0
    return round(min(max(asked, 0), MAX_RETRY_AFTER_MS))


def known_cost(cost_micros: object) -> int | None:
    """The price of a call, as a price list gave it; None, unknown, for anything that is no amount of money."""
    return cost_micros if type(cost_micros) is int and 0 <= cost_micros <= MAX_COST_MICROS else None


def check_usage(usage: object) -> None:
    """Raises `ModelResponseError` for what no call can have used."""
    if not isinstance(usage, Usage):
        raise _refusal(f"its usage is a {type_name(usage)}, not a Usage or None")
    for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens"):
        _check_count(name, getattr(usage, name), MAX_TOKENS)
    if usage.cost_micros is not None:
        _check_count("cost_micros", usage.cost_micros, MAX_COST_MICROS)


def _check_count(name: str, value: object, most: int) -> None:
    if type(value) is not int:
        raise _refusal(f"{name} of its usage is a {type_name(value)}, not int")
    if not 0 <= value <= most:
        raise _refusal(f"{name} of its usage is below 0 or above {most}")


def _check_name(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise _refusal(f"its {what} is a {type_name(value)}, not str")
    if len(value) > MAX_NAME_CHARS:
        raise _refusal(f"its {what} is longer than {MAX_NAME_CHARS} characters")


def _scalar(value: object) -> Scalar:
    if isinstance(value, str):
        return bounded(str.__str__(value))
    return value if type(value) in (int, float, bool) or value is None else type_name(value)  # pyright: ignore[reportReturnType]


def _refusal(what: str) -> ModelResponseError:
    return ModelResponseError(f"the model's reply cannot be used: {what}", code="model_reply")
