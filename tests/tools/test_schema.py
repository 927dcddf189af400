"""The JSON Schema that a model sees, made from a signature."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.tool import ToolContext
from deuz_workers.tools.decorator import tool, tool_from_schema
from deuz_workers.tools.function import FunctionTool

if TYPE_CHECKING:
    from collections import OrderedDict as OnlyForCheckers


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    sku: str
    count: int = 1
    notes: list[str] = field(default_factory=lambda: list[str]())


class Address(BaseModel):
    """Where to."""

    street: str = Field(title="Street and number", min_length=1)
    zip_code: str | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Window(TypedDict):
    title: str
    width: NotRequired[int]


class Tree(BaseModel):
    children: list[Tree] = []


ITEM = {
    "type": "object",
    "properties": {
        "sku": {"type": "string"},
        "count": {"type": "integer", "default": 1},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["sku"],
    "additionalProperties": False,
}
ADDRESS = {
    "type": "object",
    "description": "Where to.",
    "properties": {
        "street": {"type": "string", "title": "Street and number", "minLength": 1},
        "zip_code": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["street"],
    "additionalProperties": False,
}
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": True}
WINDOW = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "width": {"type": "integer"}},
    "required": ["title"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("annotation", "schema", "definitions"),
    [
        (int, {"type": "integer"}, {}),
        (float, {"type": "number"}, {}),
        (bool, {"type": "boolean"}, {}),
        (str, {"type": "string"}, {}),
        (Any, {}, {}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, {}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, {}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, {}),
        (Literal[1], {"type": "integer", "const": 1}, {}),
        (list[int], {"type": "array", "items": {"type": "integer"}}, {}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, {}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}, {}),
        (datetime, {"type": "string", "format": "date-time"}, {}),
        (date, {"type": "string", "format": "date"}, {}),
        (timedelta, {"type": "string", "format": "duration"}, {}),
        (UUID, {"type": "string", "format": "uuid"}, {}),
        (Annotated[int, Field(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}, {}),
        (Annotated[str, Field(description="who", max_length=9)], {"type": "string", "description": "who", "maxLength": 9}, {}),
        (Size, {"$ref": "#/$defs/Size"}, {"Size": {"type": "string", "enum": ["s", "l"]}}),
        (Item, {"$ref": "#/$defs/Item"}, {"Item": ITEM}),
        (list[Item], {"type": "array", "items": {"$ref": "#/$defs/Item"}}, {"Item": ITEM}),
        (Address, {"$ref": "#/$defs/Address"}, {"Address": ADDRESS}),
        (Open, {"$ref": "#/$defs/Open"}, {"Open": OPEN}),
        (Window, {"$ref": "#/$defs/Window"}, {"Window": WINDOW}),
        (Tree, {"$ref": "#/$defs/Tree"}, {"Tree": TREE}),
    ],
)
def test_types_become_schemas(annotation: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Every kind of annotation has the schema written here: without generated titles, objects closed unless they are open."""

    def look(value): ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]

    look.__annotations__["value"] = annotation
    whole = {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}
    found = tool(look).spec.parameters
    assert found == whole | ({"$defs": definitions} if definitions else {})
    Draft202012Validator.check_schema(found)
    json.dumps(found)


def test_definitions_are_shared() -> None:
    """A type that two parameters use is defined once."""

    @tool
    def move(a: Item, b: list[Item], to: Address) -> None: ...

    assert set(properties(move)) == {"a", "b", "to"}
    assert move.spec.parameters["$defs"] == {"Item": ITEM, "Address": ADDRESS}


def properties(of: FunctionTool[..., Any]) -> dict[str, Any]:
    found = of.spec.parameters["properties"]
    assert isinstance(found, dict)
    return found


def test_defaults_are_shown_where_json_can_say_them() -> None:
    """A default makes a parameter optional; its value is part of the schema in the form in which a model would send it."""

    @tool
    def find(
        text: str,
        size: Size = Size.SMALL,
        since: date = date(2026, 1, 2),
        price: Decimal = Decimal("1.50"),
        limit: int | None = None,
        odd: int = object(),  # pyright: ignore[reportArgumentType]
    ) -> None: ...

    assert find.spec.parameters["required"] == ["text"]
    defaults = {name: shown["default"] for name, shown in properties(find).items() if "default" in shown}
    assert defaults == {"size": "s", "since": "2026-01-02", "price": "1.50", "limit": None}


def test_names_that_pydantic_keeps_for_itself_are_fine() -> None:
    """A parameter may be called like a method of pydantic's models, begin with an underscore, or be called title."""

    @tool
    def odd(copy: int, json: str, model_config: int, _hidden: int, title: str, properties: str) -> None: ...

    assert list(properties(odd)) == ["copy", "json", "model_config", "_hidden", "title", "properties"]


def test_a_field_may_stand_in_place_of_the_default() -> None:
    """pydantic's `Field(...)` as a default gives its constraints, and its own default if it has one."""

    @tool
    def f(
        a: int = Field(ge=3),
        b: int = Field(5, description="five"),
        c: list[int] = Field(default_factory=list),  # noqa: B008
    ) -> None: ...

    assert properties(f) == {
        "a": {"type": "integer", "minimum": 3},
        "b": {"type": "integer", "description": "five", "default": 5},
        "c": {"type": "array", "items": {"type": "integer"}},
    }
    assert f.spec.parameters["required"] == ["a"]


def test_the_context_is_not_part_of_the_schema() -> None:
    """A parameter annotated `ToolContext` is left out wherever it stands, optional or annotated or not."""

    @tool
    def f(
        a: int, ctx: ToolContext, b: int, again: Annotated[ToolContext, "note"], *, other: ToolContext | None = None
    ) -> None: ...

    assert list(properties(f)) == ["a", "b"]


def test_types_local_to_the_decorated_place_are_found() -> None:
    """Annotations are strings here; a class defined in the same function is still seen."""

    @dataclass
    class Local:
        a: int

    @tool
    def bare(x: Local) -> None: ...

    @tool(name="called")
    def with_options(x: Local) -> None: ...

    assert bare.spec.parameters == with_options.spec.parameters
    assert "Local" in json.dumps(bare.spec.parameters)

    @dataclass
    class Around:
        inner: Local

    @tool
    def nested(x: Around) -> None: ...

    nested.validate({"x": {"inner": {"a": 1}}})


def test_a_return_type_for_checkers_only_does_no_harm() -> None:
    """The return annotation is read only where it is needed."""

    @tool
    def f(a: int) -> OnlyForCheckers[str, int]: ...

    assert list(properties(f)) == ["a"]


def positional(a: int, /) -> None: ...
def any_number(a: int, *rest: int) -> None: ...
def any_name(a: int, **options: int) -> None: ...
def for_checkers(a: int, table: OnlyForCheckers[str, int]) -> None: ...
def no_schema(a: int, handle: FunctionTool[..., Any]) -> None: ...
def broken(a: "int +") -> None: ...  # noqa: F722  # pyright: ignore


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (positional, ["positional", "'a'", "positional-only"]),
        (any_number, ["any_number", "'rest'", "list"]),
        (any_name, ["any_name", "'options'", "dict"]),
        (for_checkers, ["for_checkers", "'table'", "OnlyForCheckers", "TYPE_CHECKING"]),
        (no_schema, ["no_schema", "'handle'", "dataclass"]),
        (broken, ["broken", "'a'"]),
        (lambda a: a, ["<lambda>", "name="]),  # pyright: ignore[reportUnknownLambdaType]
        (dict.fromkeys, ["fromkeys"]),
        (7, ["int", "function"]),
    ],
)
def test_what_no_model_could_call_is_refused_at_once(function: Any, names: list[str]) -> None:
    """The error is typed, comes where the tool is made, and names the function, the parameter and the way out."""
    with pytest.raises(ConfigurationError) as refused:
        tool(function)
    assert [name for name in names if name not in refused.value.message] == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name": "no spaces"}, "'no spaces'"),
        ({"name": "x" * 65}, "64"),
        ({"replay": "always"}, "'always'"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": 1.5}, "timeout_ms"),
        ({"timeout_ms": True}, "timeout_ms"),
        ({"max_result_bytes": -1}, "max_result_bytes"),
        ({"needs_approval": "yes"}, "needs_approval"),
        ({"output_schema": {"type": "no type"}, "validate_result": bool}, "output_schema"),
        ({"output_schema": FunctionTool}, "output_schema"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], named: str) -> None:
    """A wrong option is a ConfigurationError that names it."""
    with pytest.raises(ConfigurationError, match=named):
        tool(**options)(lambda_free)


def lambda_free(a: int = 1) -> int:
    return a


async def a_coroutine_function(value: object) -> object:
    return value


@pytest.mark.parametrize("option", ["needs_approval", "validate_result", "to_model_output"])
def test_coroutine_functions_are_refused_where_nobody_would_await_them(option: str) -> None:
    """An un-awaited coroutine is truthy: as a predicate it would ask for everything, as a validator accept everything."""
    with pytest.raises(ConfigurationError, match=option):
        tool(**{option: a_coroutine_function})(lambda_free)  # pyright: ignore


def test_generators_are_refused() -> None:
    """A tool has one result."""

    def numbers():
        yield 1

    async def numbers_too():
        yield 1

    for function in (numbers, numbers_too):
        with pytest.raises(ConfigurationError, match="yields"):
            tool(function)


def test_a_tool_is_made_once() -> None:
    """Decorating a tool again is refused instead of losing the first one's options."""
    with pytest.raises(ConfigurationError, match="lambda_free"):
        tool(tool(lambda_free))


def test_raw_schemas_are_checked() -> None:
    """A schema that is none, or is not about an object, is refused when the tool is made."""
    for schema in ({"type": "string"}, {}, {"type": "object", "properties": {"a": {"type": 5}}}):
        with pytest.raises(ConfigurationError, match="lookup"):
            tool_from_schema("lookup", "", schema, lambda arguments, context: None)


def test_a_raw_schema_reaches_the_model_unchanged() -> None:
    """What was given is what is sent."""
    schema = {"type": "object", "properties": {"q": {"type": "string", "title": "Q"}}}
    assert tool_from_schema("lookup", "Look up.", schema, lambda arguments, context: None).spec.parameters == schema
