"""A call that is repeated after a death passes its guardrails again, since the history keeps what the model said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.guard import Block, GuardContext, Guardrails, Rewrite
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.simulation import Simulation
from deuz_workers.tools.decorator import tool_from_schema

SCHEMA: dict[str, object] = {"type": "object", "properties": {"amount": {"type": "integer"}}}


def agent(seen: list[object], on_call: Any) -> AgentDefinition:
    async def put(arguments: Mapping[str, Any], context: object) -> str:
        seen.append(arguments["amount"])
        return "ok"

    made = tool_from_schema("put", "Puts.", SCHEMA, put, replay="idempotent")
    script = MockModel([calls(call("put", amount=2)), "done"])
    return AgentDefinition("a", script, tools={"put": made}, guardrails=Guardrails(on_tool_call=(on_call,)))


@pytest.mark.parametrize("place", ["before tool", "after tool"])
async def test_a_repeated_call_begins_with_what_guardrails_made_of_it(place: str) -> None:
    """Never with the model's arguments, however often it begins."""

    def raised(arguments: Mapping[str, Any], context: GuardContext) -> Rewrite | None:
        return Rewrite({"amount": 102}) if arguments["amount"] == 2 else None

    seen: list[object] = []
    simulation = Simulation({"a": agent(seen, raised)})
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", place)
    run = await simulation.run("r")
    assert run.envelope.output == "done"
    assert seen == [102] * (1 if place == "before tool" else 2)


async def test_a_call_that_is_forbidden_by_now_is_not_repeated() -> None:
    """The newer verdict counts: the call fails as blocked, and its tool is left alone."""
    verdicts: list[Block | None] = [None, Block("not any more")]
    seen: list[object] = []
    simulation = Simulation({"a": agent(seen, lambda arguments, context: verdicts.pop(0))})  # pyright: ignore[reportUnknownLambdaType]
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", "before tool")
    run = await simulation.run("r")
    [result] = run.history[2].tool_results
    assert (result.outcome, seen, run.envelope.output) == ("blocked", [], "done")
