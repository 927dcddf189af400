"""Typed answers: asked for after the tool loop, checked, repaired, and kept over deaths of the process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from deuz_workers import (
    Agent,
    ConfigurationError,
    Limits,
    MockModel,
    ModelRateLimitedError,
    Output,
    resume_agent,
    run_agent,
    tool,
)
from deuz_workers.leases import memory_leases
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, attempts, call, calls, reply
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import World


class Invoice(BaseModel):
    number: int
    due: date

    @field_validator("number")
    @classmethod
    def positive(cls, number: int) -> int:
        if number <= 0:
            raise ValueError("numbers of invoices are positive")
        return number


@dataclass
class Point:
    x: int


class Named(TypedDict):
    name: str


GOOD = '{"number": 7, "due": "2026-11-30"}'
BAD = '{"number": -7, "due": "2026-11-30"}'
INVOICE = Invoice(number=7, due=date(2026, 11, 30))
RAW: dict[str, Any] = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}


@tool
async def look() -> str:
    return "seen"


def requests_of(agent: Agent) -> tuple[ModelRequest, ...]:
    assert isinstance(agent.model, MockModel)
    return agent.model.requests


def agent(*script: Entry, tools: bool = True, output: Any = Invoice, **given: Any) -> Agent:
    return Agent("x", model=MockModel(script), tools=[look] if tools else [], output_type=output, **given)


@pytest.mark.spec("FIN-001", "FIN-002", "RES-012")
async def test_the_answer_is_asked_for_after_the_tool_loop(world: World) -> None:
    """The last request carries the format, the loop's messages unchanged and one user turn behind them, the same tools with
    choice `none`; it counts as a step."""
    made = agent(calls(call("look")), "I have seen it", GOOD)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.output, result.steps) == ("completed", INVOICE, 3)
    first, second, last = requests_of(made)
    assert (first.output_format, second.output_format, first.tool_choice) == (None, None, "auto")
    assert last.output_format is not None
    assert last.output_format.schema["required"] == ["number", "due"]
    assert (last.tools, last.tool_choice) == (first.tools, "none")
    loop = last.messages[:-1]
    assert loop[: len(second.messages)] == second.messages
    assert [message.role for message in loop[len(second.messages) :]] == ["assistant"]
    assert last.messages[-1].role == "user"


@pytest.mark.spec("FIN-004")
async def test_without_tools_a_run_starts_with_its_answer(world: World) -> None:
    """Exactly one model call for a valid first answer, and nothing is said behind the prompt."""
    made = agent(GOOD, tools=False)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.output, result.steps) == ("completed", INVOICE, 1)
    [request] = requests_of(made)
    assert [message.text for message in request.messages] == ["go"]
    assert (request.tools, request.tool_choice) == ((), "auto")


@pytest.mark.parametrize(
    ("output_type", "answer", "output"),
    [
        (Invoice, GOOD, INVOICE),
        (Point, '{"x": 3}', Point(3)),
        (Named, '{"name": "ann"}', {"name": "ann"}),
        (list[Point], '{"value": [{"x": 1}, {"x": 2}]}', [Point(1), Point(2)]),
        (int, '```json\n{"value": 5}\n```', 5),
    ],
)
async def test_models_dataclasses_typed_dicts_and_plain_types_come_back_as_such(
    world: World, output_type: Any, answer: str, output: object
) -> None:
    """In the result of the run, and in that of another process that knows the agent; one that does not gets plain data."""
    made = agent(answer, tools=False, output=output_type)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.output) == ("completed", output)
    assert type(result.output) is type(output)
    knowing = await world.process(made).aio.handle("r").result(5)
    assert knowing.output == output
    stranger = await world.process().aio.handle("r").result(5)
    assert stranger.status == "completed"
    assert not isinstance(stranger.output, Invoice | Point)


@pytest.mark.spec("FIN-005")
async def test_a_raw_schema_needs_a_validator(memory: World) -> None:
    """It is refused where the agent is made, before any model call; so is what no schema can be made of."""
    with pytest.raises(ConfigurationError, match="give validate as well"):
        agent("never", output=RAW)
    with pytest.raises(ConfigurationError, match="no JSON Schema can be made"):
        agent("never", output=MockModel)
    wrongs: list[dict[str, Any]] = [{"mode": "xml"}, {"name": "no name"}, {"validate": 7}]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            Output(Point, **wrong)
    assert (await run_agent(agent('{"x": 1}', output=Output(Point), tools=False), "go", store=memory.store)).output == Point(1)


@pytest.mark.spec("FIN-006")
async def test_the_output_is_what_the_validator_returned(world: World) -> None:
    """A string that it made a date is a date, in the result and out of the store."""
    typed = Output(RAW, validate=lambda value: date.fromisoformat(value["day"]))
    made = agent('{"day": "2026-11-30"}', tools=False, output=typed)
    assert (await run_agent(made, "go", store=world.store, run_id="r")).output == date(2026, 11, 30)
    assert (await world.process().aio.handle("r").result(5)).output == date(2026, 11, 30)


@pytest.mark.spec("FIN-007")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('{"number": 7}', "'due' is missing"),
        (BAD, "numbers of invoices are positive"),
        ("seven", "it is not JSON"),
        ('{"number": NaN, "due": "2026-11-30"}', "NaN is no JSON"),
    ],
)
async def test_a_wrong_answer_is_asked_for_again_with_what_is_wrong(world: World, wrong: str, told: str) -> None:
    """Two requests; the second contains the validator's own message, behind the answer that it is about."""
    made = agent(wrong, GOOD, tools=False)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.output, result.steps) == ("completed", INVOICE, 2)
    _, second = requests_of(made)
    assert [message.role for message in second.messages] == ["user", "assistant", "user"]
    assert second.messages[1].text == wrong
    assert told in second.messages[2].text


@pytest.mark.spec("FIN-009", "RES-013")
@pytest.mark.parametrize("tools", [True, False])
async def test_a_model_that_is_never_right_stops_the_run(world: World, tools: bool) -> None:
    """After exactly `max_output_attempts` requests, two if nothing is said, and without an output."""
    made = agent(*(["seen"] if tools else []), BAD, BAD, GOOD, tools=tools)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.reason) == ("stopped", "output-attempts-exhausted")
    assert sum(request.output_format is not None for request in requests_of(made)) == 2
    assert "positive" in str((result.stop_details or {})["problem"])
    with pytest.raises(Exception, match="has no output"):
        _ = result.output
    envelope = await world.process().aio.handle("r").envelope()
    limits = envelope.limits
    assert (limits.max_steps, limits.max_output_attempts, limits.max_verify_attempts) == (20, 2, 3)
    assert (envelope.checkpoint.output_attempts, envelope.phase) == (2, "finalizing")


@pytest.mark.spec("RES-012")
async def test_steps_are_bounded_over_both_phases(memory: World) -> None:
    """A run that used all steps in its loop gets no answer any more."""
    made = agent(calls(call("look")), "seen", GOOD, limits=Limits(max_steps=2))
    result = await run_agent(made, "go", store=memory.store)
    assert (result.status, result.reason, result.steps) == ("stopped", "max-steps", 2)


@pytest.mark.spec("FIN-010", "FIN-018")
async def test_the_mode_decides_how_the_answer_is_asked_for(memory: World) -> None:
    """`json` by the format of the request, `tool` by one forced tool and no other; without a mode the model's profile says."""
    by_tool = calls(call("json_output", number=7, due="2026-11-30"))
    for mode, profile, name in (
        ("json", "tool", None),
        ("tool", "json", None),
        (None, "json", None),
        (None, "tool", None),
        ("tool", "json", "bill"),
    ):
        forced = (mode or profile) == "tool"
        named = calls(call(name, number=7, due="2026-11-30")) if name else by_tool
        model = MockModel(["seen", named if forced else GOOD], output_mode=profile)  # pyright: ignore[reportArgumentType]
        output = Output(Invoice, mode=mode, **({"name": name} if name else {}))  # pyright: ignore[reportArgumentType]
        made = Agent("x", model=model, tools=[look], output_type=output)
        result = await run_agent(made, "go", store=memory.store)
        assert (result.status, result.output) == ("completed", INVOICE)
        last = model.requests[-1]
        if forced:
            assert [spec.name for spec in last.tools] == [name or "json_output"]
            assert (last.tool_choice, last.output_format) == ("required", None)
        else:
            assert [spec.name for spec in last.tools] == ["look"]
            assert last.output_format is not None


@pytest.mark.spec("FIN-011")
@pytest.mark.parametrize("mode", ["json", "tool"])
async def test_calls_in_an_answer_are_never_executed(world: World, mode: Any) -> None:
    """Their text is the answer; the history can be continued, and the tool ran only in the loop."""
    ran: list[str] = []

    @tool
    async def touch() -> None:
        ran.append("touched")

    answer = reply(GOOD, call("touch"), finish_reason="tool_calls")
    model = MockModel([calls(call("touch")), "done", reply("", call("touch")), answer])
    made = Agent("x", model=model, tools=[touch], output_type=Output(Invoice, mode=mode))
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.output, ran) == ("completed", INVOICE, ["touched"])
    assert len(await world.receipts("r")) == 1
    assert len([use for message in result.messages for use in message.tool_uses]) == 1


@pytest.mark.spec("FIN-016")
async def test_an_answer_that_was_saved_is_not_bought_again(world: World) -> None:
    """The process dies in the validator: the stored phase is `finalizing`, and the next one checks the stored answer without a
    model call and without another attempt. So does a second delivery of the same step."""
    dies = [True]
    checked: list[object] = []

    def check(value: Invoice) -> None:
        checked.append(value)
        if dies and dies.pop():
            raise ProcessDied

    def made() -> Agent:
        return agent("seen", GOOD, output=Output(Invoice, validate=check))

    with pytest.raises(ProcessDied):
        await run_agent(made(), "go", store=world.store, run_id="r")
    head = await world.head("r")
    assert (head.status, head.phase) == ("running", "finalizing")
    first, second = made(), made()
    result = await resume_agent(first, "r", store=world.store)
    assert (result.status, result.output, result.steps) == ("completed", INVOICE, 2)
    assert requests_of(first) == ()
    assert await resume_agent(second, "r", store=world.store) == result
    assert (requests_of(second), len(checked)) == ((), 2)
    assert (await world.process().aio.handle("r").envelope()).checkpoint.output_attempts == 1


@pytest.mark.spec("FIN-019")
async def test_an_attempt_counts_before_its_request_leaves(world: World) -> None:
    """The process dies during the call that asks for the answer: the record counts its step and its attempt already, and the
    repeat is the same attempt."""

    async def dies(request: ModelRequest) -> Entry:
        raise ProcessDied

    def made() -> Agent:
        return agent("seen", attempts(dies, GOOD))

    with pytest.raises(ProcessDied):
        await run_agent(made(), "go", store=world.store, run_id="r")
    checkpoint = (await world.process().aio.handle("r").envelope()).checkpoint
    assert (checkpoint.step, checkpoint.output_attempts) == (2, 1)
    result = await resume_agent(made(), "r", store=world.store, leases=memory_leases())
    assert (result.status, result.steps) == ("completed", 2)
    assert (await world.process().aio.handle("r").envelope()).checkpoint.output_attempts == 1


async def test_every_death_of_a_typed_run_leads_to_the_same_output(world: World) -> None:
    """Before and after each of its commits: one output, two attempts, a valid conversation."""
    for at in range(1, 20):
        for applied in (False, True):
            run_id = f"r{at}{applied}"

            def made() -> Agent:
                return agent(calls(call("look")), "seen", BAD, GOOD)

            try:
                await world.dying(made(), at=at, applied=applied).aio.run_embedded("x", "go", run_id=run_id)
            except ProcessDied:
                pass
            else:
                assert at > 8
                return
            result = await world.process(made()).aio.resume_embedded(run_id)
            if result.unknown_effects:
                assert [effect.tool_name for effect in result.unknown_effects] == ["look"]
                continue
            assert (result.status, result.output, result.steps) == ("completed", INVOICE, 4), (at, applied)
            texts = [message.text for message in result.messages if message.role == "assistant"]
            assert texts == ["", "seen", BAD, GOOD]
    pytest.fail("the run has more commits than it should")


async def test_automatic_repeats_are_one_attempt(memory: World) -> None:
    """A provider that asks for patience does not use the allowance up."""
    limited = ModelRateLimitedError("slow down")
    made = agent(attempts(limited, limited, limited, GOOD), tools=False)
    result = await run_agent(made, "go", store=memory.store, run_id="r")
    assert (result.status, result.output, result.steps) == ("completed", INVOICE, 1)


@pytest.mark.parametrize("tools", [True, False])
async def test_an_answer_that_was_cut_off_stops_a_typed_run(memory: World, tools: bool) -> None:
    """Its beginning is no answer; a run without an output type completes with it and says so."""
    cut = reply('{"number": 7', finish_reason="length")
    result = await run_agent(agent(cut, tools=tools), "go", store=memory.store)
    assert (result.status, result.reason) == ("stopped", "length")
    result = await run_agent(agent(cut, tools=tools, output=None), "go", store=memory.store)
    assert (result.status, result.output, result.stop_details) == ("completed", '{"number": 7', {"finish_reason": "length"})


async def test_an_output_that_cannot_be_stored_fails_the_run(memory: World) -> None:
    """No other answer would mend it, so the model is not asked again."""
    made = agent(GOOD, GOOD, tools=False, output=Output(Invoice, validate=lambda value: object()))
    result = await run_agent(made, "go", store=memory.store)
    assert (result.status, (result.error or {})["code"]) == ("failed", "output")
    assert len(requests_of(made)) == 1


async def test_a_changed_output_type_is_another_binding(world: World) -> None:
    """What a run was asked for stays what it answers."""

    async def dies(request: ModelRequest) -> Entry:
        raise ProcessDied

    with pytest.raises(ProcessDied):
        await run_agent(agent("seen", attempts(dies, GOOD)), "go", store=world.store, run_id="r")
    result = await resume_agent(agent("seen", GOOD, output=Point), "r", store=world.store, leases=memory_leases())
    assert (result.status, (result.error or {})["code"]) == ("failed", "binding_changed")
    assert (await resume_agent(agent("seen", GOOD), "r", store=world.store, leases=memory_leases())).output == INVOICE


async def test_an_answer_that_says_nothing_is_asked_for_again(world: World) -> None:
    """The empty reply stays in the history as it is; the request has a word in its place, since some providers refuse none."""
    model = MockModel(["", GOOD])
    result = await world.process(
        Agent("clerk", model=model, output_type=Invoice, limits=Limits(max_output_attempts=2))
    ).aio.run_embedded("clerk", "go", run_id="r")
    assert (result.status, result.output, result.warnings) == ("completed", INVOICE, ())
    assert [message.text for message in model.requests[1].messages[:2]] == ["go", "(nothing)"]
    assert [message.text for message in result.messages[:2]] == ["go", ""]
