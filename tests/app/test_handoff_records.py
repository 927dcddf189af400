"""What is stored of transfers: who drives after a crash, a fork, an export; what a resume has to match."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deuz_workers import Agent, client_tool, resume_agent, run_agent, tool
from deuz_workers.providers.script import call, calls
from deuz_workers.store import open_store
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.delegating import gated, scripted
from tests.app.handing_over import NEVER, asked, member, offered, paying, results, to
from tests.app.world import Effects, World

SENTENCE = "Native agent binding changed across resume."


def there_and_back(done: Effects) -> Agent:
    """Triage hands over to billing, which pays and hands back; a call that may be repeated stands beside each transfer."""

    @tool(replay="idempotent")
    async def look() -> str:
        done("look")
        return "seen"

    first = calls(call("look").with_id("l"), call("transfer_to_billing", reason="money").with_id("t"))
    back = calls(call("transfer_to_triage").with_id("t"), call("look").with_id("l"))
    billing = member("billing", NEVER, calls(call("pay").with_id("p")), back, tools=[paying(done, replay="idempotent"), look])
    return member("triage", first, NEVER, NEVER, "done", tools=[look], handoffs=[billing])


@pytest.mark.spec("HND-009")
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
async def test_a_run_survives_a_death_at_every_commit_around_its_transfers(memory: World, at: int, applied: bool) -> None:
    """Whoever goes on asks the agent that drives, and nobody is handed the run twice for one call."""
    dying, next_one = there_and_back(Effects()), there_and_back(Effects())
    try:
        result = await memory.dying(dying, at=at, applied=applied).aio.run_embedded("triage", "go", run_id="r")
    except ProcessDied:
        result = await memory.process(next_one).aio.resume_embedded("r")
    assert (result.status, result.output) == ("completed", "done"), result
    envelope = await memory.process().aio.handle("r").envelope()
    assert [(made.step, made.source, made.to) for made in envelope.handoffs] == [
        (1, "triage", "billing"),
        (3, "billing", "triage"),
    ]
    parts = [(part.name, part.text) for message in result.messages for part in message.tool_results]
    assert parts == [
        ("look", "seen"),
        ("transfer_to_billing", "Transferred to 'billing'. Reason: money"),
        ("pay", "paid by billing"),
        ("transfer_to_triage", "Transferred to 'triage'."),
        ("look", "seen"),
    ]
    events = [event async for event in memory.process().aio.handle("r").events(follow=False)]
    assert [dict(event.data)["to"] for event in events if event.type == "run.handed_off"] == ["billing", "triage"]


@pytest.mark.spec("HND-009")
async def test_a_resume_after_a_transfer_asks_the_target(world: World) -> None:
    """The count and the active agent are in the record; the process that goes on begins with the target."""

    def made() -> tuple[Agent, Agent]:
        waits = calls(call("pay").with_id("p"))
        billing = member("billing", NEVER, waits, "done", tools=[paying(Effects(), needs_approval=True)])
        return billing, member("triage", to("billing"), handoffs=[billing])

    _, triage = made()
    waiting = await world.process(triage).aio.run_embedded("triage", "go", run_id="r")
    envelope = await world.process().aio.handle("r").envelope()
    assert (envelope.agent, envelope.active_agent, len(envelope.handoffs)) == ("triage", "billing", 1)
    assert (await world.head("r")).version == 2
    billing, triage = made()
    [item] = waiting.pending_approvals
    result = await world.process(triage).aio.resume_embedded("r", approvals={item.approval_id: True})
    assert (result.output, asked(triage), len(asked(billing))) == ("done", (), 1)
    assert [part.text for part in results(billing)] == ["Transferred to 'billing'.", "paid by billing"]


async def test_calls_beside_a_transfer_stay_with_the_agent_that_asked(world: World) -> None:
    """The transfer is saved and the process dies in the call beside it: the next one ends that call with the tool of the first
    agent, although the target has one of that name, and only then asks the target."""
    died = [True]

    def made() -> tuple[Agent, Agent]:
        @tool(replay="idempotent")
        async def pay() -> str:
            if died.pop():
                while not (await world.process().aio.handle("r").envelope()).handoffs:  # noqa: ASYNC110 - another store's
                    await asyncio.sleep(0.002)
                raise ProcessDied
            return "paid by the first"

        turn = calls(call("transfer_to_billing").with_id("t"), call("pay").with_id("p"))
        billing = member("billing", NEVER, "done", tools=[paying(Effects())])
        return billing, member("triage", turn, tools=[pay], handoffs=[billing])

    with pytest.raises(ProcessDied):
        await world.process(made()[1]).aio.run_embedded("triage", "go", run_id="r")
    died.append(False)
    billing, triage = made()
    result = await world.process(triage).aio.resume_embedded("r")
    assert (result.status, asked(triage)) == ("completed", ())
    assert [part.text for part in results(billing)] == ["Transferred to 'billing'.", "paid by the first"]


@pytest.mark.spec("HND-010", "RCP-011")
@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_receipt_is_of_the_tool_that_ran(world: World, idempotent: bool) -> None:
    """Target and first agent have a tool of one name, of which one may be repeated: what the target's says counts."""
    replays = "idempotent" if idempotent else None

    def made(dies: bool) -> Agent:
        @tool(name="pay", replay=replays)
        async def dying() -> str:
            if dies:
                raise ProcessDied
            return "paid again"

        other = paying(Effects(), replay=None if idempotent else "idempotent")
        billing = member("billing", NEVER, calls(call("pay").with_id("p")), "done", tools=[dying])
        return member("triage", to("billing"), tools=[other], handoffs=[billing])

    with pytest.raises(ProcessDied):
        await world.process(made(True)).aio.run_embedded("triage", "go", run_id="r")
    receipt = (await world.receipts("r"))[2, "p"]
    assert (receipt.stage, receipt.tool, receipt.idempotent) == ("executing", "pay", idempotent)
    result = await world.process(made(False)).aio.resume_embedded("r")
    if idempotent:
        assert (result.status, (await world.receipts("r"))[2, "p"].value) == ("completed", "paid again")
    else:
        assert (result.status, result.reason) == ("stopped", "tool-reconciliation-required")
        assert [effect.tool_call_id for effect in result.unknown_effects] == ["p"]


def changed(what: str = "", where: str = "billing") -> Agent:
    """Waits for a person before anything is handed over; `what` differs of the agent `where`."""

    async def act(n: int) -> str:
        return "acted"

    async def acted(n: float) -> str:
        return "acted"

    def of(name: str, **given: Any) -> Agent:
        it = what if name == where else ""
        made: Any = tool(name="acts" if it == "name of a tool" else "act")(acted if it == "schema of a tool" else act)
        agent = member(name, NEVER, "done", tools=[made], binding_id="2" if it == "binding_id" else "1", **given)
        if it not in ("model", "instructions"):
            return agent
        text = "You differ." if it == "instructions" else agent.definition.instructions
        model = member("other", NEVER, "done").model if it == "model" else agent.model
        return Agent(name, model=model, instructions=text, tools=[made], **given)

    ledger = [] if what == "one less" else [of("ledger")]
    billing = of("billing", handoffs=ledger)
    waits = tool(name="ask", needs_approval=True)(act)
    return member("triage", calls(call("ask", n=1).with_id("a")), "done", tools=[waits], handoffs=[billing])


@pytest.mark.spec("HND-011", "BND-003")
@pytest.mark.parametrize("where", ["billing", "ledger"])
@pytest.mark.parametrize("what", ["model", "instructions", "schema of a tool", "name of a tool", "binding_id", "one less"])
async def test_a_resume_with_another_target_is_refused(world: World, what: str, where: str) -> None:
    """Nobody was handed the run yet, and it is refused all the same, also for a target of a target; nothing is written. With
    the targets that it began with it goes on."""
    waiting = await world.process(changed()).aio.run_embedded("triage", "go", run_id="r")
    [item] = waiting.pending_approvals
    stored = await world.loaded("r")
    result = await world.process(changed(what, where)).aio.resume_embedded("r", approvals={item.approval_id: True})
    assert str((result.error or {})["message"]).startswith(SENTENCE)
    assert await world.loaded("r") == stored
    assert (await world.process(changed()).aio.resume_embedded("r", approvals={item.approval_id: True})).status == "completed"


@pytest.mark.spec("HND-011")
async def test_a_changed_target_that_drives_does_not_give_the_run_back(world: World) -> None:
    """The run waits under the target; with another target nobody is asked, the first agent least of all."""

    def made(instructions: str) -> Agent:
        billing = Agent(
            "billing",
            model=member("billing", NEVER, calls(call("pay").with_id("p")), "done").model,
            instructions=instructions,
            tools=[paying(Effects(), needs_approval=True)],
        )
        return member("triage", to("billing"), handoffs=[billing])

    waiting = await world.process(made("as it was")).aio.run_embedded("triage", "go", run_id="r")
    [item] = waiting.pending_approvals
    other = made("as it is")
    result = await world.process(other).aio.resume_embedded("r", approvals={item.approval_id: True})
    assert str((result.error or {})["message"]).startswith(SENTENCE)
    assert asked(other) == ()


@pytest.mark.parametrize(("turn", "driver"), [(0, "triage"), (1, "billing"), (2, "billing"), (3, "triage")])
async def test_a_fork_begins_with_the_agent_that_had_its_turn(world: World, turn: int, driver: str) -> None:
    """And with as many transfers as there were by then; the other run's later ones are none of its own."""
    await world.process(there_and_back(Effects())).aio.run_embedded("triage", "go", run_id="r")
    app = world.process(there_and_back(Effects()))
    await app.aio.fork("r", turn, new_run_id="f", queue="in-process")
    begun = await world.process().aio.handle("f").envelope()
    assert (begun.active_agent, [made.step for made in begun.handoffs]) == (driver, [step for step in (1, 3) if step <= turn])
    result = await app.aio.resume_embedded("f")
    assert (result.output, len((await app.aio.handle("f").envelope()).handoffs)) == ("done", 2)


async def test_an_exported_run_goes_on_with_its_driver(world: World) -> None:
    """In a store that has never seen its first agent at work."""

    def made() -> tuple[Agent, Agent]:
        waits = calls(call("pay").with_id("p"))
        billing = member("billing", NEVER, waits, "done", tools=[paying(Effects(), needs_approval=True)])
        return billing, member("triage", to("billing"), handoffs=[billing])

    await world.process(made()[1]).aio.run_embedded("triage", "go", run_id="r")
    text = await world.process().aio.export_run("r")
    there = World("sqlite://:memory:", open_store("sqlite://:memory:"))
    billing, triage = made()
    app = there.process(triage)
    handle = await app.aio.import_run(text)
    await handle.retry()
    [item] = await handle.pending()
    result = await app.aio.resume_embedded("r", approvals={item.approval_id: True})
    assert (result.output, asked(triage), len(asked(billing))) == ("done", (), 1)
    await there.close()


async def test_a_client_answers_a_call_of_the_target(world: World) -> None:
    """The target's client tool waits; the answer completes the call in another process."""
    ask = client_tool("ask", "Asks.", {"type": "object", "properties": {"what": {"type": "string"}}})

    def made() -> tuple[Agent, Agent]:
        billing = member("billing", NEVER, calls(call("ask", what="name").with_id("a")), "done", tools=[ask])
        return billing, member("triage", to("billing"), handoffs=[billing])

    waiting = await run_agent(made()[1], "go", run_id="r", store=world.store)
    assert [item.tool_name for item in waiting.pending_client_calls] == ["ask"]
    billing, triage = made()
    result = await resume_agent(triage, "r", store=world.store, client_tool_results={"a": "Ann"})
    assert (result.status, results(billing)[-1].text, asked(triage)) == ("completed", "Ann", ())


async def test_arguments_are_edited_by_the_schema_of_the_target(world: World) -> None:
    """The first agent has a tool of that name with another schema; the door asks the one that waits."""

    @tool(name="act", needs_approval=True)
    async def by_number(n: int) -> str:
        return f"acted {n}"

    @tool(name="act")
    async def by_text(text: str) -> str:
        return text

    billing = member("billing", NEVER, calls(call("act", n=1).with_id("a")), "done", tools=[by_number])
    triage = member("triage", to("billing"), tools=[by_text], handoffs=[billing])
    app = world.process(triage)
    await app.aio.run_embedded("triage", "go", run_id="r")
    handle = app.aio.handle("r")
    [item] = await handle.pending()
    await handle.approve(item.approval_id, arguments={"n": 2})
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert results(billing)[-1].text == "acted 2"


async def test_a_target_delegates_and_hands_back(world: World) -> None:
    """A delegated call and a transfer in one turn: the transfer is saved before the child is waited for, and whoever takes the
    child's answer has the tools of the agent that asked; an approval below is answered at the root."""

    def made(done: Effects) -> tuple[Agent, Agent]:
        turn = calls(call("payer", prompt="pay").with_id("c"), call("transfer_to_triage").with_id("t"))
        billing = member("billing", NEVER, turn, tools=[gated(done)])
        return billing, member("triage", to("billing"), NEVER, "done", handoffs=[billing])

    waiting = await world.process(made(Effects())[1]).aio.run_embedded("triage", "go", run_id="r")
    [item] = waiting.pending_approvals
    assert len((await world.process().aio.handle("r").envelope()).handoffs) == 2
    done = Effects()
    billing, triage = made(done)
    result = await world.process(triage).aio.resume_embedded("r", approvals={item.approval_id: True})
    assert (result.output, sum(done.done.values()), asked(billing)) == ("done", 1, ())
    assert [(part.name, part.text) for part in results(triage)[1:]] == [
        ("payer", "paid"),
        ("transfer_to_triage", "Transferred to 'triage'."),
    ]


async def test_a_delegated_run_is_handed_over_too(world: World) -> None:
    """In the child alone: its caller keeps its agent and reads the answer of whoever ended it."""
    deep = member("deep", NEVER, "from the deep")
    helper = member("helper", to("deep"), handoffs=[deep])
    root = scripted("boss", calls(call("helper", prompt="go").with_id("h")), "done", tools=[helper])
    result = await world.process(root).aio.run_embedded("boss", "go", run_id="r")
    assert [part.text for message in result.messages for part in message.tool_results] == ["from the deep"]
    child = await world.process().aio.handle("r/helper:1:h").envelope()
    assert (child.active_agent, (await world.process().aio.handle("r").envelope()).handoffs) == ("deep", ())
    assert offered(deep) == ["transfer_to_helper"]
