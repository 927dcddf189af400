"""`prepare_step` and `stop_when`: what a step of the tool loop is to be, and when there is none any more."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers import (
    Agent,
    ConfigurationError,
    MockModel,
    StepInfo,
    StepPlan,
    Usage,
    cost_above,
    resume_agent,
    run_agent,
    tokens_above,
    tool,
)
from deuz_workers.core.messages import user
from deuz_workers.providers.script import Entry, call, calls
from tests.app.world import World


@tool
async def look() -> str:
    return "seen"


@tool
async def touch() -> str:
    return "touched"


def agent(*script: Entry, **given: Any) -> Agent:
    return Agent("x", model=MockModel(script), tools=[look, touch], **given)


def model_of(made: Agent) -> MockModel:
    assert isinstance(made.model, MockModel)
    return made.model


@pytest.mark.spec("PRP-001", "PRP-005")
async def test_a_plan_holds_for_its_step_and_new_messages_for_all_later_ones(world: World) -> None:
    """Hooks see step, messages and usage so far; tools, tool choice and model are of one step, the history stays rewritten."""
    infos: list[StepInfo] = []
    another = MockModel([calls(call("look")), calls(call("look")), "never"], model="another")

    def prepare(info: StepInfo) -> StepPlan | None:
        infos.append(info)
        if info.step == 2:
            messages = [user("shorter"), *info.messages[1:]]
            return StepPlan(messages=messages, active_tools=["look"], tool_choice="required", model=another)
        return None

    made = agent(calls(call("look")), "never", "done", prepare_step=prepare)
    result = await run_agent(made, "go", store=world.store, run_id="r", runtime_context="mine")
    assert (result.status, result.steps) == ("completed", 3)
    first, third = model_of(made).requests
    [second] = another.requests
    assert [len(request.tools) for request in (first, second, third)] == [2, 1, 2]
    assert [request.tool_choice for request in (first, second, third)] == ["auto", "required", "auto"]
    assert [request.messages[0].text for request in (first, second, third)] == ["go", "shorter", "shorter"]
    assert [message.text for message in result.messages if message.role == "user"] == ["shorter"]
    assert (await resume_agent(made, "r", store=world.store)).messages == result.messages
    assert [(info.step, info.usage.total_tokens, info.runtime_context) for info in infos] == [
        (1, 0, "mine"),
        (2, 15, "mine"),
        (3, 30, "mine"),
    ]


@pytest.mark.spec("PRP-005")
async def test_an_active_tool_that_the_agent_does_not_have_is_a_warning(world: World) -> None:
    """The known ones are offered; the result and the journal carry the warning, once."""

    def prepare(info: StepInfo) -> StepPlan:
        return StepPlan(active_tools=["look", "fly"])

    made = agent(calls(call("look")), "done", prepare_step=prepare)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert [[spec.name for spec in request.tools] for request in model_of(made).requests] == [["look"], ["look"]]
    [warning] = result.warnings
    assert warning.message == "active_tools names 'fly', which the agent does not have"
    events = world.process().aio.handle("r").events(follow=False)
    assert [event.data async for event in events if event.type == "warning"] == [
        {"setting": warning.setting, "message": warning.message}
    ]


@pytest.mark.spec("PRP-002")
@pytest.mark.parametrize("fault", ["raises", "returns"])
async def test_a_hook_that_fails_fails_the_run(world: World, fault: str) -> None:
    """Before the call that it was to prepare."""

    async def prepare(info: StepInfo) -> Any:
        if fault == "raises":
            raise KeyError("oops")
        return {"tool_choice": "none"}

    made = agent("never", prepare_step=prepare)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, (result.error or {})["code"]) == ("failed", "hook")
    assert model_of(made).requests == ()
    assert (await world.head("r")).status == "failed"


@pytest.mark.spec("FIN-014")
async def test_hooks_act_on_the_tool_loop_alone(world: World) -> None:
    """Neither is asked for the calls that ask for the final answer and its repair."""
    asked: list[str] = []

    def prepare(info: StepInfo) -> None:
        asked.append("prepare")

    def stop(info: StepInfo) -> bool:
        asked.append("stop")
        return False

    script = [calls(call("look")), "seen", '{"value": "x"}', '{"value": 7}']
    made = agent(*script, prepare_step=prepare, stop_when=stop, output_type=int)
    result = await run_agent(made, "go", store=world.store)
    assert (result.status, result.output, result.steps) == ("completed", 7, 4)
    assert asked == ["stop", "prepare"] * 2


@pytest.mark.spec("PRP-006")
@pytest.mark.parametrize(
    ("conditions", "steps", "fired"),
    [
        (tokens_above(20), 2, "tokens_above"),
        ([tokens_above(1_000), cost_above(0.0)], 1, "cost_above"),
        ([tokens_above(1_000), cost_above(100.0)], 4, None),
    ],
)
async def test_conditions_end_the_loop_at_the_boundary_of_a_step(
    world: World, conditions: Any, steps: int, fired: str | None
) -> None:
    """Any of them, by tokens or by cost; the one that fired is reported, and what ran is in the history with its results."""
    usage = Usage(10, 5, cost_micros=3)
    model = MockModel([*(calls(call("look")) for _ in range(3)), "done"], usage=usage)
    app = world.process(Agent("x", model=model, tools=[look], stop_when=conditions))
    app.prices.cost_micros = lambda name, used: 3  # pyright: ignore[reportAttributeAccessIssue]
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert result.steps == steps
    if fired is None:
        assert result.status == "completed"
    else:
        assert (result.status, result.reason, result.stop_details) == ("stopped", "stop-condition", {"condition": fired})
        assert result.messages[-1].role == "tool"


@pytest.mark.spec("PRP-007")
@pytest.mark.parametrize("legacy", ["verify_step", "done_when", "false_finish_guard"])
def test_completion_hooks_of_the_plain_loop_are_refused(legacy: str) -> None:
    """Where the agent is made, before any call."""
    with pytest.raises(TypeError, match=legacy):
        agent("never", **{legacy: lambda: True})


def test_what_is_no_hook_is_refused() -> None:
    """Where the agent is made."""
    for wrong in ({"prepare_step": 7}, {"stop_when": [7]}, {"guardrails": [print]}):
        with pytest.raises(ConfigurationError):
            agent("never", **wrong)
