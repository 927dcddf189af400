"""Execution contexts: every limit that they bind holds the runs that are given them, and only as far as it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deuz_workers import Agent, MockModel, create_execution_context, tool
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.errors import ConfigurationError
from deuz_workers.providers.prices import Price, PriceList
from deuz_workers.providers.script import call, calls
from tests.app.world import Effects, World


class Desk:
    """An agent that reads once."""

    def __init__(self) -> None:
        self.done = Effects()
        self.model = MockModel([calls(call("read")), "done"])

        @tool
        async def read() -> str:
            self.done("read")
            return "read"

        self.agent = Agent("clerk", model=self.model, tools=[read], max_output_tokens=1_000)


@pytest.mark.spec("POL-001")
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"allowed_models": {"mock:script"}}, None),
        ({"allowed_models": {"mock:other"}}, "model_not_allowed"),
        ({"allowed_tools": {"read"}}, None),
        ({"allowed_tools": set[str]()}, "tool_not_allowed"),
        ({"required_approvals": {"pay"}}, None),
        ({"required_approvals": {"read"}}, "suspended"),
        ({"deadline": timedelta(hours=1)}, None),
        ({"deadline": timedelta(seconds=-1)}, "deadline_exceeded"),
        ({"budget_key": "team:blue", "tokens": 100_000}, None),
        ({"budget_key": "team:blue", "tokens": 10}, "budget_exceeded"),
        ({"budget_key": "team:blue", "usd": 1_000.0}, None),
        ({"budget_key": "team:blue", "usd": 0.000_001}, "budget_exceeded"),
    ],
    ids=str,
)
async def test_each_limit_holds_what_it_names(world: World, limits: dict[str, Any], code: str | None) -> None:
    """A run within it completes; one beyond it ends, or waits for a person, by the limit's own code."""
    desk = Desk()
    app = world.process(desk.agent)
    app.prices = PriceList({desk.model.name: Price(1.0, 1.0)})
    if "allowed_models" in limits and code is None:
        limits = {"allowed_models": {desk.model.name}}
    if "deadline" in limits:
        limits = {"deadline": datetime.now(UTC) + limits["deadline"]}
    result = await app.aio.run_embedded("clerk", "go", **create_execution_context(**limits).options)
    if code is None:
        assert (result.status, desk.done.done) == ("completed", {"read": 1})
    elif code == "suspended":
        assert (result.status, len(result.pending_approvals), desk.done.done) == ("suspended", 1, {})
    else:
        assert (result.status, dict(result.error or {})["code"], desk.done.done) == ("failed", code, {})


@pytest.mark.spec("POL-001")
@pytest.mark.parametrize(("depth", "status"), [(None, "completed"), (1, "completed"), (0, "failed")])
async def test_a_depth_is_bound_too(world: World, depth: int | None, status: str) -> None:
    """A run may delegate down to it; one deeper begins nothing."""
    child = Agent("child", model=MockModel(["found"]))
    boss = Agent("boss", model=MockModel([calls(call("child", prompt="look")), "done"]), tools=[child])
    context = create_execution_context(max_depth=depth)
    result = await world.process(boss).aio.run_embedded("boss", "go", run_id="r", **context.options)
    assert result.status == status
    if status == "failed":
        assert dict(result.error or {})["code"] == "depth_exceeded"
        assert await world.store.children((await world.head("r")).rid, 9) == ()


async def test_runs_of_a_context_share_its_budget(world: World) -> None:
    """What the first one used is not there for the second, which alone would have had room."""
    desk, other = Desk(), Desk()
    context = create_execution_context(budget_key="team:blue", tokens=1_500)
    first = await world.process(desk.agent).aio.run_embedded("clerk", "go", **context.options)
    second = await world.process(other.agent).aio.run_embedded("clerk", "go", **context.options)
    left = await world.store.balance("team:blue")
    assert left is not None
    assert left.limit.tokens is None or left.limit.tokens == 1_500
    used = first.usage.total_tokens + second.usage.total_tokens
    assert (left.counted.tokens or 0) == used


def test_a_context_below_another_one_is_narrower() -> None:
    """The policies together, and all budgets of both."""
    context = create_execution_context(allowed_tools={"a", "b"}, budget_key="team:blue", tokens=5)
    below = create_execution_context(allowed_tools={"b", "c"}, max_depth=0).policy
    child = context.narrowed(below, SharedBudget("user:42"))
    assert (child.policy.allowed_tools, child.policy.max_depth) == (frozenset({"b"}), 0)
    assert [budget.key for budget in child.shared_budgets] == ["team:blue", "user:42"]
    with pytest.raises(ConfigurationError, match="team:blue"):
        context.narrowed(None, SharedBudget("team:blue"))


@pytest.mark.parametrize(
    "limits",
    [{"deadline": datetime(2030, 1, 1)}, {"tokens": 5}, {"usd": 1.0}, {"max_depth": -1}, {"allowed_tools": "read"}],  # noqa: DTZ001
    ids=str,
)
def test_what_cannot_be_meant_is_refused(limits: dict[str, Any]) -> None:
    """A time without a zone, a budget without a key, and what no policy takes."""
    with pytest.raises(ConfigurationError):
        create_execution_context(**limits)
