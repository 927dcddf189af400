"""Values as text for a model: readable, the same for the same value, and the same again after a trip through the store."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pydantic
import pytest
from hypothesis import given

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.render import READABLE, readable, render
from deuz_workers.core.tagged import READERS
from deuz_workers.errors import CodecError
from tests.core.codec_samples import FIELD_REPORT, LOOK_ALIKES, MORE, VALUES


@dataclass
class Order:
    sku: str
    price: Decimal


class Place(pydantic.BaseModel):
    at: datetime
    tags: set[str]


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Pair(NamedTuple):
    left: int
    right: str


NOON = datetime(2026, 3, 29, 12, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\nä", "as it is\nä"),
        ("", ""),
        ("a\0b\ud800", "a\0b\ud800"),
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (-0.5, "-0.5"),
        (math.nan, "NaN"),
        ([math.inf, -math.inf], "[Infinity, -Infinity]"),
        ({"ä": "ö", "n": [1, None]}, '{"ä": "ö", "n": [1, null]}'),
        (["a\0b\ud800"], '["a\\u0000b\\ud800"]'),
        (["\ud83d\ude00"], '["\\ud83d\\ude00"]'),
        (["😀"], '["😀"]'),
        (Decimal("12.50"), "12.50"),
        ([Decimal("1E+3")], '["1E+3"]'),
        (NOON, "2026-03-29T12:00:00+02:00"),
        (datetime(2026, 10, 25, 2, 30, fold=1), "2026-10-25T02:30:00"),  # noqa: DTZ001
        (date(2026, 1, 2), "2026-01-02"),
        (time(2, 3, fold=1), "02:03:00"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (b"caf\xc3\xa9", "café"),
        (bytearray(b"\xff\x00"), "data:application/octet-stream;base64,/wA="),
        ((1, ("two", [3])), '[1, ["two", [3]]]'),
        ({10, 9, 2}, "[2, 9, 10]"),
        (frozenset({"b", "a"}), '["a", "b"]'),
        (Order("x", Decimal("1.10")), '{"sku": "x", "price": "1.10"}'),
        (Place(at=NOON, tags={"q", "p"}), '{"at": "2026-03-29T12:00:00+02:00", "tags": ["p", "q"]}'),
        (Colour.RED, "red"),
        ([Colour.RED, Level.HIGH], '["red", 3]'),
        (PurePosixPath("/srv/x"), "/srv/x"),
        (Pair(1, "r"), '[1, "r"]'),
        (
            {1: "int", None: "none", (1, 2): "tuple", date(2026, 1, 2): "day"},
            '{"1": "int", "null": "none", "[1, 2]": "tuple", "2026-01-02": "day"}',
        ),
        ({1: "int", "1": "str"}, '[[1, "int"], ["1", "str"]]'),
        ({"$deuz": "bytes", "v": "text of the user's"}, '{"$deuz": "bytes", "v": "text of the user\'s"}'),
        (2**70, "1180591620717411303424"),
        (-(2**2048), "-0x1" + "0" * 512),
    ],
)
def test_values_read_as_a_person_would_write_them(value: object, text: str) -> None:
    """Strings stand as they are, everything else is one line of JSON with readable strings inside."""
    assert render(value) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(), "PT0S"),
        (timedelta(days=2), "P2D"),
        (timedelta(days=1, hours=2, minutes=3, seconds=4.5), "P1DT2H3M4.5S"),
        (timedelta(microseconds=-1), "-PT0.000001S"),
        (timedelta(minutes=-90), "-PT1H30M"),
    ],
)
def test_durations_are_iso_8601(duration: timedelta, text: str) -> None:
    """Durations have a sign in front and no borrowed day, and pydantic reads them back."""
    assert render(duration) == text
    assert pydantic.TypeAdapter(timedelta).validate_python(text) == duration


@pytest.mark.spec("FR-36")
@pytest.mark.parametrize("value", [*FIELD_REPORT.values(), *MORE.values(), *LOOK_ALIKES])
def test_a_value_from_its_receipt_reads_like_the_live_one(value: object) -> None:
    """What other stores lost runs to has one text, before and after the store."""
    assert render(decode(encode(value))) == render(value)


@given(VALUES)
def test_any_value_reads_the_same_after_the_store(value: object) -> None:
    """Whatever the codec keeps can be rendered, and the stored value gives the text of the live one."""
    text = render(value)
    assert render(decode(encode(value))) == text
    assert "\n" not in text or isinstance(readable(value), str)


@pytest.mark.parametrize("value", [object(), [{1: object()}], {"x": lambda: 1}], ids=["bare", "inside", "function"])
def test_what_cannot_be_stored_cannot_be_shown(value: Any) -> None:
    """A value of an unknown type is refused like the codec refuses it, instead of showing an address in memory."""
    with pytest.raises(CodecError):
        render(value)


def test_every_tag_of_the_codec_has_a_readable_form() -> None:
    """A tag that is added to the codec must be added here."""
    assert set(READABLE) == set(READERS)


def test_readable_is_made_of_json_types() -> None:
    """What a schema is checked against holds neither tuples nor tags."""
    assert readable({"t": (1, {2}), "when": datetime(2026, 1, 1, tzinfo=UTC)}) == {
        "t": [1, [2]],
        "when": "2026-01-01T00:00:00+00:00",
    }
