"""Texts that UTF-8 or a database has no place for: no request and no model makes the gateway fail with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deuz_workers import Agent, MockModel, tool
from deuz_workers.app.ui_parts import jsonable
from deuz_workers.providers.script import call, calls
from tests.app.world import World
from tests.gateway.agents import talker
from tests.gateway.serving import data_of, served
from tests.gateway.test_access import PATHS, ask

HALF = "caf\ud83d"


@tool(needs_approval=True)
async def send(what: dict[str, Any]) -> str:
    """Send something."""
    return "sent"


async def test_half_a_character_from_a_model_is_shown_escaped(world: World) -> None:
    """In what it says, in arguments that somebody is to approve, and in their names: on the wire and in the record alike."""
    what = {"text": HALF, HALF: 1}
    agents = (
        Agent("sends", model=MockModel([calls(call("send", what=what))]), tools=[send]),
        Agent("says", model=MockModel([HALF])),
    )
    async with served(world.process(*agents)) as gate:
        run_id = await gate.start("sends")
        [approval] = (await gate.report(run_id))["pending_approvals"]
        assert approval["arguments"] == {"what": what}
        assert data_of(await gate.frames(run_id))[-1]["pendingApprovals"][0]["input"] == {"what": what}
        assert (await gate.report(await gate.start("says")))["output"] == HALF


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_nul_in_a_name_is_a_name_that_nobody_has(world: World, method: str, path: str) -> None:
    """404 from every database."""
    async with served(world.process(talker()), drives=False) as gate:
        for name in ("%00", "a%00b"):
            assert (await ask(gate, method, path, name, {})).status_code == 404


async def test_a_long_text_is_shown_and_holds_nobody_up(memory: World) -> None:
    """The reason is looked through for secrets once, a name that is no field is not repeated whole."""
    async with served(memory.process(talker())) as gate:
        run_id = await gate.start("talker", start_in_ms=600_000)
        reason = "a" * 500_000
        assert (await gate.http.post(f"/v1/runs/{run_id}/cancel", json={"reason": reason})).status_code == 202
        assert (await gate.report(run_id))["stop_details"]["cancel_reason"].startswith("a" * 20_000)
        answer = await gate.http.post("/v1/runs", json={"agent": "talker", "prompt": "x", reason: 1})
        assert (answer.status_code, len(answer.text) < 5_000) == (422, True)


def test_what_json_cannot_say_is_said_as_far_as_it_can() -> None:
    """A name that is no UTF-8 costs nothing else of the value; a value that holds itself is null."""
    value: dict[str, Any] = {HALF: [float("nan"), b"\xff", {1}], "a": 1}
    assert jsonable(value) == {HALF: [None, "_w==", [1]], "a": 1}
    assert json.loads(json.dumps(jsonable(value))) == jsonable(value)
    value["self"] = value
    assert jsonable(value) is None
