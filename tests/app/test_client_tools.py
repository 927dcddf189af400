"""Calls that a client executes: they are listed, waited for, and their results are treated like those produced here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import TypedDict

from deuz_workers import (
    Agent,
    AnswerConflictError,
    AnswerRefusedError,
    ConfigurationError,
    MockModel,
    ToolContext,
    client_tool,
    tool,
)
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World

SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}


class Place(TypedDict):
    lat: float
    lon: float


def wide(place: Any) -> str:
    return f"at {place['lat']}, {place['lon']}"


def app_of(done: Effects, *script: Entry, **options: Any) -> Agent:
    """One client tool, one gated client tool, a gated and a plain tool of ours."""

    @tool
    async def note(text: str) -> str:
        done(f"note {text}")
        return f"noted {text}"

    @tool(needs_approval=True)
    async def pay(to: str) -> str:
        done(f"pay {to}")
        return f"paid {to}"

    ask = client_tool("ask", "Asks the user.", SCHEMA, **options)
    photo = client_tool("photo", "Takes a photo.", SCHEMA, needs_approval=True)
    return Agent(
        "x",
        model=MockModel(list(script) or [calls(call("ask", what="name").with_id("a")), "done"]),
        tools=[note, pay, ask, photo],
    )


def told(agent: Agent) -> list[str]:
    model = agent.model
    assert isinstance(model, MockModel)
    return [part.text for message in model.requests[-1].messages for part in message.tool_results]


@pytest.mark.spec("CLT-001", "CLT-010")
async def test_a_call_of_a_client_tool_is_listed_and_waited_for(world: World) -> None:
    """The run is suspended, the call stands in `pending_client_calls`, and the model hears nothing before the result."""
    app = world.process(agent := app_of(Effects()))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    assert (waiting.status, waiting.pending_approvals) == ("suspended", ())
    [asked] = waiting.pending_client_calls
    assert (asked.tool_call_id, asked.tool_name, asked.arguments, asked.step) == ("a", "ask", {"what": "name"}, 1)
    assert await app.aio.handle("r").pending_client_calls() == (asked,)
    assert (await app.aio.resume_embedded("r")).pending_client_calls == (asked,)
    result = await app.aio.resume_embedded("r", client_tool_results={"a": "Ann"})
    assert (result.status, told(agent)) == ("completed", ["Ann"])
    model = agent.model
    assert isinstance(model, MockModel)
    assert len(model.requests) == 2
    assert not any("No result provided" in repr(request) for request in model.requests)


@pytest.mark.spec("CLT-002")
async def test_all_results_are_needed(world: World) -> None:
    """One of two: still suspended and nothing stored. A failure is an entry with `is_error`."""
    two = calls(call("ask", what="name").with_id("a"), call("ask", what="age").with_id("b"))
    app = world.process(agent := app_of(Effects(), two, "done"))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    before = await world.loaded("r")
    part = await app.aio.resume_embedded("r", client_tool_results=[{"tool_call_id": "a", "output": "Ann"}])
    assert (part.status, part.pending_client_calls) == ("suspended", waiting.pending_client_calls)
    assert await world.loaded("r") == before
    entries = [
        {"tool_call_id": "a", "output": {"name": "Ann"}},
        {"tool_call_id": "b", "output": "no answer", "is_error": True},
    ]
    result = await app.aio.resume_embedded("r", client_tool_results=entries)
    assert (result.status, told(agent)) == ("completed", ['{"name": "Ann"}', "no answer"])
    receipts = await world.receipts("r")
    assert (receipts[1, "a"].stage, receipts[1, "b"].stage) == ("completed", "failed")
    for wrong in ([{"output": 1}], [{"tool_call_id": "a"}], [{"tool_call_id": "a", "output": 1, "is_error": "yes"}]):
        with pytest.raises(ConfigurationError, match="client's result"):
            await app.aio.resume_embedded("r", client_tool_results=wrong)


@pytest.mark.spec("CLT-003")
async def test_a_clients_result_is_checked_and_projected(world: World) -> None:
    """One that misses the schema is a validation failure; a good one reaches the model as its projection says."""
    script = (calls(call("ask", what="place").with_id("a")), calls(call("ask", what="place").with_id("b")), "done")
    app = world.process(agent := app_of(Effects(), *script, output_schema=Place, to_model_output=wide))
    await app.aio.run_embedded("x", "go", run_id="r")
    await app.aio.resume_embedded("r", client_tool_results={"a": {"lat": "north"}})
    result = await app.aio.resume_embedded("r", client_tool_results={"b": {"lat": 1.5, "lon": 2.5}})
    assert result.status == "completed"
    receipts = await world.receipts("r")
    assert (receipts[1, "a"].stage, receipts[1, "a"].value) == ("validation-failed", {"lat": "north"})
    assert (receipts[2, "b"].stage, receipts[2, "b"].value) == ("completed", {"lat": 1.5, "lon": 2.5})
    first, second = told(agent)
    assert "lat" in first
    assert second == "at 1.5, 2.5"


async def test_a_result_above_the_limit_of_its_tool_is_refused(world: World) -> None:
    """The model is told, as with a tool of ours; nothing of it is kept in the receipt."""
    app = world.process(agent := app_of(Effects(), max_result_bytes=100))
    await app.aio.run_embedded("x", "go", run_id="r")
    result = await app.aio.resume_embedded("r", client_tool_results={"a": "x" * 200_000})
    assert result.status == "completed"
    assert "more than the 100" in told(agent)[0]


@pytest.mark.spec("CLT-004")
async def test_a_result_that_was_not_saved_is_asked_for_again(world: World) -> None:
    """Death before the answers are stored: without them the call is listed still; with them it is answered once."""
    app = world.process(app_of(Effects()))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_client_calls
    dying = world.process(app_of(Effects()))

    class Dying:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

        async def answer_items(self, *given: object) -> None:
            raise ProcessDied

    dying.__dict__["store"] = Dying()
    with pytest.raises(ProcessDied):
        await dying.aio.resume_embedded("r", client_tool_results={"a": "Ann"})
    again = await world.process(app_of(Effects())).aio.resume_embedded("r")
    assert (again.status, again.pending_client_calls) == ("suspended", (asked,))
    last = world.process(agent := app_of(Effects()))
    assert (await last.aio.resume_embedded("r", client_tool_results={"a": "Ann"})).status == "completed"
    assert told(agent) == ["Ann"]


@pytest.mark.spec("CLT-005")
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_stored_result_need_not_be_brought_again(world: World, at: int) -> None:
    """Death at any commit of the resume: a later one goes on without results, and the call has one result."""
    await world.process(app_of(Effects())).aio.run_embedded("x", "go", run_id="r")
    with pytest.raises(ProcessDied):
        await world.dying(app_of(Effects()), at=at).aio.resume_embedded("r", client_tool_results={"a": "Ann"})
    await world.later(60_000)
    result = await world.process(app_of(Effects())).aio.resume_embedded("r")
    assert result.status == "completed"
    assert [part.text for message in result.messages for part in message.tool_results] == ["Ann"]


@pytest.mark.spec("CLT-006")
async def test_a_second_result_is_not_used(world: World) -> None:
    """The receipt has one: the second changes nothing, and a warning names the call."""
    await world.process(app_of(Effects())).aio.run_embedded("x", "go", run_id="r")
    with pytest.raises(ProcessDied):
        await world.dying(app_of(Effects()), at=2).aio.resume_embedded("r", client_tool_results={"a": "Ann"})
    await world.later(60_000)
    app = world.process(agent := app_of(Effects()))
    result = await app.aio.resume_embedded("r", client_tool_results={"a": "Bob"})
    assert (result.status, told(agent)) == ("completed", ["Ann"])
    assert [(warning.setting, "'a'" in warning.message) for warning in result.warnings] == [("clientToolResults", True)]


@pytest.mark.spec("CLT-007")
async def test_a_gated_client_tool_needs_verdict_and_result(world: World) -> None:
    """Either alone leaves it pending; with both it is answered. A denial needs no result, and is told to the model."""
    script = (calls(call("photo", what="cat").with_id("p")), calls(call("photo", what="dog").with_id("q")), "done")
    app = world.process(agent := app_of(Effects(), *script))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    [gate], [asked] = waiting.pending_approvals, waiting.pending_client_calls
    assert gate.tool_call_id == asked.tool_call_id == "p"
    assert gate.approval_id != asked.item_id
    halves: tuple[dict[str, Any], ...] = ({"client_tool_results": {"p": "cat.png"}}, {"approvals": {gate.approval_id: True}})
    for part in halves:
        alone = await app.aio.resume_embedded("r", **part)
        assert (alone.status, alone.pending_approvals, alone.pending_client_calls) == ("suspended", (gate,), (asked,))
    waiting = await app.aio.resume_embedded("r", approvals={gate.approval_id: True}, client_tool_results={"p": "cat.png"})
    assert waiting.status == "suspended"
    denied = await app.aio.resume_embedded("r", approvals={waiting.pending_approvals[0].approval_id: False})
    assert (denied.status, told(agent)) == ("completed", ["cat.png", "Tool call denied. Reason: No reason given."])


@pytest.mark.spec("CLT-007")
@pytest.mark.parametrize("order", ["verdict first", "result first"])
async def test_through_the_door_both_answers_come_one_by_one(world: World, order: str) -> None:
    """In either order; a denial closes the client's item with it, and what the client says later is refused."""
    script = (calls(call("photo", what="cat").with_id("p")), calls(call("photo", what="dog").with_id("q")), "done")
    app = world.process(agent := app_of(Effects(), *script))
    await app.aio.run_embedded("x", "go", run_id="r")
    handle = app.aio.handle("r")
    [gate], [asked] = await handle.pending(), await handle.pending_client_calls()
    steps = [lambda: handle.approve(gate), lambda: handle.answer(asked, "cat.png")]
    if order == "result first":
        steps.reverse()
    assert [(await step()).open_items for step in steps] == [1, 0]
    await app.aio.resume_embedded("r")
    [gate], [asked] = await handle.pending(), await handle.pending_client_calls()
    assert (await handle.deny(gate, "no dogs")).open_items == 0
    with pytest.raises(AnswerConflictError):
        await handle.answer(asked, "dog.png")
    assert (await app.aio.resume_embedded("r")).status == "completed"
    assert told(agent) == ["cat.png", "Tool call denied. Reason: no dogs"]


@pytest.mark.spec("CLT-008", "SET-008")
async def test_nothing_of_a_mixed_turn_runs_before_the_resume(world: World) -> None:
    """A plain, a gated, a denied and a client call: none runs before, all are answered in call order, then one model call."""
    done = Effects()
    batch = calls(
        call("note", text="hi").with_id("n"),
        call("pay", to="ann").with_id("p"),
        call("pay", to="bob").with_id("q"),
        call("ask", what="name").with_id("a"),
    )
    app = world.process(agent := app_of(done, batch, "done"))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    assert (waiting.status, done.done) == ("suspended", {})
    first, second = waiting.pending_approvals
    answers = {first.approval_id: True, second.approval_id: {"approved": False, "reason": "no"}}
    result = await app.aio.resume_embedded("r", approvals=answers, client_tool_results={"a": "Ann"})
    assert (result.status, done.done) == ("completed", {"note hi": 1, "pay ann": 1})
    assert told(agent) == ["noted hi", "paid ann", "Tool call denied. Reason: no", "Ann"]
    model = agent.model
    assert isinstance(model, MockModel)
    assert len(model.requests) == 2
    kinds = [event.type async for event in app.aio.handle("r").events(follow=False)]
    resumed = kinds.index("run.resumed")
    assert kinds.index("turn.answered") < kinds.index("model.called", resumed)
    assert {"tool.completed", "tool.rejected"} <= set(kinds[resumed : kinds.index("turn.answered")])


@pytest.mark.spec("SET-001", "APR-021")
@pytest.mark.parametrize("at", range(1, 7))
async def test_a_mixed_turn_is_settled_from_wherever_it_was_left(world: World, at: int) -> None:
    """Receipts, an approval, a denial, a client's result and a call that never began: in call order, then one model call.

    The process dies at any commit of the settle, with more and more receipts saved; the next one brings no answers.
    """
    done = Effects()

    def agent() -> Agent:
        @tool(replay="idempotent")
        async def note(text: str, context: ToolContext) -> str:
            done.done[context.idempotency_key] = 1
            return f"noted {text}"

        @tool(needs_approval=True, replay="idempotent")
        async def pay(to: str, context: ToolContext) -> str:
            done.done[context.idempotency_key] = 1
            return f"paid {to}"

        batch = calls(
            call("note", text="one").with_id("n"),
            call("pay", to="ann").with_id("p"),
            call("pay", to="bob").with_id("q"),
            call("ask", what="name").with_id("a"),
            call("note", text="two").with_id("m"),
        )
        ask = client_tool("ask", "Asks the user.", SCHEMA)
        return Agent("x", model=MockModel([batch, "done"]), tools=[note, pay, ask])

    waiting = await world.process(agent()).aio.run_embedded("x", "go", run_id="r")
    ann, bob = waiting.pending_approvals
    answers = {ann.approval_id: True, bob.approval_id: {"approved": False, "reason": "no"}}
    dying = world.dying(agent(), at=at)
    with pytest.raises(ProcessDied):
        await dying.aio.resume_embedded("r", approvals=answers, client_tool_results={"a": "Ann"})
    await world.later(60_000)
    result = await world.process(last := agent()).aio.resume_embedded("r")
    assert result.status == "completed"
    texts = ["noted one", "paid ann", "Tool call denied. Reason: no", "Ann", "noted two"]
    assert [part.text for message in result.messages for part in message.tool_results] == texts
    assert sorted(done.done) == ["r/1/m", "r/1/n", "r/1/p"]
    assert isinstance(last.model, MockModel)
    assert len(last.model.requests) == 1


@pytest.mark.spec("RSM-009")
async def test_verdicts_and_results_have_to_come_together(world: World) -> None:
    """One approval and one client call: neither set alone moves the run, nor does none; one resume with both does."""
    done = Effects()
    batch = calls(call("pay", to="ann").with_id("p"), call("ask", what="name").with_id("a"))
    app = world.process(app_of(done, batch, "done"))
    waiting = await app.aio.run_embedded("x", "go", run_id="r")
    [gate] = waiting.pending_approvals
    before = await world.loaded("r")
    parts: tuple[dict[str, Any], ...] = ({}, {"approvals": {gate.approval_id: True}}, {"client_tool_results": {"a": "Ann"}})
    for part in parts:
        again = await app.aio.resume_embedded("r", **part)
        assert (again.status, again.pending_client_calls) == ("suspended", waiting.pending_client_calls)
    assert (await world.loaded("r"), done.done) == (before, {})
    result = await app.aio.resume_embedded("r", approvals={gate.approval_id: True}, client_tool_results={"a": "Ann"})
    assert (result.status, done.done) == ("completed", {"pay ann": 1})


async def test_a_result_is_refused_where_it_does_not_fit(world: World) -> None:
    """Wrong run, step, call, tool and arguments, each named, before anything is written."""
    app = world.process(app_of(Effects()))
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_client_calls
    handle = app.aio.handle("r")
    before = await world.loaded("r")
    for part, given in (
        ("run", replace(asked, run_id="other")),
        ("step", replace(asked, step=2)),
        ("call", replace(asked, tool_call_id="b")),
        ("tool", replace(asked, tool_name="photo")),
        ("arguments", replace(asked, arguments={"what": "age"})),
        ("arguments", "a@0000000000000000"),
        ("call", "b"),
    ):
        with pytest.raises(AnswerRefusedError) as caught:
            await handle.answer(given, "Ann")
        assert caught.value.fields["part"] == part
    with pytest.raises(AnswerRefusedError) as caught:
        await handle.approve(asked.item_id)
    assert caught.value.fields["part"] == "kind"
    assert await world.loaded("r") == before
    assert (await handle.answer("a", error="nobody there")).open_items == 0


async def test_a_client_tool_is_run_by_nobody_here() -> None:
    """It has no function; whoever calls it is told where results go."""
    asking = client_tool("ask", "Asks.", SCHEMA)
    with pytest.raises(ConfigurationError, match="executed by a client"):
        await asking.run({"what": "x"}, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="object"):
        client_tool("ask", "Asks.", {"type": "string"})
