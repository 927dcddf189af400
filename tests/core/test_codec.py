"""The codec: what goes in comes out, or comes out as the plainer value that its docstring names."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import math
import pathlib
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import NamedTuple, cast
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deuz_workers.core.codec import canonical, decode, digest, encode
from tests.core.codec_samples import FIELD_REPORT, JSON, LOOK_ALIKES, MORE, VALUES, same


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


@pytest.mark.parametrize("name", [*FIELD_REPORT, *MORE])
def test_value_comes_back_as_it_was(name: str) -> None:
    """Each value comes back equal and of the same types."""
    value = {**FIELD_REPORT, **MORE}[name]
    text = encode(value)
    assert text.isascii()
    assert same(decode(text), value)


@pytest.mark.spec("STO-010")
@pytest.mark.parametrize("value", LOOK_ALIKES, ids=repr)
def test_data_that_looks_like_a_tag_stays_data(value: object) -> None:
    """User data shaped like the codec's own tags, of this package or another, comes back unchanged."""
    assert same(decode(encode(value)), value)
    assert same(decode(encode((value, b"x"))), (value, b"x"))
    assert same(decode(encode(encode(value))), encode(value))


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


@given(JSON)
def test_plain_json_is_written_as_plain_json(value: object) -> None:
    """Values that JSON has are written as any JSON library writes them, so that operators can read the rows."""
    if "$deuz" not in (text := encode(value)):
        assert same(json.loads(text), value)


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
