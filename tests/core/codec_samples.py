"""Values that the codec keeps: the ones that other stores lost runs to, and strategies for all of them."""

from __future__ import annotations

import math
import string
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

from hypothesis import strategies as st

from deuz_workers.core.codec import encode


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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(string.printable, max_size=5), inner, max_size=4),
)
