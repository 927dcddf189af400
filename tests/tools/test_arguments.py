"""What a model sends: checked against the schema, told what to change, converted to the types of the function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, BaseModel, Field

from deuz_workers.errors import ToolArgumentsError
from deuz_workers.tools.arguments import Arguments
from deuz_workers.tools.decorator import tool, tool_from_schema
from deuz_workers.tools.function import FunctionTool
from deuz_workers.tools.signature import MISSING, Parameter
from tests.core.codec_samples import JSON
from tests.tools.contexts import context

SECRET = "hunter2-hunter2"


class Kind(Enum):
    A = "a"
    B = 2


@dataclass
class Item:
    sku: str
    count: int = 1


class Person(BaseModel):
    name: str
    born: date
    boss: Person | None = None


def refusal(made: FunctionTool[..., Any], arguments: Mapping[str, object]) -> str:
    with pytest.raises(ToolArgumentsError) as refused:
        made.validate(arguments)
    return refused.value.message


def taking(annotation: Any, default: Any = MISSING) -> Arguments:
    return Arguments.from_parameters("look", (Parameter("value", annotation, default),), {}, {})


@pytest.mark.parametrize(
    ("annotation", "sent", "got"),
    [
        (Item, {"sku": "x"}, Item("x")),
        (list[Item], [{"sku": "x", "count": 2}], [Item("x", 2)]),
        (Person, {"name": "n", "born": "2026-01-02"}, Person(name="n", born=date(2026, 1, 2))),
        (Kind, "a", Kind.A),
        (Kind, 2, Kind.B),
        (datetime, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (timedelta, "PT90S", timedelta(seconds=90)),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal, 2, Decimal(2)),
        (UUID, "00000000-0000-0000-0000-000000000007", UUID(int=7)),
        (set[int], [1, 2], {1, 2}),
        (tuple[int, str], [1, "x"], (1, "x")),
        (dict[int, bool], {"7": True}, {7: True}),
        (int | str, "7", "7"),
        (int | None, None, None),
        (float, 1, 1.0),
        (int, 3.0, 3),
        (bytes, "ab", b"ab"),
        (Any, {"deep": [1, None]}, {"deep": [1, None]}),
    ],
)
def test_arguments_arrive_in_their_types(annotation: Any, sent: object, got: object) -> None:
    """The function gets what its annotations say, not what JSON can say."""
    found = taking(annotation).converted({"value": sent})["value"]
    assert (found, type(found)) == (got, type(got))


@tool
def order(
    item: Item, kind: Literal["a", "b"] = "a", amount: Annotated[int, Field(ge=1, le=5)] = 1, note: str | None = None
) -> None: ...


@pytest.mark.spec("PTH-018")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "'item' is missing"),
        ({"item": {}}, "item: 'sku' is missing"),
        ({"item": {"sku": "x"}, "colour": SECRET}, "'colour' is not known; known are 'item', 'kind', 'amount', 'note'"),
        ({"item": {"sku": "x", "colour": SECRET}}, "item: 'colour' is not known; known are 'sku', 'count'"),
        ({"item": SECRET}, "item: must be object, not string"),
        ({"item": {"sku": 5}}, "item.sku: must be string, not integer"),
        ({"item": {"sku": "x"}, "kind": SECRET}, 'kind: must be one of "a", "b"'),
        ({"item": {"sku": "x"}, "amount": "5"}, "amount: must be integer, not string"),
        ({"item": {"sku": "x"}, "amount": True}, "amount: must be integer, not boolean"),
        ({"item": {"sku": "x"}, "amount": 1.5}, "amount: must be integer, not number"),
        ({"item": {"sku": "x"}, "amount": None}, "amount: must be integer, not null"),
        ({"item": {"sku": "x"}, "amount": 0}, "amount: must be at least 1"),
        ({"item": {"sku": "x"}, "amount": 123456}, "amount: must be at most 5"),
        ({"item": {"sku": "x"}, "note": [SECRET]}, "note: must be string or null, not array"),
    ],
)
def test_a_refusal_says_what_to_change(arguments: dict[str, object], told: str) -> None:
    """The model reads the place, the expectation and what it sent in JSON's types; the value is not repeated."""
    text = refusal(order, arguments)
    assert text == f"the arguments of 'order' are not valid: {told}. Correct them and call the tool again."
    assert SECRET not in text
    assert "123456" not in text


RULES = {
    "type": "object",
    "properties": {
        "short": {"type": "string", "minLength": 3, "maxLength": 4, "pattern": "^a"},
        "many": {"type": "array", "minItems": 2, "maxItems": 2, "uniqueItems": True},
        "map": {"type": "object", "minProperties": 1, "maxProperties": 1},
        "step": {"type": "number", "multipleOf": 5, "exclusiveMinimum": 0, "exclusiveMaximum": 50},
        "one": {"const": "fixed"},
        "none": {"not": {}},
        "either": {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "x"}, "size": {"type": "integer"}}, "required": ["kind"]},
                {"type": "integer"},
            ]
        },
        "never": False,
    },
}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"short": "a"}, "short: must have at least 3 characters, not 1"),
        ({"short": "aaaaa"}, "short: must have at most 4 characters, not 5"),
        ({"short": "bbb"}, 'short: must be a string that matches the pattern "^a"'),
        ({"many": [1]}, "many: must have at least 2 items, not 1"),
        ({"many": [1, 2, 3]}, "many: must have at most 2 items, not 3"),
        ({"many": [1, 1]}, "many: must not contain an item twice"),
        ({"map": {}}, "map: must have at least 1 properties, not 0"),
        ({"map": {"a": 1, "b": 2}}, "map: must have at most 1 properties, not 2"),
        ({"step": 7}, "step: must be a multiple of 5"),
        ({"step": 0}, "step: must be more than 0"),
        ({"step": 50}, "step: must be less than 50"),
        ({"one": "other"}, 'one: must be exactly "fixed"'),
        ({"none": 1}, "none: breaks the rule 'not' of the schema"),
        ({"either": {"kind": "x", "size": "big"}}, "either.size: must be integer, not string"),
        ({"either": "text"}, "either: must be object or integer, not string"),
        ({"never": 1}, "something in it is never allowed"),
    ],
)
def test_every_rule_of_a_raw_schema_has_words(arguments: dict[str, object], told: str) -> None:
    """Schemas that come from elsewhere use more of JSON Schema than annotations do."""
    made = tool_from_schema("rules", "", RULES, lambda given, context: None)
    assert f"not valid: {told}. Correct" in refusal(made, arguments)


def test_refusals_are_short() -> None:
    """However much is wrong, five problems are told, each of bounded length, and how many more there are."""
    made = tool_from_schema(
        "many", "", {"type": "object", "additionalProperties": {"type": "integer"}}, lambda given, context: None
    )
    text = refusal(made, {"n" * 10_000 + str(number): "x" for number in range(30)} | {f"p{number}": "x" for number in range(9)})
    assert len(text) < 5 * 240 + 200
    assert "; and " in text


def test_what_only_pydantic_can_check_is_told_too() -> None:
    """Formats and validators of the user's are part of the validation; several problems come together."""

    def even(value: int) -> int:
        if value % 2:
            raise ValueError("take an even number")
        return value

    @tool
    def f(day: date, number: Annotated[int, AfterValidator(even)], who: Person | None = None) -> None: ...

    text = refusal(f, {"day": SECRET, "number": 3, "who": {"name": "n", "born": SECRET}})
    assert "day: Input should be a valid date" in text
    assert "number: Value error, take an even number" in text
    assert "who.born: " in text
    assert SECRET not in text


def test_a_validator_that_breaks_is_a_refusal() -> None:
    """An exception of any kind in a validator of the user's reaches the model as a refusal that names only its kind."""

    def broken(value: str) -> str:
        raise KeyError(value)

    @tool
    def f(text: Annotated[str, AfterValidator(broken)]) -> None: ...

    assert "text: its validator raised KeyError" in (told := refusal(f, {"text": SECRET}))
    assert SECRET not in told


def test_a_schema_from_elsewhere_sends_no_requests() -> None:
    """A reference out of the schema is not followed: it fails the call instead of asking a server of somebody's choice."""
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    made = tool_from_schema("remote", "", schema, lambda given, context: None)
    assert "the schema refers to something outside itself" in refusal(made, {"a": 1})


def test_a_schema_that_cannot_be_followed_is_a_refusal() -> None:
    """Endless references and unreadable patterns end as a refusal of the call, never as an error of another kind."""
    endless = {"type": "object", "allOf": [{"$ref": "#"}]}
    unreadable = {"type": "object", "patternProperties": {"(": {"type": "string"}}}
    for schema in (endless, unreadable):
        assert "is not valid" not in refusal(tool_from_schema("odd", "", schema, lambda given, context: None), {"a": 1})


def test_patterns_of_other_languages_are_left_to_pydantic() -> None:
    """A pattern that only pydantic's engine reads still decides."""

    @tool
    def f(name: Annotated[str, Field(pattern=r"^\p{Lu}")]) -> None: ...

    f.validate({"name": "Ärger"})
    assert "name: String should match pattern" in refusal(f, {"name": "ärger"})


async def test_the_function_cannot_change_the_record() -> None:
    """What a function does to its arguments does not reach the mapping that the engine passed, at any depth."""

    def spoil(given: dict[str, Any], _: object) -> None:
        given["deep"]["list"].append(2)
        given["more"] = 1

    @tool
    async def spoil_too(deep: dict[str, Any]) -> None:
        deep["list"].append(2)

    sent = MappingProxyType({"deep": {"list": [1]}})
    await tool_from_schema("spoil", "", {"type": "object"}, spoil).run(sent, context())
    await spoil_too.run(sent, context())
    assert sent == {"deep": {"list": [1]}}


JSON_OF: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9)),
    (bool, st.booleans()),
    (str, st.text()),
    (type(None), st.none()),
    (Kind, st.sampled_from(["a", 2])),
    (Literal["x", 1, None], st.sampled_from(["x", 1, None])),
    (date, st.dates().map(str)),
    (datetime, st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)),
    (UUID, st.uuids().map(str)),
    (Annotated[int, Field(ge=3, lt=9)], st.integers(3, 8)),
    (Item, st.fixed_dictionaries({"sku": st.text()}, optional={"count": st.integers()})),
    (Any, JSON),
]
LEAVES = st.sampled_from(JSON_OF)
TYPES: st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]] = st.recursive(
    LEAVES,
    lambda inner: (
        inner.map(lambda pair: (list[pair[0]], st.lists(pair[1], max_size=3)))
        | inner.map(lambda pair: (dict[str, pair[0]], st.dictionaries(st.text(max_size=3), pair[1], max_size=3)))
        | inner.map(lambda pair: (pair[0] | None, pair[1] | st.none()))
        | st.tuples(inner, inner).map(lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]).map(list)))
    ),
    max_leaves=4,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_whatever_fits_the_schema_converts(data: st.DataObject) -> None:
    """Arguments that a model made by the schema are never refused by the conversion, and JSON keeps them."""
    annotation, values = data.draw(TYPES)
    arguments = taking(annotation)
    sent = {"value": data.draw(values)}
    assert Draft202012Validator(arguments.schema).is_valid(sent)
    assert list(arguments.converted(json.loads(json.dumps(sent)))) == ["value"]
