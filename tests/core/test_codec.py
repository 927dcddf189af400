"""The codec: what goes in comes out, and what cannot is refused by name."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import io
import json
import math
import pathlib
import sqlite3
import string
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, NamedTuple, cast
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deuz_workers.core.codec import MAX_DEPTH, canonical, decode, digest, encode
from deuz_workers.core.tagged import READERS
from deuz_workers.errors import CodecError


def same(left: object, right: object) -> bool:
    """Equal, of the same types all the way down, in the same order, with NaN equal to itself and -0.0 not to 0.0."""
    if type(left) is not type(right):
        return False
    match left, right:
        case (list() | tuple(), list() | tuple()):
            return len(left) == len(right) and all(map(same, left, right))
        case (dict(), dict()):
            return len(left) == len(right) and all(
                same(a, b) and same(x, y) for (a, x), (b, y) in zip(left.items(), right.items(), strict=True)
            )
        case (set() | frozenset(), set() | frozenset()):
            return sorted(map(encode, left)) == sorted(map(encode, right))
        case (float(), float()):
            return repr(left) == repr(right)
        case (Decimal(), Decimal()):
            return str(left) == str(right)
        case (datetime(), datetime()):
            return left.isoformat() == right.isoformat() and (left.tzinfo is not None or left.fold == right.fold)
        case (time(), time()):
            return left.isoformat() == right.isoformat() and left.fold == right.fold
        case _:
            return left == right


def through_sqlite(text: str) -> str:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE bodies (body TEXT) STRICT")
        connection.execute("INSERT INTO bodies VALUES (?)", (text,))
        kept: str = connection.execute("SELECT body FROM bodies WHERE length(body) = ?", (len(text),)).fetchone()[0]
    connection.close()
    return kept


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mode(enum.StrEnum):
    FAST = "fast"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    id: int
    placed: datetime
    lines: tuple[str, ...] = ()


class Customer(pydantic.BaseModel):
    name: str
    since: date
    photo: bytes = b""


class Names(pydantic.RootModel[list[str]]):
    pass


RECURSIVE_LIST: list[Any] = [1]
RECURSIVE_LIST.append({"again": (RECURSIVE_LIST,)})

FIELD_REPORT: dict[str, object] = {
    "NUL": "a\0b",
    "NaN": math.nan,
    "infinity": [math.inf, -math.inf],
    "lone surrogate": "\ud800",
    "two surrogates that are no pair": "\ud800\udc00",
    "bytes": bytes(range(256)),
    "Decimal": Decimal("12.50"),
    "datetime without zone": datetime(2026, 3, 29, 2, 30, 0, 123456),  # noqa: DTZ001
    "datetime with zone": datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    "tuple": (1, ("two", [3])),
    "set": {1, "one", (1, 2), None},
    "2**70": 2**70,
    "10 MB": "x" * 10_000_000,
}
"""What tools were seen to return when other stores lost the run."""

MORE: dict[str, object] = {
    "scalars": [None, True, False, 0, -1, "", 0.1, -0.0, 5e-324, 1.7976931348623157e308],
    "digits beyond Python's limit": [10**5000, -(10**5000), 2**2048, 2**2048 - 1, -(2**2048)],
    "text": 'ä€😀\x7f\u2028"\\/\ud83d \ude00\udc00\ud800',
    "surrogates in keys": {"\ud800\udc00": 1, "\U00010000": 2, "\udfff": 3},
    "bytearray": bytearray(b"\0\xff"),
    "decimals": [Decimal("-0"), Decimal("NaN"), Decimal("sNaN12"), Decimal("-Infinity"), Decimal("1E+400"), Decimal("0.10")],
    "UTC": datetime(1, 1, 1, tzinfo=UTC),
    "odd offset": datetime(1900, 1, 1, tzinfo=timezone(-timedelta(hours=4, minutes=56, seconds=2))),
    "second 02:30 of a night": datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001
    "dates": [date.min, date.max, time(1, 2, 3, 4), time(23, 59, tzinfo=UTC), time(2, fold=1)],
    "durations": [timedelta.min, timedelta.max, timedelta(microseconds=-1)],
    "UUID": uuid.UUID(int=7),
    "frozen set": frozenset({frozenset({1}), frozenset({(2,)})}),
    "keys that are no str": {
        1: "int",
        "1": "str",
        1.5: "float",
        None: "none",
        (1, b"x"): "tuple",
        False: "bool",
    },
    "empty containers": [[], {}, (), set(), frozenset()],
}

LOOK_ALIKES: list[object] = [
    {"$deuzBytes": "AAAA"},
    {"$deuz": "bytes", "v": "AAAA"},
    {"$deuz": "dict", "v": [["$deuz", "bytes"]]},
    {"$deuz": None},
    {"v": 1, "$deuz": {"$deuz": "int", "v": "ff"}},
    {"nested": [{"$deuz": "nonsense"}], "real": b"\0"},
    '{"$deuz": "bytes", "v": "AAAA"}',
    {"$deuz": "float", "v": "nan", "more": ({"$deuz": "tuple", "v": []},)},
]


@pytest.mark.parametrize("name", [*FIELD_REPORT, *MORE])
def test_value_comes_back_as_it_was(name: str) -> None:
    """Each value comes back equal and of the same types, also through a TEXT column of SQLite."""
    value = {**FIELD_REPORT, **MORE}[name]
    text = encode(value)
    assert text.isascii()
    assert same(decode(through_sqlite(text)), value)


@pytest.mark.spec("STO-010")
@pytest.mark.parametrize("value", LOOK_ALIKES, ids=repr)
def test_data_that_looks_like_a_tag_stays_data(value: object) -> None:
    """User data shaped like the codec's own tags, of this package or another, comes back unchanged."""
    assert same(decode(through_sqlite(encode(value))), value)
    assert same(decode(encode((value, b"x"))), (value, b"x"))
    assert same(decode(encode(encode(value))), encode(value))


TEXTS = st.text(st.characters(codec=None) | st.sampled_from("\0\ud800\udbff\udc00\udfff$"), max_size=8) | st.sampled_from(
    ["$deuz", "v", "dict", "bytes"]
)
OFFSETS = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
HASHABLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**3000), 2**3000)
    | st.floats()
    | TEXTS
    | st.binary(max_size=8)
    | st.decimals().filter(lambda number: not number.is_snan())  # which has no hash
    | st.datetimes(timezones=st.none() | OFFSETS)
    | st.dates()
    | st.times(timezones=st.none() | OFFSETS)
    | st.timedeltas()
    | st.uuids()
)
HASHABLE_DEEP = st.recursive(
    HASHABLE, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=5
)
VALUES = st.recursive(
    HASHABLE | st.decimals() | st.binary(max_size=8).map(bytearray) | st.sets(HASHABLE_DEEP, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(TEXTS, inner, max_size=4)
        | st.dictionaries(HASHABLE_DEEP, inner, max_size=4)
        | st.fixed_dictionaries({"$deuz": TEXTS, "v": inner})
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=300)
@given(VALUES)
def test_every_supported_value_comes_back(value: object) -> None:
    """Whatever is built from the supported types comes back, and its text is ASCII, JSON, and the same the second time."""
    text = encode(value)
    assert text.isascii()
    assert "\0" not in text
    assert same(decode(text), value)
    assert encode(decode(text)) == text
    json.loads(text, parse_constant=pytest.fail)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(string.printable, max_size=5), inner, max_size=4),
)


@given(JSON)
def test_plain_json_is_written_as_plain_json(value: object) -> None:
    """Values that JSON has are written as any JSON library writes them, so that operators can read the rows."""
    if "$deuz" not in (text := encode(value)):
        assert same(json.loads(text), value)


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


PLAINER: list[tuple[object, object]] = [
    (
        Order(7, datetime(2026, 1, 1, tzinfo=UTC), ("a",)),
        {"id": 7, "placed": datetime(2026, 1, 1, tzinfo=UTC), "lines": ("a",)},
    ),
    (Customer(name="Ada", since=date(2026, 1, 1)), {"name": "Ada", "since": date(2026, 1, 1), "photo": b""}),
    (Names(["a", "b"]), ["a", "b"]),
    ([Colour.RED, Level.HIGH, Mode.FAST], ["red", 3, "fast"]),
    (pathlib.PurePosixPath("/a/b"), "/a/b"),
    (Point(1, 2), (1, 2)),
    (collections.OrderedDict(b=1, a=(2,)), {"b": 1, "a": (2,)}),
    (collections.defaultdict(list, a=[1]), {"a": [1]}),
    (collections.Counter("aab"), {"a": 2, "b": 1}),
    ({Colour.RED: 1, Mode.FAST: 2}, {"red": 1, "fast": 2}),
    ({Point(1, 2)}, {(1, 2)}),
]


@pytest.mark.parametrize(("value", "plainer"), PLAINER, ids=lambda value: type(value).__name__)
def test_some_values_come_back_as_something_plainer(value: object, plainer: object) -> None:
    """Models, dataclasses, enums, paths and subclasses come back as the plain data that the codec's docstring names."""
    assert same(decode(encode(value)), plainer)
    assert same(decode(encode([{"deep": value}])), [{"deep": plainer}])


@pytest.mark.parametrize("fold", [0, 1])
def test_zone_keeps_instant_and_offset(fold: int) -> None:
    """Of a datetime in a zone the instant and the offset come back, also in the hour that happens twice."""
    before = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    after = decode(encode(before))
    assert isinstance(after, datetime)
    assert after.timestamp() == before.timestamp()
    assert after.utcoffset() == before.utcoffset() == timedelta(hours=2 - fold)


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


def sort_dicts(value: object) -> object:
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {key: sort_dicts(item) for key, item in sorted(items, key=lambda pair: repr(pair[0]))}
    return value


@given(st.permutations(["b", "a", "ä", "\ud800", "$deuz"]), st.permutations([1, "1", (2,), None]))
def test_digest_does_not_depend_on_the_order_of_keys(keys: list[str], others: list[object]) -> None:
    """Equal dicts have one canonical text and one digest, whatever order they were built in."""
    plain = {key: len(key) for key in keys if key != "$deuz"}
    assert digest(plain) == digest(sort_dicts(plain))
    value = {"look-alike": dict.fromkeys(keys, 0), "others": {key: {"y": 1, "x": 2} for key in others}}
    assert canonical(value) == canonical(sort_dicts(value))
    assert digest(value) == digest(sort_dicts(value))


def test_digests_of_this_version_stay() -> None:
    """Digests are stored and compared with later ones, so the canonical text of a value is fixed."""
    value = {"b": [1, 2.5, None, True, "ä"], "a": {"n": (1,), "s": {3, "x"}, "d": b"\0"}}
    text = (
        '{"a":{"d":{"$deuz":"bytes","v":"AA=="},"n":{"$deuz":"tuple","v":[1]},"s":{"$deuz":"set","v":["x",3]}},'
        '"b":[1,2.5,null,true,"\\u00e4"]}'
    )
    assert canonical(value) == text
    assert digest({"b": 1, "a": "x"}) == "cdab067e9f3beb32d1252cfd63e492592fecbf591b0d08cadb24bb17f3864246"


STORED_BY_VERSION_1 = {
    '{"$deuz":"int","v":"-ff"}': -255,
    '{"$deuz":"float","v":"-inf"}': -math.inf,
    '{"$deuz":"str","v":["\\ud800","\\udc00"]}': "\ud800\udc00",
    '{"$deuz":"bytes","v":"AP8="}': b"\0\xff",
    '{"$deuz":"bytearray","v":"AP8="}': bytearray(b"\0\xff"),
    '{"$deuz":"decimal","v":"1E+5"}': Decimal("1E+5"),
    '{"$deuz":"datetime","v":"2026-10-25T02:30:00+01:00"}': datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=1))),
    '{"$deuz":"datetime","v":["2026-10-25T02:30:00",1]}': datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001
    '{"$deuz":"date","v":"2026-10-25"}': date(2026, 10, 25),
    '{"$deuz":"time","v":"02:30:00"}': time(2, 30),
    '{"$deuz":"timedelta","v":[-1,5,6]}': timedelta(-1, 5, 6),
    '{"$deuz":"uuid","v":"00000000-0000-0000-0000-000000000007"}': uuid.UUID(int=7),
    '{"$deuz":"tuple","v":[1]}': (1,),
    '{"$deuz":"set","v":[1]}': {1},
    '{"$deuz":"frozenset","v":[1]}': frozenset({1}),
    '{"$deuz":"dict","v":[["$deuz",1],[2,3]]}': {"$deuz": 1, 2: 3},
}


@pytest.mark.parametrize(("text", "value"), STORED_BY_VERSION_1.items())
def test_stored_rows_stay_readable(text: str, value: object) -> None:
    """Rows that version 1 wrote are read; this list only ever grows."""
    assert same(decode(text), value)
