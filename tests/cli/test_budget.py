"""Budgets on the command line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deuz_workers import Agent, Budget, Deuz, MockModel, Settings
from deuz_workers.cli.exits import Exit
from deuz_workers.providers.prices import Price
from deuz_workers.testing.script import call, calls, reply
from tests.cli.conftest import Deuz as Command

KEY = "org:acme"


@pytest.fixture
def spent(deuz: Command, sqlite_url: str) -> Command:
    """A database in which one call of a budget was settled and another one is unknown."""

    async def spend() -> None:
        model = MockModel([reply("done")], model="sure")
        silent = MockModel([reply("done", usage=None)], model="silent")
        estimate: dict[str, Any] = {"execution_estimate": Budget.of(tokens=100, usd=0.001)}
        agents = [Agent("sure", model=model, **estimate), Agent("silent", model=silent, **estimate)]
        app = Deuz(agents, settings=Settings(database_url=sqlite_url), prices={model.name: Price(1.0, 1.0)})
        for name in ("sure", "silent"):
            await app.aio.run_embedded(name, "go", run_id=name, scope="acme", shared_budgets=[KEY])
        await app.aclose()

    asyncio.run(spend())
    return deuz


def test_a_budget_is_limited_and_shown(spent: Command) -> None:
    """What counts, and against what; who set it is in the audit. A limit of nothing is refused."""
    deuz = spent
    shown = deuz("budget", "show", KEY, "--json").document
    assert (shown["key"], shown["limit"]["tokens"], shown["spent"]["tokens"], shown["unknown"]["tokens"]) == (
        KEY,
        None,
        15,
        100,
    )
    assert shown["counted"]["tokens"] == 115
    said = deuz(
        "budget", "set", KEY, "--tokens", "500", "--usd", "2.5", "--warn", "80", "--by", "ann", "--reason", "july", "--json"
    )
    assert (said.document["limit"], said.document["warn_at_percent"]) == ({"tokens": 500, "usd_micros": 2_500_000}, 80)
    told = deuz("budget", "show", KEY).out
    assert all(text in told for text in (KEY, "500", "$2.50", "115", "warns at 80%"))
    [row] = deuz("budget", "audit", KEY, "--json").document["audit"]
    assert (row["actor"], row["action"], row["reason"], row["tokens"]) == ("ann", "set", "july", 500)
    assert "ann" in deuz("budget", "audit").out
    assert deuz("budget", "set", KEY, "--by", "ann").code == Exit.USAGE
    assert deuz("budget", "set", KEY, "--tokens", "5").code == Exit.USAGE, "nobody said who"
    assert deuz("budget", "set", KEY, "--tokens", "5", "--window", "soon", "--by", "ann").code == Exit.USAGE
    assert deuz("budget", "show", "org:other").code == Exit.USAGE


def test_usage_is_told_by_model(spent: Command) -> None:
    """Settled and unknown apart, with the kinds of tokens."""
    deuz = spent
    models = {row["model"]: row for row in deuz("budget", "usage", KEY, "--json").document["models"]}
    assert {
        name.partition(":")[2]: (row["calls"], row["spent"]["tokens"], row["unknown"]["tokens"]) for name, row in models.items()
    } == {
        "sure": (1, 15, 0),
        "silent": (1, 0, 100),
    }
    assert "sure" in deuz("budget", "usage", KEY).out
    assert len(deuz("budget", "usage", KEY, "--since", "1h", "--json").document["models"]) == 2
    assert deuz("budget", "usage", KEY, "--since", "yesterday").code == Exit.USAGE


def test_a_hold_is_released_once(spent: Command) -> None:
    """It is listed with its run, and gone afterwards; the money counts no more."""
    deuz = spent
    [hold] = deuz("budget", "holds", "--json").document["holds"]
    assert (hold["run_id"], hold["scope"], hold["tokens"], hold["scope_keys"]) == ("silent", "acme", 100, [KEY])
    told = deuz("budget", "holds", KEY).out
    assert (hold["request_id"] in told, "silent" in told, "deuz budget release" in told) == (True, True, True)
    assert deuz("budget", "holds", "--older-than", "1h", "--json").document == {"holds": []}
    done = deuz("budget", "release", hold["request_id"], "--by", "ann", "--reason", "not billed", "--json").document
    assert done == {"request_id": hold["request_id"], "budgets": [KEY]}
    assert deuz("budget", "release", hold["request_id"], "--by", "ann").code == Exit.USAGE
    assert deuz("budget", "holds", "--json").document == {"holds": []}
    assert deuz("budget", "show", KEY, "--json").document["counted"]["tokens"] == 15
    [row] = deuz("budget", "audit", "--json").document["audit"]
    assert (row["actor"], row["action"], row["reason"]) == ("ann", "released", "not billed")


def test_the_ledger_of_a_run_is_compacted(spent: Command) -> None:
    """Nothing that counts changes, an unknown call is still listed, and the audit says who did it."""
    deuz = spent
    before = [deuz("budget", what, KEY, "--json").document for what in ("show", "usage")]
    done = deuz("budget", "compact", "sure", "--scope", "acme", "--by", "ann", "--reason", "old", "--json").document
    assert done == {"run_id": "sure", "runs": 1, "settled": 1, "released": 0, "unknown": 0, "waiting": 0}
    told = deuz("budget", "compact", "silent", "--scope", "acme", "--by", "ann").out
    assert ("0 settled calls summed up" in told, "1 call of unknown outcome" in told, "deuz budget holds" in told) == (
        True,
    ) * 3
    assert [deuz("budget", what, KEY, "--json").document for what in ("show", "usage")] == before
    [hold] = deuz("budget", "holds", "--json").document["holds"]
    assert hold["run_id"] == "silent"
    [row] = deuz("budget", "audit", "--json").document["audit"]
    assert (row["actor"], row["action"], row["reason"], row["tokens"]) == ("ann", "compacted", "old", 15)
    refused = deuz("budget", "compact", "sure", "--by", "ann", "--json")
    assert (refused.code, refused.document["error"]["code"]) == (Exit.USAGE, "run_not_found")


def test_a_run_says_what_each_model_cost(spent: Command) -> None:
    """In its record and in words; of a call whose usage nobody reported there is none."""
    deuz = spent
    [(model, used)] = deuz("runs", "show", "sure", "--scope", "acme", "--json").document["usage_by_model"].items()
    assert (used["input_tokens"], used["output_tokens"], used["cost_micros"]) == (10, 5, 15)
    assert f"{model}: 15 tokens, $0.0000" in deuz("runs", "show", "sure", "--scope", "acme").out
    assert deuz("runs", "show", "silent", "--scope", "acme", "--json").document["usage_by_model"] == {}


def test_a_run_says_what_its_children_cost(deuz: Command, sqlite_url: str) -> None:
    """Each with its status; what they used is part of what it used."""

    async def spend() -> None:
        child = Agent("child", model=MockModel([reply("found")], model="small"))
        model = MockModel([calls(call("child", prompt="look")), "done"], model="large")
        prices = {model.name: Price(1.0, 1.0), child.model.name: Price(2.0, 2.0)}
        app = Deuz([Agent("boss", model=model, tools=[child])], settings=Settings(database_url=sqlite_url), prices=prices)
        assert (await app.aio.run_embedded("boss", "go", run_id="b")).status == "completed"
        await app.aclose()

    asyncio.run(spend())
    shown = deuz("runs", "show", "b", "--json").document
    [child] = shown["children"]
    assert (child["agent"], child["status"], child["tokens"], child["cost_micros"]) == ("child", "completed", 15, 30)
    assert (shown["tokens"], shown["cost_micros"]) == (45, 60)
    told = deuz("runs", "show", "b").out
    assert (child["run_id"] in told, "15 tokens, $0.0000" in told) == (True, True)
