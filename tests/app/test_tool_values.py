"""Whatever a tool returns, the run goes on: the value round-trips, or the model is told why it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath

import pytest

from deuz_workers import Agent, MockModel, tool
from deuz_workers.core.receipts import MISSING
from deuz_workers.providers.script import call, calls
from tests.app.world import World


def recursive() -> list[object]:
    around: list[object] = []
    around.append(around)
    return around


@dataclass
class Point:
    x: int


KEPT: dict[str, object] = {
    "NUL": "a\u0000b",
    "NaN": math.nan,
    "infinity": math.inf,
    "lone surrogate": "\ud800",
    "bytes": b"\x00\xff",
    "decimal": Decimal("1.10"),
    "naive datetime": datetime(2024, 2, 29, 12, 0),  # noqa: DTZ001
    "datetime with a zone": datetime(2024, 2, 29, 12, 0, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    "datetime in UTC": datetime(2024, 2, 29, tzinfo=UTC),
    "tuple": (1, (2, 3)),
    "set": {1, 2},
    "large integer": 2**70,
    "None": None,
    "keys that are no text": {1: "a", (2, 3): "b"},
    "our own mark": {"$deuz": "int", "v": "1"},
}
REFUSED: dict[str, Callable[[], object]] = {
    "itself": recursive,
    "ten megabytes": lambda: "x" * 10_000_000,
    "an object": object,
    "a function": lambda: len,
}


@pytest.mark.spec("FR-36")
@pytest.mark.parametrize("name", KEPT)
async def test_the_value_comes_back_as_it_was(world: World, name: str) -> None:
    """Equal and of the same type in the receipt, and the run completes."""
    value = KEPT[name]
    stored = await _stored(world, lambda: value)
    assert type(stored) is type(value)
    assert stored == value or (isinstance(value, float) and math.isnan(value))


@pytest.mark.spec("FR-36")
@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_stored_is_the_calls_error(world: World, name: str) -> None:
    """The model reads a sentence that names the tool and the reason, and the run completes."""
    model, _ = await _run(world, REFUSED[name])
    [part] = [part for message in model.requests[-1].messages for part in message.tool_results]
    assert part.is_error
    assert "give returned what cannot be stored" in part.text
    assert len(part.text) < 1_000


async def test_what_has_no_type_of_its_own_in_the_store_comes_back_plainer(world: World) -> None:
    """A dataclass as its fields, a path as its text: reading must not need the writer's classes."""
    assert await _stored(world, lambda: Point(3)) == {"x": 3}
    assert await _stored(world, lambda: PurePosixPath("/a/b")) == "/a/b"


async def _stored(world: World, give: Callable[[], object]) -> object:
    _, run_id = await _run(world, give)
    [receipt] = (await world.receipts(run_id)).values()
    assert receipt.value is not MISSING
    return receipt.value


async def _run(world: World, value: Callable[[], object]) -> tuple[MockModel, str]:
    @tool
    async def give() -> object:
        return value()

    model = MockModel([calls(call("give")), "done"])
    result = await world.process(Agent("x", model=model, tools=[give])).aio.run_embedded("x", "go")
    assert result.status == "completed", result.error
    return model, result.run_id
