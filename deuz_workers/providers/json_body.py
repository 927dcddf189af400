"""Bodies of requests and replies as JSON; pure, and the same on every wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from deuz_workers.core.lowering import MAX_DEPTH
from deuz_workers.core.usage import MAX_TOKENS
from deuz_workers.errors import ModelRequestError, ModelResponseError


def encode_body(body: Mapping[str, Any]) -> bytes:
    """The body as JSON in UTF-8. NUL travels as an escape; a lone surrogate, which UTF-8 cannot say and servers refuse as an
    escape, becomes U+FFFD.

    Raises: `ModelRequestError`, for a value that JSON cannot carry, naming its type.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        # A TypeError of json names a type; a ValueError may quote the value.
        reason = str(error) if isinstance(error, TypeError) else "NaN, an infinity or endless nesting"
        raise ModelRequestError(f"the request is no JSON: {reason}; look at extra and the tool schemas") from None
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode("utf-8")


def parse_object(body: bytes | str, what: str = "the reply") -> Mapping[str, Any]:
    """Raises: `ModelResponseError`, for what is no JSON object; nothing of it is repeated."""
    try:
        record: object = json.loads(body)
    except (ValueError, RecursionError):
        raise ModelResponseError(f"{what} is no JSON") from None
    if not isinstance(record, dict):
        raise ModelResponseError(f"{what} is no JSON object")
    return cast(Mapping[str, Any], record)


def arguments_text(arguments: Mapping[str, object]) -> str:
    """Arguments as models write them themselves, so that a replayed turn hits the provider's prompt cache."""
    return json.dumps(dict(arguments), ensure_ascii=False, separators=(",", ":"))


def read_arguments(written: object) -> dict[str, Any] | None:
    """The arguments as an object; None where they are no JSON object, one nested too deeply to be stored, or one with a number
    that JSON cannot say again: `1e999` is read as an infinity, which every other wire refuses from the next turn on."""
    if written is None or (isinstance(written, str) and not written.strip()):
        return {}
    if isinstance(written, str):
        try:
            written = json.loads(joined(written), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return None
    if not isinstance(written, dict):
        return None
    arguments = cast(dict[str, Any], written)
    return arguments if can_go_back(arguments) else None


def raw_arguments(written: object) -> str:
    """Arguments that are no JSON object, as text."""
    try:
        return joined(written) if isinstance(written, str) else json.dumps(written)
    except RecursionError:
        raise ModelResponseError("the reply has arguments that are nested too deeply to be read") from None


def joined(text: str) -> str:
    """The text with surrogate pairs that arrived in two pieces put together; a lone surrogate stays."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


class WholePairs:
    """Hands text on as it comes, but for half of a surrogate pair, which waits for the other."""

    def __init__(self) -> None:
        self._half = ""

    def take(self, text: str) -> str:
        if not text:
            return ""
        text = self._half + text
        self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        return joined(text[:-1] if self._half else text)


def is_at_most(levels: int, value: object) -> bool:
    """Whether `value` is nested that deep or less. The codec stores `MAX_DEPTH` levels, and a message has a few of its own."""
    if not isinstance(value, dict | list):
        return True
    items = cast(list[object], list(value.values()) if isinstance(value, dict) else value)
    return levels > 0 and all(is_at_most(levels - 1, item) for item in items)


def can_go_back(extra: object) -> bool:
    """Whether a provider's metadata can be stored and sent again; the part is of use without what cannot."""
    try:
        json.dumps(extra, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return is_at_most(MAX_DEPTH // 2, extra)


def mapping(value: object) -> Mapping[str, Any] | None:
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else None


def listed(value: object) -> list[Any]:
    """Empty where it is no list."""
    return cast(list[Any], value) if isinstance(value, list) else []


def text_or_none(value: object) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKENS


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
