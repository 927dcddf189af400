"""From the raw result to the model's text, live and again from the receipt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from pydantic import BaseModel, Field

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.render import render
from deuz_workers.errors import ConfigurationError, ToolResultError
from deuz_workers.tools.decorator import tool, tool_from_schema
from deuz_workers.tools.options import MAX_RESULT_BYTES
from tests.core.codec_samples import FIELD_REPORT, VALUES


@dataclass
class Order:
    sku: str
    price: Decimal
    secret: str = "internal"


class Invoice(BaseModel):
    number: int = Field(alias="no")
    at: datetime


PLAIN_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def nothing() -> None: ...


@tool
def plain() -> None: ...


def both(made: Any, value: object) -> str:
    """The text of the live value, which must be the one of the stored value."""
    live, again = made.project(value), made.project(decode(encode(value)))
    assert live == again
    return live


@given(VALUES)
def test_without_a_projection_the_text_is_the_rendering(value: object) -> None:
    """What the engine leaves out of the history, because the receipt has it, is what `project` gives."""
    assert both(plain, value) == render(value)


@pytest.mark.spec("FR-36")
@pytest.mark.parametrize("value", FIELD_REPORT.values(), ids=FIELD_REPORT)
def test_odd_results_have_texts(value: object) -> None:
    """Results that other engines lost a run to are shown like any other."""
    assert isinstance(both(plain, value), str)


@pytest.mark.parametrize("garbage", [object(), lambda: 1, {"inside": {1: [object()]}}, (x for x in "ab")], ids=type)
@pytest.mark.parametrize("made", [plain, tool(nothing, to_model_output=str), tool(nothing, output_schema=int)], ids=repr)
def test_garbage_is_a_typed_refusal(made: Any, garbage: object) -> None:
    """A result that no store could keep is a ToolResultError with the tool's name, whatever would come after."""
    with pytest.raises(ToolResultError, match=r"the result of '.*' is not valid") as refused:
        made.project(garbage)
    assert refused.value.fields == {"tool": made.name}


def test_strings_stand_as_they_are() -> None:
    """A model reads the tool's own words, not a JSON string."""
    assert plain.project('say "hi"\n\0') == 'say "hi"\n\0'


def test_the_model_gets_the_projection() -> None:
    """With a type as output schema the projection gets an instance of it, live and from the receipt."""
    made = tool(nothing, output_schema=Order, to_model_output=lambda order: f"{order.sku} costs {order.price}")
    assert both(made, Order("x", Decimal("1.10"))) == "x costs 1.10"
    assert made.has_projection


def test_the_return_annotation_says_what_the_projection_gets() -> None:
    """Without an output schema the annotation serves, but only where a function of the user's needs it."""

    @tool(to_model_output=lambda orders: [order.sku for order in orders])
    def orders() -> list[Order]:
        return []

    assert both(orders, [Order("x", Decimal(1)), Order("y", Decimal(2))]) == '["x", "y"]'

    @tool
    def unused() -> int:
        return "no int"  # pyright: ignore[reportReturnType]

    assert not unused.has_projection
    assert unused.project("no int") == "no int"


def test_without_any_type_the_projection_gets_plain_data() -> None:
    """It sees what the receipt holds, so that it works the second time exactly if it works the first time."""
    made = tool(nothing, to_model_output=lambda order: order["sku"])
    assert both(made, Order("x", Decimal(1))) == "x"


def test_models_with_aliases_come_back() -> None:
    """The codec writes a model's fields by name, and the projection reads them by name."""
    at = datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1)))
    made = tool(nothing, output_schema=Invoice, to_model_output=lambda invoice: invoice.number)
    assert both(made, Invoice(no=7, at=at)) == "7"


@pytest.mark.spec("TSC-003")
def test_without_a_projection_the_accepted_result_is_shown() -> None:
    """What `validate_result` returns is what the model gets; one that only checks keeps the result."""
    assert both(tool(nothing, output_schema=dict[str, int]), {"n": 1}) == '{"n": 1}'
    assert both(tool(nothing, validate_result=lambda value: value * 2), 21) == "42"
    checked: list[object] = []
    assert both(tool(nothing, validate_result=checked.append), 21) == "21"
    assert checked == [21, 21]


def test_a_result_that_misses_its_schema_is_refused_and_not_projected() -> None:
    """The refusal names the place and the expectation, not the value."""
    seen: list[object] = []
    made = tool(nothing, output_schema=Order, to_model_output=seen.append)
    with pytest.raises(ToolResultError, match="price") as refused:
        made.project({"sku": "x", "price": "hunter2"})
    assert "hunter2" not in refused.value.message
    assert seen == []


@pytest.mark.spec("TSC-001")
def test_a_plain_schema_needs_a_validator() -> None:
    """A JSON Schema as output schema is refused without `validate_result`, and checked together with it."""
    for make in (
        lambda: tool(nothing, output_schema=PLAIN_SCHEMA),
        lambda: tool_from_schema("t", "", {"type": "object"}, print, output_schema=PLAIN_SCHEMA),
    ):
        with pytest.raises(ConfigurationError, match="validate_result"):
            make()
    made = tool(nothing, output_schema=PLAIN_SCHEMA, validate_result=lambda value: value["n"])
    assert both(made, {"n": 7}) == "7"
    with pytest.raises(ToolResultError, match="n: must be integer, not string"):
        made.project({"n": "x"})


def test_a_validator_that_raises_refuses_the_result() -> None:
    """Its own message is what the model reads; the error is a ToolResultError, so that it counts as a failed validation."""

    def positive(value: int) -> int:
        if value < 0:
            raise ValueError("a balance cannot be negative")
        return value

    made = tool(nothing, validate_result=positive)
    with pytest.raises(ToolResultError, match="ValueError: a balance cannot be negative"):
        made.project(-1)


@pytest.mark.spec("TSC-004")
def test_a_projection_that_raises_raises() -> None:
    """What `to_model_output` raises comes out as it is, and so counts as a failed projection."""
    made = tool(nothing, to_model_output=lambda value: value.missing)
    with pytest.raises(AttributeError):
        made.project(1)


def test_a_projection_may_return_anything_readable() -> None:
    """It is rendered like a result; what cannot be rendered is a refusal."""
    assert both(tool(nothing, to_model_output=lambda value: {"day": date(2026, 1, 2)}), 1) == '{"day": "2026-01-02"}'
    with pytest.raises(ToolResultError):
        tool(nothing, to_model_output=lambda value: object()).project(1)


def test_nothing_is_cut_off() -> None:
    """Long texts are the engine's to shorten; the tool shows all of it and says how much may be stored."""
    assert len(plain.project(["x" * 1_000_000])) == 1_000_004
    assert plain.max_result_bytes == MAX_RESULT_BYTES == 5_000_000
    assert tool(nothing, max_result_bytes=7).max_result_bytes == 7
