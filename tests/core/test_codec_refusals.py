"""What the codec cannot keep, or cannot read, is refused by name, and never with any other exception."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deuz_workers.core.codec import MAX_DEPTH, decode, encode
from deuz_workers.core.tagged import READERS
from deuz_workers.errors import CodecError
from tests.core.codec_samples import VALUES


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    id: int
    placed: datetime
    lines: tuple[str, ...] = ()


RECURSIVE_LIST: list[Any] = [1]
RECURSIVE_LIST.append({"again": (RECURSIVE_LIST,)})


@settings(deadline=None)
@given(
    st.text()
    | st.binary().map(repr)
    | VALUES.map(encode).flatmap(lambda text: st.integers(0, len(text)).map(lambda n: text[:n]))
)
def test_garbage_is_refused_by_name(text: str) -> None:
    """Text that the codec did not write is read or refused with CodecError; nothing else is raised."""
    with contextlib.suppress(CodecError):
        decode(text)


TAGS = sorted(READERS)


@pytest.mark.parametrize("tag", [*TAGS, "unheard of", 7, None, ["int"]])
@pytest.mark.parametrize(
    "payload",
    ["?", "1.5", 7, None, True, [], [[]], [[], 2], ["2026-01-01", 9], [1, 2, "x"], [10**300, 0, 0], {"a": 1}],
    ids=repr,
)
def test_damaged_tag_is_refused_by_name(tag: object, payload: object) -> None:
    """A tagged object with a payload of the wrong kind is read or refused with CodecError."""
    for text in (
        json.dumps({"$deuz": tag, "v": payload}),
        json.dumps({"$deuz": tag}),
        json.dumps({"$deuz": tag, "v": 1, "w": 2}),
    ):
        try:
            decode(text)
        except CodecError:
            continue
        assert tag in TAGS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nul",
        "NaN",
        "[Infinity]",
        '{"a":1}x',
        "[" * 100_000,
        '{"$deuz":"tuple","v":' * 50_000,
        "9" * 5000,
        '"\0"',
        b"{}",
        None,
    ],
    ids=lambda text: repr(text)[:20],
)
def test_damaged_text_is_refused_without_being_quoted(text: Any) -> None:
    """Text that is no JSON, too deep or no text at all raises CodecError, and the error does not repeat it."""
    with pytest.raises(CodecError) as caught:
        decode(text)
    assert len(caught.value.message) < 200


class Nowhere(tzinfo):
    """A zone that implements nothing."""


class Undecided(tzinfo):
    """A zone that knows no offset."""

    def utcoffset(self, dt: datetime | None, /) -> None:
        return None


class Finer(datetime):
    """Like the timestamps of data frames: a datetime that carries more than a datetime can."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = datetime.__hash__


class Broken(pydantic.BaseModel):
    @pydantic.model_serializer
    def fail(self) -> dict[str, object]:
        raise RuntimeError("the serializer of somebody")


@dataclasses.dataclass
class Unset:
    size: int = dataclasses.field(init=False)


@dataclasses.dataclass
class Node:
    next: Node | None = None


def _cyclic_node() -> Node:
    node = Node()
    node.next = node
    return node


REFUSED: list[tuple[object, str, str]] = [
    ({"items": [1, 2, 3, {"when": object()}]}, "$.items[3].when", "object"),
    ({"a key": {(1,): [lambda: None]}}, '$["a key"][tuple][0]', "function"),
    ({"x" * 1000: 1j}, f'$["{"x" * 40}"]', "complex"),
    ({"ü": {5: {frozenset({range(3)})}}}, '$["\\u00fc"][5]{*}{*}', "range"),
    ({object: 1}, "$.keys()", "type"),
    (RECURSIVE_LIST, "$[1].again[0]", "list"),
    (_cyclic_node(), "$.next", f"{__name__}.Node"),
    (io.StringIO(), "$", "_io.StringIO"),
    (Broken(), "$", f"{__name__}.Broken"),
    (Unset(), "$", f"{__name__}.Unset"),
    ([pydantic.SecretStr("hush")], "$[0]", "pydantic.types.SecretStr"),
    ([time(2, tzinfo=ZoneInfo("Europe/Berlin"))], "$[0]", "datetime.time"),
    (datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))), "$", "datetime.datetime"),
    (datetime(2026, 1, 1, tzinfo=Nowhere()), "$", "datetime.datetime"),
    (datetime(2026, 1, 1, tzinfo=Undecided()), "$", "datetime.datetime"),
    (Finer(2026, 1, 1, tzinfo=UTC), "$", f"{__name__}.Finer"),
    ({"a": {Colour.RED: 1, "red": 2}}, "$.a", "dict"),
    ({Order(1, datetime(2026, 1, 1, tzinfo=UTC))}, "$", "set"),
    ({(Order(1, datetime(2026, 1, 1, tzinfo=UTC)),): 1}, "$", "dict"),
]


@pytest.mark.parametrize(("value", "path", "kind"), REFUSED, ids=[f"{path} {kind}" for _, path, kind in REFUSED])
def test_what_cannot_be_stored_is_refused_with_its_place(value: object, path: str, kind: str) -> None:
    """A value of an unknown type, or one that would come back as something else, names its path and type and a way out."""
    with pytest.raises(CodecError) as caught:
        encode(value)
    error = caught.value
    assert error.fields == {"path": path, "type": kind}
    assert error.message.startswith(f"{path}: ")
    assert "hush" not in error.message


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "dict": lambda inner: {"k": inner},
    "tuple": lambda inner: (inner,),
    "pairs": lambda inner: {1: inner},
    "frozenset": lambda inner: frozenset({inner}),
    "dataclass": lambda inner: Node(inner),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("innermost", ["plain", b"tagged"])
def test_depth_has_a_limit_far_from_pythons(wrap: Callable[[Any], Any], innermost: object) -> None:
    """Exactly MAX_DEPTH levels are stored; one more, and any number more, is refused with CodecError."""
    value = innermost
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    encode(decode(encode(value)))
    for _ in range(2):
        value = wrap(value)
        with pytest.raises(CodecError, match="more than 100 levels"):
            encode(value)
    for _ in range(10_000):
        value = [value]
    with pytest.raises(CodecError, match="more than 100 levels"):
        encode(value)


def test_callers_deep_stack_is_named() -> None:
    """Where the caller's own recursion leaves no stack, encode and decode raise CodecError and no RecursionError."""
    value: Any = b"x"
    for _ in range(MAX_DEPTH):
        value = (value,)
    text = encode(value)
    seen: set[type[BaseException]] = set()

    def descend() -> None:
        for attempt in (lambda: encode(value), lambda: decode(text)):
            try:
                attempt()
            except (CodecError, RecursionError) as error:
                seen.add(type(error))
        if not seen:
            descend()

    descend()
    assert seen == {CodecError}


@pytest.mark.parametrize(
    "value",
    ["x" * 50_000_000, b"x" * 50_000_000, [["x" * 1000] * 50_000], {"é" * 9_000_000}],
    ids=["str", "bytes", "list", "set"],
)
def test_huge_value_is_refused_cleanly(value: object) -> None:
    """A result of 50 MB is refused with its size and the limit."""
    with pytest.raises(CodecError, match="limit is 1000000") as caught:
        encode(value, max_bytes=1_000_000)
    assert caught.value.fields["limit_bytes"] == 1_000_000
    assert int(caught.value.fields["size_bytes"] or 0) > 1_000_000


@pytest.mark.parametrize("value", ["x" * 8, [1, 2, "é"], (1, b"abc"), {2: {3}}])
def test_limit_is_the_exact_size_of_the_text(value: object) -> None:
    """A text of exactly `max_bytes` is written, one byte more is refused."""
    size = len(encode(value))
    assert len(encode(value, max_bytes=size)) == size
    with pytest.raises(CodecError, match=f"limit is {size - 1}"):
        encode(value, max_bytes=size - 1)


@pytest.mark.parametrize("leaf", [[], [b""]])
def test_small_value_with_a_huge_text_is_refused_early(leaf: object) -> None:
    """A value of 60 lists that refer to each other twice would be 2**60 items as text; it is refused while it is counted."""
    value = leaf
    for _ in range(60):
        value = [value, value]
    with pytest.raises(CodecError, match="at least"):
        encode(value, max_bytes=10_000)


def test_value_that_changes_meanwhile_is_refused() -> None:
    """A dict that grows while it is written raises CodecError, not RuntimeError."""
    value: dict[str, object] = {}

    class Grower(enum.Enum):
        X = 1

        @property
        def value(self) -> int:
            grown[f"k{len(grown)}"] = 1
            return 1

    grown = value
    value.update(a=Grower.X, b=2)
    with pytest.raises(CodecError, match="changed while"):
        encode(value)
