"""Runs that are handed over to another agent: who is asked, what it is offered, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers import (
    Agent,
    Approval,
    Block,
    CompactionPolicy,
    ConfigurationError,
    Deuz,
    ExecutionPolicy,
    Guardrails,
    HandoffPart,
    Limits,
    McpServer,
    MockModel,
    PartEvent,
    PhaseEvent,
    ToolCallRequest,
    handoff,
    tool,
)
from deuz_workers.app.stream_events import StreamEvent
from deuz_workers.providers.script import call, calls
from tests.app.handing_over import NEVER, asked, member, offered, paying, results, to
from tests.app.world import Effects, World


@pytest.mark.spec("HND-001")
async def test_each_target_is_a_tool_with_an_optional_reason(memory: World) -> None:
    """By its name; a call without arguments is valid, one with another argument is not."""
    billing, tech = member("billing", NEVER, NEVER, "done"), member("tech.level-2", NEVER)
    wrong = calls(call("transfer_to_billing", to="tech").with_id("w"))
    triage = member("triage", wrong, to("billing"), handoffs=[billing, tech])
    result = await memory.process(triage).aio.run_embedded("triage", "go")
    assert offered(triage, 0) == ["transfer_to_billing", "transfer_to_tech_level-2"]
    parameters: Any = asked(triage)[0].tools[0].parameters
    assert (parameters["properties"].keys(), parameters.get("required")) == ({"reason"}, None)
    assert (result.status, result.output) == ("completed", "done")
    assert [(part.outcome, part.is_error) for part in results(billing)] == [("invalid-arguments", True), (None, False)]


@pytest.mark.spec("HND-002", "HND-004")
async def test_who_takes_over_goes_on_with_the_conversation(world: World) -> None:
    """The next request goes to the target's model, with its system turn, its tools and the whole history."""
    done = Effects()
    billing = member("billing", NEVER, calls(call("pay").with_id("p")), "done", tools=[paying(done)], temperature=0.5)
    triage = member("triage", to("billing", "it is about money"), handoffs=[billing], temperature=0.1)
    result = await world.process(triage).aio.run_embedded("triage", "my bill", run_id="r")
    assert (result.status, result.output, done.done) == ("completed", "done", {"pay billing": 1})
    assert [request.temperature for request in (*asked(triage), *asked(billing))] == [0.1, 0.5, 0.5]
    first = asked(billing)[0].messages
    assert [(message.role, message.text) for message in first[:2]] == [("system", "You are billing."), ("user", "my bill")]
    assert [use.name for use in first[2].tool_uses] == ["transfer_to_billing"]
    assert [part.text for part in first[3].tool_results] == ["Transferred to 'billing'. Reason: it is about money"]
    assert (await world.process().aio.handle("r").envelope()).active_agent == "billing"
    assert result.usage.total_tokens == 3 * 15


@pytest.mark.spec("HND-003", "HND-004")
async def test_the_earliest_transfer_of_a_turn_is_taken(world: World) -> None:
    """The others are answered with an error, which is no failure of a tool; what stands between them runs."""
    done = Effects()
    billing, tech = member("billing", NEVER, "done"), member("tech", NEVER, NEVER)
    turn = calls(
        call("transfer_to_billing").with_id("a"), call("pay").with_id("p"), call("transfer_to_tech", reason="x").with_id("b")
    )
    triage = member("triage", turn, handoffs=[billing, tech], tools=[paying(done)])
    result = await world.process(triage).aio.run_embedded("triage", "go", run_id="r")
    assert (result.output, done.done, asked(tech)) == ("done", {"pay triage": 1}, ())
    parts = {part.call_id: part for part in results(billing)}
    assert list(parts) == ["a", "p", "b"]
    assert (parts["a"].text, parts["a"].is_error) == ("Transferred to 'billing'.", False)
    assert (parts["b"].is_error, parts["b"].outcome) == (True, "transfer-refused")
    assert [handoff.to for handoff in (await world.process().aio.handle("r").envelope()).handoffs] == ["billing"]


async def test_a_transfer_that_was_turned_down_does_not_stand_before_a_later_one(memory: World) -> None:
    """The first is blocked by a guardrail, so the second of the same turn is the earliest that may be made."""
    billing, tech = member("billing", NEVER), member("tech", NEVER, "done")
    turn = calls(call("transfer_to_billing").with_id("a"), call("transfer_to_tech").with_id("b"))

    def rail(arguments: Any, context: Any) -> Block | None:
        return Block("no money today") if context.call.name == "transfer_to_billing" else None

    triage = member("triage", turn, handoffs=[billing, tech], guardrails=Guardrails(on_tool_call=rail))
    result = await memory.process(triage).aio.run_embedded("triage", "go")
    assert (result.output, asked(billing)) == ("done", ())
    assert [part.outcome for part in results(tech)] == ["blocked", None]


def deny(request: ToolCallRequest) -> bool:
    return False


@pytest.mark.spec("HND-005")
@pytest.mark.parametrize("how", ["guardrail", "needs_approval", "required_approvals"])
async def test_a_transfer_may_be_turned_down_like_any_call(world: World, how: str) -> None:
    """The model gets the refusal, and the next request is still the first agent's."""
    target = member("billing", NEVER)
    options: dict[str, Any] = {
        "guardrail": {"guardrails": Guardrails(on_tool_call=lambda arguments, context: Block("not today"))},
        "needs_approval": {"approve_tool_call": deny},
        "required_approvals": {
            "approve_tool_call": deny,
            "policy": ExecutionPolicy(required_approvals={"transfer_to_billing"}),
        },
    }[how]
    triage = member(
        "triage", to("billing"), "alone", handoffs=[handoff(target, needs_approval=how == "needs_approval")], **options
    )
    result = await world.process(triage).aio.run_embedded("triage", "go", run_id="r")
    assert (result.status, result.output) == ("completed", "alone")
    assert (len(asked(triage)), asked(target)) == (2, ())
    assert [part.outcome for part in results(triage)] == ["blocked" if how == "guardrail" else "denied"]
    envelope = await world.process().aio.handle("r").envelope()
    assert (envelope.handoffs, envelope.active_agent) == ((), "triage")


@pytest.mark.spec("HND-005")
async def test_a_forbidden_transfer_ends_the_run(world: World) -> None:
    """As any forbidden call does, before anything happens to it."""
    target = member("billing", NEVER)
    policy = ExecutionPolicy(allowed_tools={"transfer_to_tech"})
    triage = member("triage", to("billing"), handoffs=[target, member("tech", NEVER)], policy=policy)
    result = await world.process(triage).aio.run_embedded("triage", "go", run_id="r")
    error = dict(result.error or {})
    assert (error["name"], error["code"], error["tool"]) == ("ExecutionPolicyError", "tool_not_allowed", "transfer_to_billing")
    assert (await world.receipts("r"), asked(target)) == ({}, ())


@pytest.mark.spec("HND-006")
@pytest.mark.parametrize("approved", [True, False])
async def test_a_verdict_decides_who_drives_next(world: World, approved: bool) -> None:
    """A gated transfer waits for a person; who goes on in another process is whom they chose."""

    def made() -> tuple[Agent, Agent]:
        billing = member("billing", NEVER, "by billing")
        gated = handoff(billing, needs_approval=Approval(people=("ann",)))
        return billing, member("triage", to("billing", "money"), "by triage", handoffs=[gated])

    _, triage = made()
    waiting = await world.process(triage).aio.run_embedded("triage", "go", run_id="r")
    [item] = waiting.pending_approvals
    assert (waiting.status, item.tool_name, dict(item.arguments)) == ("suspended", "transfer_to_billing", {"reason": "money"})
    assert (await world.process().aio.handle("r").envelope()).active_agent == "triage"
    billing, triage = made()
    verdict = {item.approval_id: {"approved": approved, "by": "ann"}}
    result = await world.process(triage).aio.resume_embedded("r", approvals=verdict)
    driver, other = (billing, triage) if approved else (triage, billing)
    assert (result.output, len(asked(driver)), asked(other)) == (f"by {driver.name}", 1, ())


@pytest.mark.spec("HND-007")
async def test_transfers_of_a_run_are_counted_across_legs(world: World) -> None:
    """Two agents that pass the run to and fro: the sixth transfer is refused, and those after it, whatever process asks; the
    refusals do not end the run as failures of a tool."""

    def made() -> Agent:
        script = [to("pong"), to("ping")] * 2 + [calls(call("pay").with_id("p")), to("pong"), *[to("ping")] * 4, "done"]
        waits = paying(Effects(), needs_approval=True)
        return member("ping", *script, tools=[waits], handoffs=[member("pong", *script, tools=[waits])])

    waiting = await world.process(made()).aio.run_embedded("ping", "go", run_id="r")
    [item] = waiting.pending_approvals
    assert len((await world.process().aio.handle("r").envelope()).handoffs) == 4
    result = await world.process(made()).aio.resume_embedded("r", approvals={item.approval_id: True})
    assert (result.status, result.output) == ("completed", "done")
    refused = [part for message in result.messages for part in message.tool_results if part.outcome == "transfer-refused"]
    assert [part.text for part in refused] == ["Handoff limit (5) reached; continue yourself."] * 4
    envelope = await world.process().aio.handle("r").envelope()
    assert [made.to for made in envelope.handoffs] == ["pong", "ping"] * 2 + ["pong"]


async def test_no_transfer_at_all_may_be_allowed(memory: World) -> None:
    """`max_handoffs=0`: the run keeps its agent."""
    triage = member("triage", to("billing"), "alone", handoffs=[member("billing", NEVER)], limits=Limits(max_handoffs=0))
    assert (await memory.process(triage).aio.run_embedded("triage", "go")).output == "alone"
    assert [part.text for part in results(triage)] == ["Handoff limit (0) reached; continue yourself."]


@pytest.mark.spec("HND-008")
async def test_who_drives_is_offered_its_own_tools_and_everybody_else(memory: World) -> None:
    """The first agent is among them, and those that targets hand over to; a tool of one's own takes the place of a transfer."""
    done = Effects()
    refunds = member("refunds", NEVER)
    own = paying(done, name="transfer_to_triage")
    billing = member("billing", NEVER, calls(call("transfer_to_triage").with_id("o")), "done", tools=[own], handoffs=[refunds])
    triage = member("triage", to("billing"), NEVER, tools=[paying(done)], handoffs=[billing, member("tech", NEVER)])
    result = await memory.process(triage).aio.run_embedded("triage", "go")
    assert sorted(offered(triage)) == ["pay", "transfer_to_billing", "transfer_to_refunds", "transfer_to_tech"]
    assert sorted(offered(billing)) == ["transfer_to_refunds", "transfer_to_tech", "transfer_to_triage"]
    assert (result.output, done.done) == ("done", {"transfer_to_triage billing": 1})


@pytest.mark.spec("HND-012")
async def test_an_accepted_transfer_is_a_part_of_the_stream(world: World) -> None:
    """One for each that is accepted, before the next model call begins; a refused one is none."""
    turn = calls(call("look").with_id("l"), call("transfer_to_triage", sender="x").with_id("w"))
    triage = member(
        "triage",
        to("billing", "money"),
        NEVER,
        NEVER,
        "done",
        handoffs=[member("billing", NEVER, turn, to("triage"), tools=[look])],
    )
    stream = world.process(triage).aio.stream_embedded("triage", "go", run_id="r")
    shown: list[StreamEvent] = [event async for event in stream.events]
    handed = [event for event in shown if isinstance(event, PartEvent) and isinstance(event.part, HandoffPart)]
    assert [(event.part, event.step) for event in handed] == [
        (HandoffPart("triage", "billing", "to-billing", "money"), 1),
        (HandoffPart("billing", "triage", "to-triage", None), 3),
    ]
    places = {event.step: place for place, event in enumerate(shown) if isinstance(event, PhaseEvent)}
    for event in handed:
        assert places[event.step] < shown.index(event) < places[event.step + 1]
    models = [event.model for event in shown if isinstance(event, PhaseEvent)]
    assert models == [None, "mock:billing", "mock:billing", None]


@tool
async def look() -> str:
    return "seen"


def test_what_cannot_be_handed_over_is_refused() -> None:
    """At the definition, or in the application that has not everybody."""
    billing = member("billing", NEVER)
    with pytest.raises(ConfigurationError, match="cannot hand over to itself"):
        member("triage", NEVER, handoffs=["triage"])
    with pytest.raises(ConfigurationError, match="there twice"):
        member("triage", NEVER, handoffs=[billing, "billing"])
    with pytest.raises(ConfigurationError, match="no handoff"):
        member("triage", NEVER, handoffs=[look])
    with pytest.raises(ConfigurationError, match="list of agents"):
        member("triage", NEVER, handoffs="billing")
    with pytest.raises(ConfigurationError, match="hands over to 'tech', which the application does not have"):
        Deuz([member("triage", NEVER, handoffs=[member("billing", NEVER, handoffs=["tech"])])])
    with pytest.raises(ConfigurationError, match="both called 'transfer_to_a_b'"):
        Deuz([member("triage", NEVER, handoffs=[member("a.b", NEVER), member("a_b", NEVER)])])
    with pytest.raises(ConfigurationError, match="another one of that name"):
        Deuz([member("triage", NEVER, handoffs=[billing]), member("billing", NEVER)])
    served = Agent("served", model=MockModel([NEVER]), mcp=[McpServer(url="http://127.0.0.1:1/")])
    with pytest.raises(ConfigurationError, match="'served', which has tool servers"):
        Deuz([member("triage", NEVER, handoffs=[served])])
    windowed = MockModel([NEVER], context_window_tokens=1_000)
    with pytest.raises(ConfigurationError, match="context window of mock:billing"):
        Deuz([Agent("triage", model=windowed, compaction=CompactionPolicy(), handoffs=[billing])])


def test_agents_may_name_each_other() -> None:
    """By name, each of the other, in one application; both are roots of runs of their own."""
    app = Deuz([member("ping", NEVER, handoffs=["pong"]), member("pong", NEVER, handoffs=["ping"])])
    for name, other in (("ping", "pong"), ("pong", "ping")):
        definition = app.registry.agent(name)
        assert definition is not None
        assert list(definition.tools) == [f"transfer_to_{other}"]
