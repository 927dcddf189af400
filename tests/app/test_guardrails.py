"""Guardrails: what input, calls, results and the answer have to pass, over every store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    Block,
    GuardContext,
    Guardrails,
    Limits,
    MockModel,
    ModelUnavailableError,
    Rewrite,
    client_tool,
    resume_agent,
    run_agent,
    tool,
)
from deuz_workers.core.messages import ToolResultPart
from deuz_workers.leases import memory_leases
from deuz_workers.providers.script import Entry, attempts, call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import World


def agent(
    *script: Entry, done: list[str] | None = None, gated: bool = False, shown: Callable[[str], str] | None = None, **rails: Any
) -> Agent:
    @tool(needs_approval=gated, to_model_output=shown)
    async def write(text: str) -> str:
        if done is not None:
            done.append(text)
        return f"wrote {text}"

    return Agent("x", model=MockModel(script), tools=[write], guardrails=Guardrails(**rails))


def model_of(made: Agent) -> MockModel:
    assert isinstance(made.model, MockModel)
    return made.model


async def guardrail_parts(world: World, run_id: str = "r") -> list[tuple[object, ...]]:
    handle = world.process().aio.handle(run_id)
    events = [event.data async for event in handle.events(follow=False) if event.type == "guardrail"]
    return [tuple(data.get(key) for key in ("hook", "action", "name", "reason", "call_id")) for data in events]


def result_of_call(result: Any) -> ToolResultPart:
    [part] = [part for message in result.messages for part in message.tool_results]
    return part


def no(value: object, context: GuardContext) -> Block:
    return Block("not here")


async def shout(value: str, context: GuardContext) -> Rewrite:
    return Rewrite(value.upper())


def passes(value: object, context: GuardContext) -> None:
    return None


@pytest.mark.spec("GRD-001", "GRD-010")
@pytest.mark.parametrize("form", ["one function", "a list"])
@pytest.mark.parametrize("verdict", ["pass", "block", "rewrite"])
@pytest.mark.parametrize("hook", ["on_input", "on_tool_call", "on_tool_result", "on_output"])
async def test_every_hook_passes_blocks_or_rewrites(memory: World, hook: str, verdict: str, form: str) -> None:
    """What becomes of the value behind each of the four, and one part for each verdict that is no pass."""
    done: list[str] = []

    def rail(value: object, context: GuardContext) -> Block | Rewrite | None:
        rewrite = Rewrite({"text": "other"} if hook == "on_tool_call" else "other")
        return {"pass": None, "block": Block("not here"), "rewrite": rewrite}[verdict]

    rails: dict[str, Any] = {hook: rail if form == "one function" else [rail]}
    made = agent(calls(call("write", text="a").with_id("c")), "done", done=done, **rails)
    result = await run_agent(made, "go", store=memory.store, run_id="r")
    requests = model_of(made).requests
    became = {
        "on_input": lambda: [request.messages[0].text for request in requests[:1]],
        "on_tool_call": lambda: done,
        "on_tool_result": lambda: [part.text for message in requests[-1].messages for part in message.tool_results],
        "on_output": lambda: [result.messages[-1].text],
    }[hook]()
    original = {"on_input": "go", "on_tool_call": "a", "on_tool_result": "wrote a", "on_output": "done"}[hook]
    refused = [] if hook in ("on_input", "on_tool_call") else ["Blocked by guardrail 'rail': not here"]
    assert became == {"pass": [original], "block": refused, "rewrite": ["other"]}[verdict]
    stops = verdict == "block" and hook in ("on_input", "on_output")
    assert result.status == ("stopped" if stops else "completed")
    reason = "not here" if verdict == "block" else None
    part = (hook, verdict, "rail", reason, "c" if hook.startswith("on_tool") else None)
    assert await guardrail_parts(memory) == ([] if verdict == "pass" else [part])


@pytest.mark.spec("GRD-001", "GRD-002", "GRD-010")
@pytest.mark.parametrize("rail", [passes, no, shout])
async def test_the_input_passes_is_refused_or_rewritten(world: World, rail: Any) -> None:
    """A refusal ends the run without a model call and says who refused; what is rewritten stands in the history."""
    made = agent("done", on_input=rail)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    if rail is no:
        assert (result.status, result.reason) == ("stopped", "guardrail:input")
        assert result.stop_details == {"guardrail": "no", "reason": "not here"}
        assert model_of(made).requests == ()
        assert await guardrail_parts(world) == [("on_input", "block", "no", "not here", None)]
        return
    expected = "GO" if rail is shout else "go"
    assert (result.status, result.messages[0].text) == ("completed", expected)
    assert [request.messages[0].text for request in model_of(made).requests] == [expected]
    assert (await resume_agent(made, "r", store=world.store)).messages[0].text == expected
    parts = [("on_input", "rewrite", "shout", None, None)] if rail is shout else []
    assert await guardrail_parts(world) == parts


@pytest.mark.spec("GRD-002")
async def test_the_input_is_looked_at_once_per_leg_after_the_settle(world: World) -> None:
    """Once before the first model call; after an approval once more, when the approved call has run."""
    seen: list[tuple[str, int]] = []
    done: list[str] = []

    def look(value: str, context: GuardContext) -> None:
        seen.append((value, len(done)))

    script = [calls(call("write", text="a")), calls(call("write", text="b")), "done"]
    made = agent(*script, done=done, gated=True, on_input=[look])
    for _ in range(3):
        waiting = await resume_agent(made, "r", store=world.store) if seen else None
        waiting = waiting or await run_agent(made, "go", store=world.store, run_id="r")
        if waiting.status != "suspended":
            break
        verdicts = {item.approval_id: True for item in waiting.pending_approvals}
        await resume_agent(made, "r", store=world.store, approvals=verdicts)
    assert seen == [("go", 0), ("go", 1), ("go", 2)]


@pytest.mark.spec("GRD-002", "GRD-012")
@pytest.mark.parametrize("newer", [passes, no])
async def test_the_input_of_a_failed_run_is_looked_at_again_when_it_is_taken_up(world: World, newer: Any) -> None:
    """A leg of its own: what the guardrail says now counts, whatever it said when the run began."""
    asked: list[str] = []

    def made(rail: Any) -> Agent:
        def look(value: str, context: GuardContext) -> Any:
            asked.append(value)
            return rail(value, context)

        model = MockModel([attempts(ModelUnavailableError("away", status=503), "done")])
        return Agent("x", model=model, limits=Limits(max_retries=0), guardrails=Guardrails(on_input=look))

    assert (await run_agent(made(passes), "go", store=world.store, run_id="r")).status == "failed"
    second = made(newer)
    result = await resume_agent(second, "r", store=world.store, retry_failed=True)
    assert asked == ["go", "go"]
    if newer is no:
        assert (result.status, result.reason, model_of(second).requests) == ("stopped", "guardrail:input", ())
    else:
        assert (result.status, result.output) == ("completed", "done")


@pytest.mark.spec("GRD-002", "GRD-012")
@pytest.mark.parametrize("newer", [passes, no])
@pytest.mark.parametrize("word", ["retry_tool_call_ids", "reconciled_tool_results"])
async def test_the_input_is_looked_at_again_behind_a_stop_for_reconciliation(world: World, newer: Any, word: str) -> None:
    """A leg of its own too: once the interrupted call is settled, and before the next model call."""
    asked: list[int] = []
    dies = [True]

    def made(rail: Any) -> Agent:
        @tool
        async def pay() -> str:
            if dies:
                raise ProcessDied
            return "paid"

        def look(value: str, context: GuardContext) -> Any:
            asked.append(len(context.messages))
            return rail(value, context)

        model = MockModel([calls(call("pay").with_id("c")), "done"])
        return Agent("x", model=model, tools=[pay], guardrails=Guardrails(on_input=look))

    with pytest.raises(ProcessDied):
        await run_agent(made(passes), "go", store=world.store, run_id="r")
    dies.clear()
    second = made(newer)
    given: dict[str, Any] = {word: ["c"] if word.startswith("retry") else {"c": "paid"}}
    result = await resume_agent(second, "r", store=world.store, leases=memory_leases(), **given)
    assert (asked, result_of_call(result).text) == ([1, 3], "paid")
    if newer is no:
        assert (result.status, result.reason, model_of(second).requests) == ("stopped", "guardrail:input", ())
    else:
        assert (result.status, len(model_of(second).requests)) == ("completed", 1)


@pytest.mark.spec("GRD-001", "GRD-003", "GRD-010")
async def test_a_blocked_call_is_answered_and_the_run_goes_on(world: World) -> None:
    """Nothing runs, nobody is asked to approve, and the model reads who blocked it and why."""
    done: list[str] = []
    made = agent(calls(call("write", text="a").with_id("c")), "done", done=done, gated=True, on_tool_call=no)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    part = result_of_call(result)
    assert (result.status, done) == ("completed", [])
    assert (part.text, part.outcome) == ("Blocked by guardrail 'no': not here", "blocked")
    assert (await world.receipts("r"))[1, "c"].outcome == "blocked"
    assert await guardrail_parts(world) == [("on_tool_call", "block", "no", "not here", "c")]


@pytest.mark.spec("GRD-001", "GRD-004", "PTH-004")
async def test_rewritten_arguments_are_approved_and_executed_and_the_history_keeps_the_models(world: World) -> None:
    """The person sees what will run; the assistant's turn is what the model said."""
    done: list[str] = []

    def redact(arguments: Mapping[str, Any], context: GuardContext) -> Rewrite:
        return Rewrite({"text": "redacted"})

    def made() -> Agent:
        script = [calls(call("write", text="secret")), "done"]
        return agent(*script, done=done, gated=True, on_tool_call=[redact])

    waiting = await run_agent(made(), "go", store=world.store, run_id="r")
    [asked] = waiting.pending_approvals
    assert asked.arguments == {"text": "redacted"}
    result = await resume_agent(made(), "r", store=world.store, approvals={asked.approval_id: True})
    assert (result.status, done) == ("completed", ["redacted"])
    [use] = [use for message in result.messages for use in message.tool_uses]
    assert use.arguments == {"text": "secret"}


@pytest.mark.spec("GRD-001", "GRD-005", "PTH-008", "RCP-010", "SET-009")
@pytest.mark.parametrize("rail", ["cut", "no"])
async def test_a_result_is_rewritten_or_withheld_for_the_model_alone(world: World, rail: str) -> None:
    """Live and after a replay: the receipt has value and projection in full, the next request what the guardrail left of it."""
    dies = [True]
    looked: list[str] = []

    def cut(text: str, context: GuardContext) -> Rewrite | Block:
        looked.append(text)
        if dies and dies.pop():
            raise ProcessDied
        return Rewrite(text[:5]) if rail == "cut" else Block("secret")

    def made() -> Agent:
        script = (calls(call("write", text="everything").with_id("c")), "done")
        return agent(*script, shown=lambda text: f"shown: {text}", on_tool_result=cut)

    with pytest.raises(ProcessDied):
        await run_agent(made(), "go", store=world.store, run_id="r")
    first = (await world.receipts("r"))[1, "c"]
    assert (first.stage, first.value, first.text) == ("completed", "wrote everything", "shown: wrote everything")
    second = made()
    result = await resume_agent(second, "r", store=world.store)
    assert (result.status, looked) == ("completed", ["shown: wrote everything"] * 2)
    assert (await world.receipts("r"))[1, "c"] == first
    [sent] = [part for message in model_of(second).requests[-1].messages for part in message.tool_results]
    if rail == "cut":
        assert (sent.text, sent.outcome) == ("shown", None)
    else:
        assert (sent.text, sent.outcome, sent.is_error) == ("Blocked by guardrail 'cut': secret", "withheld", True)
    assert result_of_call(await resume_agent(made(), "r", store=world.store)).text == sent.text


@pytest.mark.spec("GRD-006", "PTH-015")
@pytest.mark.parametrize(("hook", "stops"), [("on_tool_result", True), ("on_tool_call", False)])
async def test_withheld_results_are_errors_in_a_row_and_blocked_calls_are_not(world: World, hook: str, stops: bool) -> None:
    """Three of each: the run stops after the third withheld result, and goes on after blocked calls."""
    script = [*(calls(call("write", text="a")) for _ in range(3)), "done"]
    rails: dict[str, Any] = {hook: no}
    result = await run_agent(agent(*script, **rails), "go", store=world.store, run_id="r")
    if stops:
        assert (result.status, result.reason, result.steps) == ("stopped", "tool-errors", 3)
        assert result.stop_details == {"tool": "write", "turns": 3}
    else:
        assert (result.status, result.steps) == ("completed", 4)


@pytest.mark.spec("PTH-015")
@pytest.mark.parametrize(
    ("turns", "stops"), [("eee", True), ("eeoee", False), ("eeboe", False), ("eexee", False), ("eeoeee", True)]
)
async def test_three_turns_in_a_row_with_an_error_of_one_tool_stop_the_run(world: World, turns: str, stops: bool) -> None:
    """`e`: it raises; `o`: it succeeds, which clears the count; `b`: both in one turn; `x`: another tool is called instead."""

    @tool
    async def work(fails: bool) -> str:
        if fails:
            raise ValueError("no luck")
        return "worked"

    @tool
    async def other() -> None: ...

    bad, good = call("work", fails=True), call("work", fails=False)
    kinds = {"e": calls(bad), "o": calls(good), "b": calls(bad, good), "x": calls(call("other"))}
    made = Agent("x", model=MockModel([*(kinds[turn] for turn in turns), "done"]), tools=[work, other])
    result = await run_agent(made, "go", store=world.store)
    assert (result.status, result.reason) == (("stopped", "tool-errors") if stops else ("completed", None))


@pytest.mark.spec("GRD-001", "GRD-007")
@pytest.mark.parametrize("rail", [passes, no, shout])
async def test_the_answer_passes_is_suppressed_or_replaced(world: World, rail: Any) -> None:
    """What the run ends with is what its stored history says; a suppressed answer stands nowhere."""
    result = await run_agent(agent("the answer", on_output=rail), "go", store=world.store, run_id="r")
    stored = await resume_agent(agent(on_output=rail), "r", store=world.store)
    expected = {passes: "the answer", shout: "THE ANSWER", no: "Blocked by guardrail 'no': not here"}[rail]
    assert result.messages[-1].text == stored.messages[-1].text == stored.text == expected
    if rail is no:
        assert (result.status, result.reason) == ("stopped", "guardrail:output")
    else:
        assert (result.status, result.output) == ("completed", expected)


async def test_a_typed_answer_is_checked_again_when_a_guardrail_replaced_it(world: World) -> None:
    """One that fits is the output; one that does not fails the run."""
    for text, status in (('{"value": 8}', "completed"), ("eight", "failed")):

        def replace_it(value: str, context: GuardContext, text: str = text) -> Rewrite:
            return Rewrite(text)

        rails = Guardrails(on_output=[replace_it])
        made = Agent("x", model=MockModel(['{"value": 7}']), output_type=int, guardrails=rails)
        result = await run_agent(made, "go", store=world.store)
        assert result.status == status
        assert result.value == (8 if status == "completed" else None)


@pytest.mark.spec("GRD-008")
async def test_guardrails_of_a_hook_run_in_order_on_each_others_rewrites_up_to_a_block(world: World) -> None:
    """The third never hears of it; passing leaves no trace."""
    heard: list[str] = []

    def first(value: str, context: GuardContext) -> Rewrite:
        heard.append(value)
        return Rewrite(value + "!")

    def second(value: str, context: GuardContext) -> Block | None:
        heard.append(value)
        return Block("loud") if value.endswith("!!") else None

    made = agent("never", on_input=[first, passes, second, first, second, second])
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.reason, heard) == ("guardrail:input", ["go", "go!", "go!", "go!!"])
    assert [(action, name) for _, action, name, _, _ in await guardrail_parts(world)] == [
        ("rewrite", "first"),
        ("rewrite", "first"),
        ("block", "second"),
    ]


@pytest.mark.spec("GRD-009")
@pytest.mark.parametrize("hook", ["on_input", "on_tool_call", "on_tool_result", "on_output"])
@pytest.mark.parametrize("fault", ["raises", "returns"])
async def test_a_guardrail_that_fails_fails_the_run(world: World, hook: str, fault: str) -> None:
    """Whatever hook: status failed with its name, and nothing goes on behind it."""
    done: list[str] = []

    def broken(value: object, context: GuardContext) -> object:
        if fault == "raises":
            raise KeyError("oops")
        return "no verdict"

    rails: dict[str, Any] = {hook: broken}
    made = agent(calls(call("write", text="a")), "done", done=done, **rails)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, (result.error or {})["code"]) == ("failed", "hook")
    assert "guardrail 'broken'" in str((result.error or {})["message"])
    assert (await world.head("r")).status == "failed"
    assert done == ([] if hook in ("on_input", "on_tool_call") else ["a"])


@pytest.mark.spec("GRD-012", "SET-005", "APR-018")
async def test_the_newer_verdict_of_a_guardrail_wins_over_an_approval(world: World) -> None:
    """It passed in the first leg and blocks in the second: the approved call does not run."""
    done: list[str] = []
    script = [calls(call("write", text="a")), "done"]
    waiting = await run_agent(agent(*script, gated=True, on_tool_call=passes), "go", store=world.store, run_id="r")
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    newer = agent(*script, done=done, gated=True, on_tool_call=no)
    result = await resume_agent(newer, "r", store=world.store, approvals=verdicts)
    assert (result.status, done, result_of_call(result).outcome) == ("completed", [], "blocked")
    assert result_of_call(result).text == "Blocked by guardrail 'no': not here"


@pytest.mark.spec("CLT-009", "GRD-003")
async def test_a_blocked_call_of_a_client_tool_is_answered_at_once(world: World) -> None:
    """In the same turn: the run is not suspended, no client hears of the call, and the model reads who blocked it."""
    ask = client_tool("ask", "Asks the user.", {"type": "object", "properties": {}})
    model = MockModel([calls(call("ask")), "done"])
    made = Agent("x", model=model, tools=[ask], guardrails=Guardrails(on_tool_call=[no]))
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.pending_client_calls, result.steps) == ("completed", (), 2)
    assert (result_of_call(result).text, result_of_call(result).outcome) == ("Blocked by guardrail 'no': not here", "blocked")
    handle = world.process().aio.handle("r")
    assert "run.suspended" not in [event.type async for event in handle.events(follow=False)]


async def test_arguments_that_a_guardrail_changes_after_the_approval_do_not_run(world: World) -> None:
    """What a person allowed is what runs, or nothing: the newer rewrite is denied, the same one runs."""
    for newer, ran in (("b", []), ("a", ["a"])):
        done: list[str] = []
        texts = ["a", newer]

        def rewrite(arguments: Mapping[str, Any], context: GuardContext, texts: list[str] = texts) -> Rewrite:
            return Rewrite({"text": texts[0]})

        made = agent(calls(call("write", text="x")), "done", done=done, gated=True, on_tool_call=rewrite)
        waiting = await run_agent(made, "go", store=world.store)
        texts.pop(0)
        verdicts = {item.approval_id: True for item in waiting.pending_approvals}
        result = await resume_agent(made, waiting.run_id, store=world.store, approvals=verdicts)
        assert (result.status, done) == ("completed", ran)
        assert result_of_call(result).outcome == (None if ran else "denied")


async def test_a_guarded_run_dies_anywhere_and_ends_the_same(world: World) -> None:
    """Before and after each commit, those that rewrite the history included: the same history, each call once."""

    def trim(text: str, context: GuardContext) -> Rewrite:
        return Rewrite(text[:5])

    for at in range(1, 20):
        for applied in (False, True):
            done: list[str] = []
            run_id = f"r{at}{applied}"

            def made(done: list[str] = done) -> Agent:
                script = [calls(call("write", text="a")), "the end"]
                return agent(*script, done=done, on_input=shout, on_tool_result=trim, on_output=shout)

            try:
                await world.dying(made(), at=at, applied=applied).aio.run_embedded("x", "go", run_id=run_id)
            except ProcessDied:
                pass
            else:
                assert at > 5
                return
            result = await world.process(made()).aio.resume_embedded(run_id)
            if result.unknown_effects:
                continue
            assert (result.status, result.output, done) == ("completed", "THE END", ["a"]), (at, applied, result)
            assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
            assert (result.messages[0].text, result_of_call(result).text) == ("GO", "wrote")
    pytest.fail("the run has more commits than it should")
