"""Budgets and brakes over HTTP: for operators alone, and kept with who did what."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from deuz_workers import Agent, Budget, MockModel
from deuz_workers.errors import ConfigurationError
from deuz_workers.gateway import Principal
from deuz_workers.gateway.application import OPERATIONS
from deuz_workers.gateway.principal import ForbiddenError
from deuz_workers.testing.script import reply
from tests.app.world import World
from tests.gateway.agents import talker
from tests.gateway.serving import served

KEY = "org:acme"
BUDGET = f"/v1/budgets/{quote(KEY)}"


def silent() -> Agent:
    """Its model says nothing of what it used, so that each call stays unknown."""
    model = MockModel([reply("done", usage=None)], model="silent")
    return Agent("silent", model=model, execution_estimate=Budget.of(tokens=100, usd=0.001))


async def test_a_budget_is_limited_shown_and_its_hold_released_once(world: World) -> None:
    """As on the command line, under the name of the token; what nobody set or holds is told with 404."""
    app = world.process(silent())
    async with served(app, drives=False) as gate:
        ops = await gate.token("olga", "@operator")
        missing = await gate.http.get(BUDGET, headers=ops)
        assert (missing.status_code, missing.json()["code"]) == (404, "no_budget")
        await app.aio.run_embedded("silent", "go", run_id="s", shared_budgets=[KEY])
        said = {"tokens": 500, "warn_at_percent": 80, "reason": "july"}
        made = await gate.http.put(BUDGET, json=said, headers=ops)
        assert made.status_code == 200, made.text
        shown = (await gate.http.get(BUDGET, headers=ops)).json()
        assert shown == made.json()
        assert (shown["key"], shown["limit"], shown["warn_at_percent"]) == (KEY, {"tokens": 500, "usd_micros": None}, 80)
        assert (shown["unknown"]["tokens"], shown["counted"]["tokens"]) == (100, 100)
        for path in (f"{BUDGET}/usage", f"{BUDGET}/usage?newest_ms=3600000"):
            [used] = (await gate.http.get(path, headers=ops)).json()["models"]
            assert (used["calls"], used["unknown"]["tokens"]) == (1, 100)
        [hold] = (await gate.http.get("/v1/holds", params={"key": KEY}, headers=ops)).json()["holds"]
        assert (hold["run_id"], hold["tokens"], KEY in hold["budgets"]) == ("s", 100, True)
        release = f"/v1/holds/{quote(hold['request_id'], safe='')}/release"
        freed = await gate.http.post(release, json={"reason": "not billed"}, headers=ops)
        assert freed.status_code == 200, freed.text
        assert KEY in freed.json()["budgets"]
        again = await gate.http.post(release, json={}, headers=ops)
        assert (again.status_code, again.json()["code"]) == (404, "no_hold")
        assert (await gate.http.get("/v1/holds", headers=ops)).json() == {"holds": []}
        assert (await gate.http.get(BUDGET, headers=ops)).json()["counted"]["tokens"] == 0
        audit = (await gate.http.get("/v1/budget-audit", params={"key": KEY}, headers=ops)).json()["audit"]
        assert [(row["actor"], row["action"], row["reason"]) for row in audit] == [
            ("olga", "released", "not billed"),
            ("olga", "set", "july"),
        ]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "configuration"),
        ({"tokens": -1}, 422, "invalid_request"),
        ({"tokens": 5, "slices": 2, "window": {"ms": 60_000}}, 422, "configuration"),
        ({"tokens": 5, "window": {"ms": 60_000}}, 409, "window_mismatch"),
    ],
)
async def test_a_limit_that_cannot_be_meant_changes_nothing(
    memory: World, body: dict[str, object], status: int, code: str
) -> None:
    """Neither the budget nor what is kept of it."""
    async with served(memory.process(talker()), drives=False) as gate:
        ops = await gate.token("olga", "@operator")
        before = await gate.http.put(BUDGET, json={"tokens": 7, "window": {"ms": 3_600_000}}, headers=ops)
        assert before.status_code == 200, before.text
        refused = await gate.http.put(BUDGET, json=body, headers=ops)
        assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
        assert (await gate.http.get(BUDGET, headers=ops)).json() == before.json()
        assert len((await gate.http.get("/v1/budget-audit", headers=ops)).json()["audit"]) == 1


async def test_a_brake_is_set_and_lifted_by_name(world: World) -> None:
    """It is a row that workers read, with who and why; an unknown kind is refused before anything is written."""
    app = world.process(talker())
    async with served(app, drives=False) as gate:
        ops = await gate.token("olga", "@operator")
        model = "/v1/brakes/model/mock%3Am"
        assert (await gate.http.put(model, json={"reason": "leak"}, headers=ops)).status_code == 200
        refused = await gate.http.put("/v1/brakes/planet/x", json={}, headers=ops)
        assert (refused.status_code, refused.json()["code"]) == (422, "configuration")
        [brake] = await app.aio.operator.brakes()
        assert (brake.kind, brake.name, brake.reason, brake.actor) == ("model", "mock:m", "leak", "olga")
        [listed] = (await gate.http.get("/v1/brakes", headers=ops)).json()["brakes"]
        assert (listed["name"], listed["actor"]) == ("mock:m", "olga")
        for lifted in (True, False):
            assert (await gate.http.post(f"{model}/lift", json={}, headers=ops)).json()["lifted"] is lifted
        page = (await gate.http.get("/v1/brakes", params={"acts": 10}, headers=ops)).json()
        assert page["brakes"] == []
        assert {act["act"] for act in page["acts"]} == {"set", "lifted"}


async def test_only_operators_are_let_in_and_they_see_no_runs(memory: World) -> None:
    """`*` is every tenant and no operator; an operator's token alone opens no run, and no tenant is called like its scope."""
    async with served(memory.process(talker()), drives=False) as gate:
        everybody, ops = await gate.token("eve", "*"), await gate.token("olga", "@operator")
        for one in OPERATIONS:
            if one.access == "operator":
                for headers in (everybody, None):
                    answer = await gate.http.request(one.method, one.path, headers=headers)
                    assert (answer.status_code, answer.json()["code"]) == (403, "scope_forbidden"), one.name
        for params in ({}, {"scope": "default"}, {"scope": "@operator"}):
            answer = await gate.http.get("/v1/runs", params=params, headers=ops)
            assert (answer.status_code, answer.json()["code"]) == (403, "scope_forbidden")
        assert (await gate.http.get("/v1/runs", params={"scope": "@operator"}, headers=everybody)).status_code == 403
        assert (await gate.http.get("/v1/brakes", headers=await gate.token("both", "default", "@operator"))).status_code == 200


def test_the_scope_of_operators_is_no_tenant() -> None:
    """Beside one tenant, that is the scope of a request which names none."""
    both = Principal("both", ("@operator", "blue"))
    assert (both.tenants, both.scope(None)) == (("blue",), "blue")
    both.check_operator()
    for scopes in (("*",), ("blue",), ()):
        with pytest.raises(ForbiddenError):
            Principal("x", scopes).check_operator()
    with pytest.raises(ConfigurationError):
        Principal("x", ("blue", "green", "@operator")).scope(None)
