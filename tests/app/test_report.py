"""What a person is told about a stored run."""

from __future__ import annotations

import pytest

from deuz_workers import Agent, MockModel, client_tool, inspect_run, tool
from deuz_workers.app.commands import answer_commands
from deuz_workers.errors import RunNotFoundError
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import World


@pytest.mark.spec("CKP-007")
async def test_a_report_says_what_happened_what_is_unknown_and_what_to_do(world: World) -> None:
    """Of one that died inside a tool: its events with times, the call that nobody knows of, the commands that settle it."""

    @tool
    async def pay(to: str) -> str:
        raise ProcessDied

    agent = Agent("payer", model=MockModel([calls(call("pay", to="ann").with_id("c1")), "done"]), tools=[pay])
    with pytest.raises(ProcessDied):
        await world.process(agent).aio.run_embedded("payer", "go", run_id="r:1", scope="acme")
    crashed = await inspect_run("r:1", store=world.store, scope="acme")
    [effect] = crashed.unknown_effects
    assert (effect.tool_call_id, effect.tool_name, effect.arguments, effect.step) == ("c1", "pay", {"to": "ann"}, 1)
    assert [(one.tool_call_id, one.stage, one.attempt) for one in crashed.calls] == [("c1", "executing", 1)]
    await world.process(agent).aio.resume_embedded("r:1", scope="acme")
    report = await world.process(agent).aio.handle("r:1", "acme").report()
    assert (report.status, report.parked) == ("running", "tool-reconciliation-required")
    assert [event.type for event in report.events][-3:] == ["model.called", "model.replied", "tool.started"]
    assert [event.at_ms for event in report.events] == sorted(event.at_ms for event in report.events)
    [task] = report.to_do
    assert task.commands == (
        f"deuz runs retry r:1 --scope acme --call {effect.effect_id}   (runs the call again)",
        f"deuz runs reconcile r:1 --scope acme --call {effect.effect_id} --output JSON   (or --error TEXT)",
    )
    for said in ("tool.started", "unknown: pay (call c1, turn 1, attempt 1)", *task.commands):
        assert said in report.text
    assert (await world.head("r:1", "acme")).revision == report.revision
    with pytest.raises(RunNotFoundError):
        await inspect_run("r:1", store=world.store)


async def test_a_report_names_the_commands_that_answer(memory: World) -> None:
    """One for each way to answer each item; a run that has ended leaves nothing to do."""

    @tool(needs_approval=True)
    async def pay() -> None: ...

    ask = client_tool("ask", "Ask the user.", {"type": "object", "properties": {}})
    model = MockModel([calls(call("pay").with_id("p"), call("ask").with_id("a")), "done"])
    agent = Agent("x", model=model, tools=[pay, ask])
    result = await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    [gate], [asked] = result.pending_approvals, result.pending_client_calls
    report = await inspect_run("r", store=memory.store)
    assert [task.commands for task in report.to_do] == [
        (f"deuz runs approve r {gate.approval_id}", f"deuz runs deny r {gate.approval_id} --reason TEXT"),
        (f"deuz runs answer r {asked.item_id} --output JSON   (or --error TEXT)",),
    ]
    app = memory.process(agent)
    await app.aio.resume_embedded("r", approvals={gate.approval_id: True}, client_tool_results={"a": "yes"})
    ended = await app.aio.handle("r").report()
    assert (ended.status, ended.to_do, ended.unknown_effects) == ("completed", (), ())
    assert [one.stage for one in ended.calls] == ["completed", "completed"]


def test_commands_to_copy_quote_what_others_have_named() -> None:
    """A run id is whatever its producer chose, and a person pastes the command into a shell."""
    approval = {"approval_id": "c@1", "people": (), "needed": 1, "token": None}
    for waits in (approval, {"item_id": "c@1"}):
        for command in answer_commands("a;reboot", "b&c", waits):
            assert " 'a;reboot' " in command
            assert " --scope 'b&c'" in command
