"""What operators ask about budgets and say."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers import (
    Agent,
    Budget,
    BudgetLedgerError,
    ConfigurationError,
    MockModel,
    RunNotEndedError,
    RunNotFoundError,
    Window,
    tool,
)
from deuz_workers.app import ledger
from deuz_workers.core.names import run_scope_key
from deuz_workers.providers.script import call, calls, reply
from tests.app.world import World

USER = "user:42"


def agent(**given: Any) -> Agent:
    model = MockModel([reply("done", usage=None)])
    return Agent("x", model=model, execution_estimate=Budget.of(tokens=100, usd=0.001), **given)


@pytest.mark.spec("BUD-020")
async def test_an_unknown_hold_is_released_by_its_request(world: World) -> None:
    """It is in the budget's usage and in the list; the release works once, and the audit says who did it."""
    await world.process(agent()).aio.run_embedded("x", "go", run_id="r", shared_budgets=[USER])
    [hold] = await ledger.holds(world.store, USER)
    assert (hold.run_id, hold.tokens, hold.scope_keys) == ("r", 100, (USER,))
    assert [row.unknown.tokens for row in await ledger.usage(world.store, USER)] == [100]
    assert await ledger.release_hold(world.store, hold.request_id, actor="eve", reason="not billed") == (USER,)
    with pytest.raises(ConfigurationError, match="released before"):
        await ledger.release_hold(world.store, hold.request_id, actor="eve")
    assert await ledger.holds(world.store) == ()
    [row] = await ledger.audit(world.store, USER)
    assert (row.actor, row.action, row.reason, row.request_id) == ("eve", "released", "not billed", hold.request_id)
    assert (await ledger.budget(world.store, USER)).counted == Budget(0, 0)


async def test_a_budget_is_set_and_shown(world: World) -> None:
    """With everything that was said about it; one that nobody knows is named."""
    with pytest.raises(ConfigurationError, match="nobody has set it"):
        await ledger.budget(world.store, USER)
    hour = Window(3_600_000)
    balance = await ledger.set_budget(world.store, USER, Budget.of(usd=5), window=hour, warn_at_percent=80, actor="eve")
    assert (balance.limit, balance.window, balance.warn_at_percent) == (Budget(None, 5_000_000), hour, 80)
    with pytest.raises(BudgetLedgerError, match="another window"):
        await ledger.set_budget(world.store, USER, Budget.of(usd=5), window=Window(60_000), actor="eve")
    with pytest.raises(ConfigurationError, match="slices"):
        await ledger.set_budget(world.store, USER, Budget.of(usd=5), slices=4, actor="eve")


@pytest.mark.parametrize(
    ("key", "limit", "given"),
    [
        (USER, Budget(), {}),
        (USER, Budget(tokens=-1), {}),
        ("a#1", Budget(tokens=1), {}),
        ("run:1", Budget(tokens=1), {}),
        (USER, Budget(tokens=1), {"slices": 65}),
        (USER, Budget(tokens=1), {"warn_at_percent": 101}),
    ],
)
async def test_what_cannot_be_meant_is_refused(memory: World, key: str, limit: Budget, given: dict[str, Any]) -> None:
    """And nothing is written."""
    with pytest.raises(ConfigurationError):
        await ledger.set_budget(memory.store, key, limit, actor="eve", **given)
    assert await ledger.audit(memory.store) == ()


@pytest.mark.spec("LED-010")
async def test_the_ledger_of_an_ended_run_is_compacted(world: World) -> None:
    """Accounting of its result, balances and usage are what they were; its request is gone, and who did it is in the audit."""
    paid = Agent("paid", model=MockModel([reply("done")], model="m"), execution_estimate=Budget.of(tokens=100))
    app = world.process(paid, agent())
    for name in ("paid", "x"):
        await app.aio.run_embedded(name, "go", run_id=name, shared_budgets=[USER], budget=Budget.of(tokens=10_000))
    keys = (USER, run_scope_key((await world.head("paid")).rid))
    before = [(await ledger.budget(world.store, key), await ledger.usage(world.store, key)) for key in keys]
    results = [await app.aio.handle(name).result() for name in ("paid", "x")]
    done = await app.aio.compact_ledger("paid", actor="eve", reason="old")
    assert (done.runs, done.settled, done.released, done.unknown) == (1, 1, 0, 0)
    assert (await app.aio.compact_ledger("x", actor="eve")).unknown == 1
    assert [(await ledger.budget(world.store, key), await ledger.usage(world.store, key)) for key in keys] == before
    assert [await app.aio.handle(name).result() for name in ("paid", "x")] == results
    assert [hold.run_id for hold in await ledger.holds(world.store, USER)] == ["x"]
    [row] = await ledger.audit(world.store, USER)
    assert (row.actor, row.action, row.reason, row.tokens) == ("eve", "compacted", "old", 15)
    assert (await app.aio.compact_ledger("paid", actor="eve")).settled == 0


async def test_the_ledger_of_a_run_that_goes_on_is_not_compacted(world: World) -> None:
    """It is named with how it stands and what to do; one that nobody knows is not found."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    asks = Agent("asks", model=MockModel([calls(call("pay"))]), tools=[pay])
    app = world.process(asks)
    await app.aio.run_embedded("asks", "go", run_id="r")
    with pytest.raises(RunNotEndedError, match="'r' is suspended; compact once it has ended") as caught:
        await app.aio.compact_ledger("r", actor="eve")
    assert (caught.value.code, caught.value.fields["status"]) == ("run_not_ended", "suspended")
    with pytest.raises(RunNotFoundError):
        await app.aio.compact_ledger("nobody", actor="eve")


async def test_what_is_no_call_is_named(memory: World) -> None:
    """An id that is none of ours."""
    with pytest.raises(ConfigurationError, match="no id of a model call"):
        await ledger.release_hold(memory.store, "nonsense", actor="eve")
