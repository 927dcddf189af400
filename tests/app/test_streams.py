"""`stream_agent` and `resume_stream_agent`: a run of this process, read while it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Sequence
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

import deuz_workers
from deuz_workers import (
    Agent,
    Block,
    GuardContext,
    Guardrails,
    Limits,
    MockModel,
    Output,
    Rewrite,
    StepInfo,
    StepPlan,
    client_tool,
    stream_agent,
    stream_agent_sync,
    tool,
)
from deuz_workers.app.agent_stream import MOST_WAITING, AgentStream
from deuz_workers.app.embedded import driver
from deuz_workers.app.results import AgentResult
from deuz_workers.app.stream_agent import resume_stream_agent, resume_stream_agent_sync
from deuz_workers.app.stream_events import (
    Discard,
    GuardrailPart,
    Missed,
    OutputDraft,
    OutputElement,
    PartEvent,
    PhaseEvent,
    ResultEvent,
    StreamEvent,
    TextDelta,
    ToolOutput,
    WarningPart,
)
from deuz_workers.errors import ConfigurationError, ModelRateLimitedError, StoreUnavailableError
from deuz_workers.providers.script import attempts, call, calls, fails, raw_call, reply
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.world import World

T = TypeVar("T")


@tool
async def look() -> dict[str, int]:
    """Look around."""
    return {"seen": 1}


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


@tool(output_schema=list[int], to_model_output=lambda value: f"{len(value)} rows")
async def rows() -> list[int]:
    """Rows of which the model sees the number."""
    return [1, 2, 3]


ask = client_tool("ask", "Ask the client.", {"type": "object", "properties": {}})


class Item(BaseModel):
    n: int


def agent(*script: Any, **given: Any) -> Agent:
    return Agent("x", model=MockModel(script), tools=[look, pay, rows, ask], **given)


async def collected(view: AsyncIterable[T]) -> list[T]:
    return [item async for item in view]


def texts(events: Sequence[StreamEvent]) -> list[str]:
    return [event.part.text for event in events if isinstance(event, PartEvent) and isinstance(event.part, TextDelta)]


def kinds(events: Sequence[StreamEvent]) -> list[str]:
    return [event.type for event in events]


@pytest.mark.spec("RES-001")
def test_the_four_entry_points_come_from_one_module() -> None:
    """The package itself; there is no simpler helper whose contract they could alter."""
    for name in ("run_agent", "stream_agent", "resume_agent", "resume_stream_agent"):
        assert name in deuz_workers.__all__
        assert callable(getattr(deuz_workers, name))


@pytest.mark.spec("STR-001")
@pytest.mark.parametrize("first", ["result", "view", "consume"])
async def test_nothing_starts_before_somebody_wants_something(world: World, first: str) -> None:
    """Made and its views taken, no model is called and no row written; each of the three ways starts it, once."""
    model = MockModel(["hello"])
    stream = stream_agent(Agent("x", model=model), "hi", store=world.store)
    views = [stream.events, stream.text_stream, stream.partial_output_stream, stream.element_stream]
    await asyncio.sleep(0.01)
    assert model.requests == ()
    assert await world.store.load("default", stream.run_id) is None
    match first:
        case "result":
            await stream.result
        case "view":
            await collected(views[0])
        case _:
            await stream.consume()
    assert (await stream.result).output == "hello"
    assert len(model.requests) == 1


def test_a_stream_is_made_without_an_event_loop() -> None:
    """And what cannot be meant is refused at once."""
    stream_agent(agent("hello"), "hi")
    with pytest.raises(ConfigurationError):
        stream_agent(agent("hello"))


@pytest.mark.spec("STR-002")
async def test_a_late_reader_sees_what_comes_and_is_told_that_it_is_late(memory: World) -> None:
    """The view that was taken before the start has all events; one that was taken later lacks the first ones."""
    stream = stream_agent(agent(calls(call("look"), text="wait"), "a b c"), "hi", store=memory.store)
    early = stream.events
    first = await anext(early)
    late = await collected(stream.events)
    rest = await collected(early)
    assert isinstance(first, PhaseEvent)
    assert late[0] == Missed("late")
    assert first not in late
    assert late[1:] == rest[len(rest) - len(late) + 1 :]
    assert texts([first, *rest]) == ["wait", "a", " b", " c"]


@pytest.mark.spec("STR-003")
async def test_all_views_are_used_side_by_side(world: World) -> None:
    """Events, text, drafts and elements at once, and the result beside them."""
    written = ['{"value": [{"n": 1}, ', '{"n": 2', "}]}"]
    last = reply("".join(written), fragments=written)
    given = agent(calls(call("look")), "ok", last, output_type=list[Item])
    stream = stream_agent(given, "hi", store=world.store)
    events, text, drafts, elements, result = await asyncio.gather(
        collected(stream.events),
        collected(stream.text_stream),
        collected(stream.partial_output_stream),
        collected(stream.element_stream),
        stream.result,
    )
    assert result.output == [Item(n=1), Item(n=2)]
    assert text == ["ok", *written] == texts(events)
    assert [draft.value for draft in drafts] == [[{"n": 1}], [{"n": 1}, {"n": 2}]]
    assert elements == [OutputElement(Item(n=1), 0, 1, 3), OutputElement(Item(n=2), 1, 1, 3)]
    assert [event for event in events if isinstance(event, OutputDraft)] == drafts
    assert [event for event in events if isinstance(event, OutputElement)] == elements


@pytest.mark.spec("STR-004")
@pytest.mark.parametrize(
    ("script", "status"),
    [
        (["done"], "completed"),
        ([calls(call("pay"))], "suspended"),
        ([reply("no", finish_reason="content_filter")], "stopped"),
        ([fails(ModelRateLimitedError("slow down"))], "failed"),
    ],
)
async def test_the_last_event_is_the_result(world: World, script: list[Any], status: str) -> None:
    """Whatever becomes of the run: the same result that awaiting it gives."""
    given = agent(*script, limits=Limits(max_retries=0))
    stream = stream_agent(given, "hi", store=world.store)
    events = await collected(stream.events)
    result = await stream.result
    assert result.status == status
    assert events[-1] == ResultEvent(result)
    assert kinds(events).count("result") == 1


@pytest.mark.spec("STR-005")
async def test_drafts_and_elements_belong_to_the_attempt_that_wrote_them(world: World) -> None:
    """The rejected attempt's carry its number, the repair begins anew, and only the result vouches for a value."""

    def check(value: list[Item]) -> None:
        if len(value) < 2:
            raise ValueError("two, please")

    script = ['{"value": [{"n": 7}]}', '{"value": [{"n": 1}, {"n": 2}]}']
    given = Agent("x", model=MockModel(script), output_type=Output(list[Item], validate=check))
    stream = stream_agent(given, "hi", store=world.store)
    drafts, elements = await asyncio.gather(collected(stream.partial_output_stream), collected(stream.element_stream))
    result = await stream.result
    assert [(element.attempt, element.index, element.element) for element in elements] == [
        (1, 0, Item(n=7)),
        (2, 0, Item(n=1)),
        (2, 1, Item(n=2)),
    ]
    assert [draft.attempt for draft in drafts] == sorted(draft.attempt for draft in drafts)
    assert {draft.attempt for draft in drafts} == {1, 2}
    assert next(draft for draft in drafts if draft.attempt == 2).value == [{}]
    assert [draft.value for draft in drafts if draft.attempt == 1][-1] == [{"n": 7}]
    assert result.output == [Item(n=1), Item(n=2)]


@pytest.mark.spec("FIN-015")
async def test_an_element_that_passes_its_validator_does_not_make_the_answer_right(world: World) -> None:
    """Elements are streamed as they pass; the whole still fails its validation, and the run is not completed."""
    seen: list[Item] = []

    def known(item: Item) -> Item:
        if item.n == 13:
            raise ValueError("not that one")
        seen.append(item)
        return Item(n=item.n * 10)

    def check(value: list[Item]) -> None:
        raise ValueError("never right")

    written = ['{"value": [{"n": 1}, {"n": 13}, {"n": "x"},', ' {"n": 2}]}']
    given = Agent(
        "x",
        model=MockModel([reply("".join(written), fragments=written)]),
        output_type=Output(list[Item], validate=check, element=known),
        limits=Limits(max_output_attempts=1),
    )
    stream = stream_agent(given, "hi", store=world.store)
    elements = await collected(stream.element_stream)
    assert [(element.index, element.element) for element in elements] == [(0, Item(n=10)), (3, Item(n=20))]
    assert seen == [Item(n=1), Item(n=2)]
    assert ((await stream.result).status, (await stream.result).reason) == ("stopped", "output-attempts-exhausted")


@pytest.mark.spec("STR-006")
async def test_a_store_that_fails_in_the_middle_is_a_failed_result(world: World) -> None:
    """No view raises; events end with it, as does whoever waits."""
    store = CrashingStore(world.store, 2, error=RuntimeError("a defect of the store"))
    stream = stream_agent(agent("hello there"), "hi", store=store.as_store)
    events, text = await asyncio.gather(collected(stream.events), collected(stream.text_stream))
    result = await stream.result
    assert (result.status, events[-1]) == ("failed", ResultEvent(result))
    assert text == ["hello", " there"]


@pytest.mark.spec("STR-006")
async def test_a_store_that_is_away_is_a_failed_result(world: World) -> None:
    """Before the first row is written, too."""

    class Away(CrashingStore):
        async def create(self, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError

    stream = stream_agent(agent("hello"), "hi", store=Away(world.store, 99).as_store)
    events = await collected(stream.events)
    assert kinds(events) == ["result"]
    assert (await stream.result).status == "failed"


@pytest.mark.spec("STR-007")
async def test_a_resumed_leg_is_a_stream_like_the_first(world: World) -> None:
    """The approved call's result comes first, then the text."""
    given = agent(calls(call("pay")), "all done")
    first = stream_agent(given, "hi", store=world.store, run_id="r")
    waiting = await first.result
    approvals = {item.approval_id: True for item in waiting.pending_approvals}
    stream = resume_stream_agent(given, "r", store=world.store, approvals=approvals)
    events, text = await asyncio.gather(collected(stream.events), collected(stream.text_stream))
    shown = [event for event in events if not isinstance(event, PhaseEvent)]
    assert isinstance(shown[0], ToolOutput)
    assert (shown[0].tool_name, shown[0].raw_result) == ("pay", "paid")
    assert texts(shown[1:-1]) == text == ["all", " done"]
    assert shown[-1] == ResultEvent(await stream.result)


@pytest.mark.spec("STR-008", "TSC-002")
async def test_a_tool_output_is_raw_where_the_model_sees_a_projection(world: World) -> None:
    """The event has what the tool returned, the history what was made of it."""
    stream = stream_agent(agent(calls(call("rows")), "done"), "hi", store=world.store)
    events = await collected(stream.events)
    outputs = [event for event in events if isinstance(event, ToolOutput)]
    assert [(output.tool_name, output.raw_result, output.is_error) for output in outputs] == [("rows", [1, 2, 3], False)]
    shown = [part.text for message in (await stream.result).messages for part in message.tool_results]
    assert shown == ["3 rows"]


async def test_a_call_that_fails_is_an_output_with_its_error(world: World) -> None:
    """Each call is told once, also one that never ran."""
    stream = stream_agent(agent(calls(call("nobody"), raw_call("look", "{")), "done"), "hi", store=world.store)
    outputs = [event for event in await collected(stream.events) if isinstance(event, ToolOutput)]
    assert [(output.tool_name, output.is_error, output.raw_result) for output in outputs] == [
        ("nobody", True, None),
        ("look", True, None),
    ]


@pytest.mark.spec("STR-010")
async def test_a_run_that_nobody_reads_is_consumed(world: World) -> None:
    """`consume` returns when the result is there, and does not raise for a run that fails."""
    good = stream_agent(agent("hello"), "hi", store=world.store)
    await good.consume()
    assert (await asyncio.wait_for(asyncio.ensure_future(_of(good)), 0.001)).output == "hello"
    bad = stream_agent(agent(fails(RuntimeError("a defect of the model"))), "hi", store=world.store)
    await bad.consume()
    assert (await bad.result).status == "failed"


async def _of(stream: AgentStream) -> AgentResult[Any]:
    return await stream.result


async def test_what_a_failed_call_wrote_is_discarded(world: World) -> None:
    """Readers are told to drop it as soon as the failure is saved, and read the repeat anew."""
    given = agent(attempts(fails(ModelRateLimitedError("slow"), after=["half an ", "ans"]), "whole answer"))
    stream = stream_agent(given, "hi", store=world.store)
    events, text = await asyncio.gather(collected(stream.events), collected(stream.text_stream))
    assert kinds(events) == ["phase", "part", "part", "discard", "phase", "part", "part", "result"]
    assert [event for event in events if isinstance(event, Discard)] == [Discard(1)]
    assert [(str(piece), piece.starts_anew) for piece in text] == [
        ("half an ", False),
        ("ans", False),
        ("whole", True),
        (" answer", False),
    ]


class Whole(MockModel):
    """A model that cannot stream."""

    async def call(self, request: Any, on_text: Any = None) -> Any:
        return await super().call(request)


async def test_a_model_that_does_not_stream_gives_its_text_in_one_part(world: World) -> None:
    """Nothing else differs."""
    stream = stream_agent(Agent("x", model=Whole(["a whole answer"])), "hi", store=world.store)
    assert await collected(stream.text_stream) == ["a whole answer"]


async def test_an_answer_that_is_asked_for_by_a_tool_is_a_draft_when_it_is_there(world: World) -> None:
    """Its arguments are the answer."""
    model = MockModel([calls(call("json_output", n=5))], output_mode="tool")
    stream = stream_agent(Agent("x", model=model, output_type=Item), "hi", store=world.store)
    assert [draft.value for draft in await collected(stream.partial_output_stream)] == [{"n": 5}]


async def test_a_warning_is_a_part_and_stands_in_the_result(world: World) -> None:
    """Of a tool that the agent does not have, named by `prepare_step`."""

    def prepare(info: StepInfo) -> StepPlan:
        return StepPlan(active_tools=["nobody"])

    stream = stream_agent(agent("hello", prepare_step=prepare), "hi", store=world.store)
    events = await collected(stream.events)
    warned = [event.part.warning for event in events if isinstance(event, PartEvent) and isinstance(event.part, WarningPart)]
    assert [(warning.type, warning.setting) for warning in warned] == [("warning", "activeTools")]
    assert [(warning.setting, warning.message) for warning in (await stream.result).warnings] == [
        (warned[0].setting, warned[0].message)
    ]


@pytest.mark.spec("STR-009")
@pytest.mark.parametrize(("name", "setting"), [("pay", "approvalResponses"), ("ask", "clientToolResults")])
async def test_an_answer_that_comes_too_late_is_one_warning(world: World, name: str, setting: str) -> None:
    """Under the name of what brought it, with the call that it was for."""
    script = (calls(call(name).with_id("one")), "done")
    [item] = (await world.loaded((await world.process(agent(*script)).aio.run_embedded("x", "hi", run_id="r")).run_id)).items
    answers: dict[str, Any] = {"approvals": {item.item_id: True}} if name == "pay" else {"client_tool_results": {"one": "Ann"}}
    with pytest.raises(ProcessDied):  # when the receipt of the call is saved, before the next model call
        await world.dying(agent(*script), at=3 if name == "pay" else 2).aio.resume_embedded("r", **answers)
    await world.later(60_000)
    stream = resume_stream_agent(agent(*script), "r", store=world.store, **answers)
    events = await collected(stream.events)
    warned = [event.part.warning for event in events if isinstance(event, PartEvent) and isinstance(event.part, WarningPart)]
    assert [(warning.setting, "'one'" in warning.message) for warning in warned] == [(setting, True)]


@pytest.mark.spec("GRD-010")
@pytest.mark.parametrize("verdict", [Rewrite("other"), Block("not here"), None])
@pytest.mark.parametrize("hook", ["on_input", "on_tool_call", "on_tool_result", "on_output"])
async def test_what_a_guardrail_did_is_a_part(world: World, hook: str, verdict: Any) -> None:
    """One for each verdict that is no pass, with hook, action, name, reason and call; the value is in none of them."""

    def rail(value: object, context: GuardContext) -> Any:
        return Rewrite({}) if hook == "on_tool_call" and isinstance(verdict, Rewrite) else verdict

    rails: dict[str, Any] = {hook: rail}
    given = agent(calls(call("look").with_id("c")), "done", guardrails=Guardrails(**rails))
    events = await collected(stream_agent(given, "hi", store=world.store).events)
    shown = [event.part for event in events if isinstance(event, PartEvent) and isinstance(event.part, GuardrailPart)]
    action, reason = ("block", "not here") if isinstance(verdict, Block) else ("rewrite", None)
    expected = GuardrailPart(hook, action, "rail", reason, "c" if hook.startswith("on_tool") else None)
    assert shown == ([] if verdict is None else [expected])


@pytest.mark.parametrize("made", [Rewrite("clean"), Block("not here"), None])
async def test_an_answer_is_shown_when_its_guardrail_let_it_pass(world: World, made: Any) -> None:
    """What the guardrail may suppress or replace is shown to nobody before, neither the answer nor a turn on the way."""

    def rail(text: str, context: GuardContext) -> Any:
        return made

    given = agent(calls(call("look"), text="on the way"), "dirty words", guardrails=Guardrails(on_output=[rail]))
    events = await collected(stream_agent(given, "hi", store=world.store).events)
    assert texts(events) == ([] if isinstance(made, Block) else ["clean"] if made else ["dirty words"])


async def test_a_slow_reader_is_cut_off_and_goes_on_from_there(memory: World) -> None:
    """It is told how much it missed; the others and the run are not held up."""
    words = [f"{n} " for n in range(MOST_WAITING + 5)]
    stream = stream_agent(agent(reply("".join(words), fragments=words)), "hi", store=memory.store)
    slow, result = stream.events, stream.result
    assert (await result).status == "completed"
    events = await collected(slow)
    assert isinstance(events[0], Missed)
    assert (events[0].reason, events[0].count) == ("slow", MOST_WAITING)
    assert texts(events)[-1] == words[-1]
    assert events[-1] == ResultEvent(await result)


async def test_a_stream_that_is_given_up_leaves_a_run_to_be_resumed(world: World) -> None:
    """Whoever waits is told; the next process finishes it."""
    entered = asyncio.Event()

    given = Agent("x", model=MockModel.function(lambda request: _after(entered)))
    stream = stream_agent(given, "hi", store=world.store, run_id="r")
    view = stream.events
    reading = asyncio.ensure_future(collected(view))
    await entered.wait()
    await stream.aclose()
    assert (await stream.result).status == "failed"
    assert ((await stream.result).error or {})["code"] == "stream_closed"
    assert kinds(await reading)[-1] == "result"
    assert (await world.head("r")).status == "running"
    await resume_stream_agent(agent("done"), "r", store=world.store).consume()


async def _after(entered: asyncio.Event) -> str:
    entered.set()
    await asyncio.Event().wait()
    return ""


async def test_a_key_that_is_known_streams_the_run_it_belongs_to(world: World) -> None:
    """Its id is another one than was made up for the new run."""
    first = stream_agent(agent("one two"), "hi", store=world.store, idempotency_key="k")
    await first.consume()
    again = stream_agent(agent("one two"), "hi", store=world.store, idempotency_key="k")
    events = await collected(again.events)
    assert again.run_id == first.run_id
    assert texts(events) == ["one two"]


async def test_a_client_reads_what_a_driver_of_its_own_process_executes(memory: World) -> None:
    """Without Redis: the same views, through memory."""
    app = memory.process(agent(calls(call("look"), text="wait"), "a b"))
    stop = asyncio.Event()
    async with driver(app, queues=None) as driving:
        serving = asyncio.create_task(driving.serve(stop))
        stream = app.aio.stream("x", "hi")
        events = await collected(stream.events)
        stop.set()
        await serving
    assert kinds(events) == ["phase", "part", "tool-output", "phase", "part", "part", "result"]
    assert texts(events) == ["wait", "a", " b"]
    late = await collected(app.aio.handle(stream.run_id).stream().events)
    assert (late[0], texts(late), late[-1]) == (Missed("late"), ["a b"], ResultEvent(await stream.result))


async def test_a_stream_of_a_run_that_is_not_there_is_a_failed_result(memory: World) -> None:
    """Nothing is raised."""
    app = memory.process(agent("hello"))
    assert ((await app.aio.handle("nobody").stream().result).error or {})["name"] == "RunNotFoundError"
    assert ((await app.aio.resume_stream("nobody").result).error or {})["name"] == "RunNotFoundError"


def test_streams_without_an_event_loop() -> None:
    """Views are iterators, and the result is a call."""
    stream = stream_agent_sync(agent("one two"), "hi")
    events, text = stream.events, stream.text_stream
    assert list(text) == ["one", " two"]
    assert kinds(list(events)) == ["phase", "part", "part", "result"]
    assert stream.result().output == "one two"
    other = stream_agent_sync(agent("x"), "hi")
    other.close()
    assert other.result().status == "failed"
    other.consume()


def test_a_resumed_stream_without_an_event_loop(tmp_path: Any) -> None:
    """The same for the second leg."""
    url = f"sqlite:///{tmp_path}/runs.db"
    given = agent(calls(call("pay")), "done")
    waiting = stream_agent_sync(given, "hi", store=url, run_id="r").result()
    approvals = {item.approval_id: True for item in waiting.pending_approvals}
    stream = resume_stream_agent_sync(given, "r", store=url, approvals=approvals)
    assert "".join(stream.text_stream) == "done"
