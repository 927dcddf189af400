"""`result.accounting`: totals of the ledger that a run spends from, whatever its status."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers import (
    Accounting,
    Agent,
    Amount,
    Budget,
    Deuz,
    MockModel,
    ModelAuthenticationError,
    StepInfo,
    StepPlan,
    Swarm,
    Task,
    Usage,
    tool,
)
from deuz_workers.providers.prices import Price
from deuz_workers.providers.script import Entry, call, calls, reply
from tests.app.world import World


@tool
async def look() -> str:
    return "seen"


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


def agent(*script: Entry, **given: Any) -> Agent:
    return Agent("x", model=MockModel(script), tools=[look, pay], **given)


def priced(app: Deuz) -> Deuz:
    """Its model costs a dollar for a million tokens of input, two for output."""
    app.prices = type(app.prices)({MockModel([]).name: Price(1, 2)})
    return app


@pytest.mark.spec("RES-008")
@pytest.mark.parametrize("budget", [None, Budget.of(tokens=1_000_000), Budget.of(usd=5), Budget.of(tokens=1_000_000, usd=5)])
async def test_spent_and_unknown_are_told_apart(world: World, budget: Budget | None) -> None:
    """One priced call and one without usage: both are non-zero, in tokens and money; nothing is left reserved; `committed` is
    their sum. The same in another process, from the budget's row where there is one."""
    app = priced(world.process(agent(calls(call("look")), reply("done", usage=None), budget=budget)))
    result = await app.aio.run_embedded("x", "go", run_id="r")
    found = result.accounting
    assert (result.status, found.spent.tokens) == ("completed", result.usage.total_tokens)
    assert (found.spent.cost_micros or 0) > 0
    assert found.unknown.tokens > found.spent.tokens
    assert (found.unknown.cost_micros or 0) > 0
    assert found.reserved == Amount()
    assert found.committed == found.spent + found.unknown
    assert (await priced(world.process()).aio.handle("r").result(5)).accounting == found


class Caching(MockModel):
    writes_cache = True


async def test_what_may_be_written_to_a_cache_is_reserved_as_that(world: World) -> None:
    """Whether the provider keeps a request is not known before: a call of unknown outcome holds what all of it would cost."""
    held: list[int | None] = []
    for kind in (MockModel, Caching):
        app = world.process(Agent("x", model=kind([reply("done", usage=None)])))
        app.prices = type(app.prices)({MockModel([]).name: Price(1, 0, cache_write_usd=3)})
        result = await app.aio.run_embedded("x", "go " * 1_000, run_id=kind.__name__)
        held.append(result.accounting.unknown.cost_micros)
    assert held[0] is not None
    assert held[1] == 3 * held[0]


@pytest.mark.parametrize("budget", [None, Budget.of(tokens=1_000_000)])
async def test_without_a_price_the_cost_is_not_known(world: World, budget: Budget | None) -> None:
    """Tokens are; a cost of zero would be a lie."""
    result = await world.process(agent("done", budget=budget)).aio.run_embedded("x", "go")
    assert result.accounting == Accounting(spent=Amount(result.usage.total_tokens, None))


@pytest.mark.spec("RES-008")
@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("done", "completed"),
        (calls(call("pay")), "suspended"),
        (reply("no", finish_reason="content_filter"), "stopped"),
        (ModelAuthenticationError("no key"), "failed"),
    ],
)
async def test_every_result_has_it(world: World, last: Entry, status: str) -> None:
    """Completed, suspended, stopped, failed: what was spent until then."""
    for budget in (None, Budget.of(tokens=1_000_000)):
        app = priced(world.process(agent(calls(call("look")), last, budget=budget)))
        result = await app.aio.run_embedded("x", "go")
        assert (result.status, result.accounting.spent.tokens) == (status, result.usage.total_tokens)
        assert result.accounting.spent.tokens > 0
        assert result.accounting.reserved == result.accounting.unknown == Amount()


async def test_a_task_accounts_for_the_budget_that_it_shares(world: World) -> None:
    """Each of two tasks reports the totals of the swarm's budget; one with a budget of its own reports that."""
    own = Budget.of(tokens=1_000_000, usd=5)
    tasks = [
        Task("a", agent="x", prompt="go"),
        Task("b", agent="x", prompt="go"),
        Task("c", agent="x", prompt="go", budget=own),
    ]
    script = [reply("done")] * 3
    app = priced(world.process(agent(*script)))
    await app.aio.run_swarm_embedded(Swarm("s", tasks, budget=own), run_id="s")
    a, b, c = [await app.aio.handle(f"s/{name}").result(5) for name in "abc"]
    assert a.accounting == b.accounting
    assert a.accounting.spent.tokens == sum(result.usage.total_tokens for result in (a, b, c))
    assert c.accounting.spent == Amount(c.usage.total_tokens, c.usage.cost_micros)


async def test_the_model_that_a_step_chose_is_the_one_that_is_paid(world: World) -> None:
    """`prepare_step` takes a dearer one for the second turn: its call is reserved and charged at its own price."""
    dear = MockModel(["never", reply("done", usage=Usage(10, 5))], model="dear")
    cheap = MockModel([calls(call("look"), usage=Usage(10, 5))])

    def choose(info: StepInfo) -> StepPlan:
        return StepPlan(model=dear if info.step == 2 else None)

    app = world.process(Agent("x", model=cheap, tools=[look], prepare_step=choose, budget=Budget.of(usd=5)))
    app.prices = type(app.prices)({cheap.name: Price(1, 2), dear.name: Price(100, 200)})
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, len(dear.requests)) == ("completed", 1)
    assert result.accounting.spent == Amount(30, 10 + 2 * 5 + 100 * 10 + 200 * 5)
    poor = world.process(Agent("x", model=MockModel([calls(call("look"))]), tools=[look], prepare_step=choose))
    poor.prices = app.prices
    refused = await poor.aio.run_embedded("x", "go", budget=Budget.of(usd=0.01))
    assert (refused.status, (refused.error or {})["code"], len(dear.requests)) == ("failed", "budget_exceeded", 1)
