"""Messages that somebody else made: what passes, what is refused, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from deuz_workers.core.message_check import check_message, stored_form
from deuz_workers.core.messages import (
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    message_from_record,
    message_to_record,
)
from deuz_workers.errors import CodecError

SECRET = "the text that nobody may read"


def said(*parts: Any, role: Any = "assistant") -> Message:
    return Message(role, parts)


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


class Broken(Mapping[str, object]):
    """A mapping of the user's that fails once it is read."""

    def __getitem__(self, key: str) -> object:
        raise ZeroDivisionError(SECRET)

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "it is a NoneType, not a Message"),
        ({"role": "assistant"}, "it is a dict"),
        (said(role="junk"), "its role is none of"),
        (said(role=["user"]), "its role is none of"),
        (Message("assistant", SECRET), "its parts are a str"),  # pyright: ignore[reportArgumentType]
        (said(SECRET), "part 0 is a str"),
        (said(TextPart("x"), None), "part 1 is a NoneType"),
        (said(TextPart(5)), r"text of part 0 \(TextPart\) is a int, not str"),  # pyright: ignore[reportArgumentType]
        (said(TextPart("x", None)), "provider of part 0"),  # pyright: ignore[reportArgumentType]
        (said(ReasoningPart(b"x")), "text of part 0"),  # pyright: ignore[reportArgumentType]
        (said(ImagePart("image/png", bytearray(b"x"))), "data of part 0"),  # pyright: ignore[reportArgumentType]
        (said(ToolUsePart(7, "add", {})), "call_id of part 0"),  # pyright: ignore[reportArgumentType]
        (said(ToolUsePart("a", None, {})), "name of part 0"),  # pyright: ignore[reportArgumentType]
        (said(ToolUsePart("a", "add", [SECRET])), "arguments of part 0"),  # pyright: ignore[reportArgumentType]
        (said(ToolUsePart("a", "add", {5: SECRET})), "a name that is a int"),  # pyright: ignore[reportArgumentType]
        (said(ToolUsePart("a", "add", None, {})), "raw_arguments of part 0"),  # pyright: ignore[reportArgumentType]
        (said(ToolResultPart("a", "add", "x", "no")), "is_error of part 0"),  # pyright: ignore[reportArgumentType]
        (said(ToolResultPart("a", "add", "x", False, True)), "receipt_step of part 0"),
        (said(TextPart(SECRET * 40)), "take at least 1160 bytes, the limit is 1000"),
    ],
)
def test_what_is_no_message_is_named_without_its_content(given: object, words: str) -> None:
    """The place and the type are said."""
    with pytest.raises(CodecError, match=words) as caught:
        check_message(given, max_bytes=1_000)
    assert SECRET not in f"{caught.value.message}{caught.value.fields}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (deep(5_000), "nested more than"),
        ({"a": object()}, "cannot be stored"),
        ({"a": "ü" * 300}, "the limit is 1000"),
        (Broken(), "ZeroDivisionError was raised"),
    ],
    ids=["deep", "object", "long", "broken"],
)
def test_what_cannot_be_written_is_refused(arguments: Mapping[str, object], words: str) -> None:
    """Whatever the values of the user do, it is one kind of error."""
    message = check_message(said(ToolUsePart("a", "add", arguments)), max_bytes=1_000)
    with pytest.raises(CodecError, match=words) as caught:
        stored_form(message, max_bytes=1_000)
    assert SECRET not in f"{caught.value.message}{caught.value.fields}"


def test_a_message_comes_back_equal_and_belongs_to_nobody_else() -> None:
    """All parts that there are; later changes of what was handed over do not reach it."""
    arguments = {"a": [1, (2, float("inf"))], "b": b"\0"}
    parts = (
        TextPart("a\0\ud800", {"k": 1}),
        ImagePart("image/png", b"\xff"),
        ReasoningPart("hm"),
        ToolUsePart("", "add", arguments),
        ToolUsePart("c", "add", None, "{"),
        ToolResultPart("c", "add", "x", True),
    )
    given = said(*parts)
    stored = stored_form(check_message(given))
    assert stored == given
    arguments["a"] = []
    assert stored.tool_uses[0].arguments == {"a": [1, (2, float("inf"))], "b": b"\0"}


def test_what_passes_is_what_a_reader_accepts() -> None:
    """Every field of every part has a rule: a message that passes never fails to be read."""
    message = said(TextPart("x"), ImagePart("a/b", url="u"), ToolUsePart("a", "b", {}))
    assert message_from_record(message_to_record(check_message(message))) == message
