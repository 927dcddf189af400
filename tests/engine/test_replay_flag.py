"""Who decides whether an interrupted call runs again: its receipt, and only where that is silent the registered tool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from deuz_workers.core.change import Change, Outcome, ReceiptRow
from deuz_workers.core.codec import decode, encode
from deuz_workers.core.run import Run
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.simulation import SCOPE, Simulation
from deuz_workers.tools.decorator import tool_from_schema

SCHEMA: dict[str, object] = {"type": "object", "properties": {}}


def agent(ran: list[str], replay: Literal["idempotent"] | None) -> AgentDefinition:
    async def put(arguments: dict[str, Any], context: object) -> str:
        ran.append("put")
        return "ok"

    made = tool_from_schema("put", "Puts.", SCHEMA, put, replay=replay)
    return AgentDefinition("a", MockModel([calls(call("put")), "done"]), tools={"put": made})


async def interrupted(simulation: Simulation, point: str) -> None:
    """Run in a first process until it dies at `point`, with the call's receipt in `executing`."""
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", point)


def without_flag(row: ReceiptRow) -> ReceiptRow:
    record = decode(row.body)
    assert isinstance(record, dict)
    record.pop("idempotent", None)
    return replace(row, body=encode(record))


@pytest.mark.spec("IDM-004")
async def test_the_recorded_flag_wins_over_the_registered_one() -> None:
    """Flag switched on after the crash, receipt recorded false: nothing runs, the run is parked for reconciliation."""
    ran: list[str] = []
    simulation = Simulation({"a": agent(ran, None)})
    await interrupted(simulation, "before tool")
    simulation.agents = {"a": agent(ran, "idempotent")}
    parked: list[str] = []

    async def on_parked(run: Run) -> None:
        parked.extend(receipt.call_id for receipt in run.interrupted)
        await simulation.store.add_note(SCOPE, "r", "retry", encode({"tool_call_ids": parked}))

    run = await simulation.run("r", on_parked)
    assert len(parked) == 1
    assert (run.envelope.output, ran) == ("done", ["put"])


@pytest.mark.spec("IDM-004")
async def test_a_flag_that_was_switched_off_later_has_no_say() -> None:
    """Receipt recorded true: the call runs again by itself, although the registered tool would not."""
    ran: list[str] = []
    simulation = Simulation({"a": agent(ran, "idempotent")})
    await interrupted(simulation, "after tool")
    simulation.agents = {"a": agent(ran, None)}
    run = await simulation.run("r")
    assert (run.envelope.output, ran) == ("done", ["put", "put"])


@pytest.mark.spec("IDM-004")
@pytest.mark.parametrize(("replay", "times", "questions"), [("idempotent", 2, 0), (None, 1, 1)])
async def test_a_receipt_without_the_field_is_judged_by_the_registered_tool(
    monkeypatch: pytest.MonkeyPatch, replay: Literal["idempotent"] | None, times: int, questions: int
) -> None:
    """Receipt without the field: it runs again by itself if the registered tool is idempotent, else somebody is asked."""
    ran: list[str] = []
    simulation = Simulation({"a": agent(ran, replay)})
    commit = simulation.store.commit

    async def of_an_older_version(change: Change) -> Outcome:
        return await commit(replace(change, receipts=tuple(map(without_flag, change.receipts))))

    monkeypatch.setattr(simulation.store, "commit", of_an_older_version)
    await interrupted(simulation, "after tool")
    assert ran == ["put"]
    asked: list[str] = []

    async def on_parked(run: Run) -> None:
        asked.extend(receipt.call_id for receipt in run.interrupted)
        outcomes = {call_id: {"output": "was put"} for call_id in asked}
        await simulation.store.add_note(SCOPE, "r", "reconcile", encode({"results": outcomes}))

    run = await simulation.run("r", on_parked)
    assert (run.envelope.output, len(ran), len(asked)) == ("done", times, questions)
