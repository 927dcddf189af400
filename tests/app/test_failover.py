"""Fail-over: a call whose model fails before it answered goes on with the next candidate, inside the same run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from deuz_workers import (
    Agent,
    AgentResult,
    Amount,
    Budget,
    CompactionPolicy,
    ConfigurationError,
    ExecutionPolicy,
    Limits,
    MockModel,
    ModelBreakerOpenError,
    ModelContextOverflowError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelResponseError,
    ModelTimeoutError,
    ModelUnavailableError,
    Output,
    StepInfo,
    StepPlan,
    Swarm,
    Task,
    stream_agent,
    tool,
)
from deuz_workers.app.runtime import Runtime
from deuz_workers.app.stream_events import Discard, PartEvent, PhaseEvent, WarningPart
from deuz_workers.breakers import MemoryBreakers
from deuz_workers.core.envelope import AgentRunEnvelope
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.rate import Draw, RateName
from deuz_workers.core.summary_request import INSTRUCTIONS
from deuz_workers.engine.in_process import LocalDoorbell
from deuz_workers.errors import ModelError
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers import ChatCompletionsModel
from deuz_workers.providers.prices import Price
from deuz_workers.providers.retry import RetryPolicy
from deuz_workers.providers.script import Entry, attempts, call, calls, fails, reply
from deuz_workers.testing.crashing_store import ProcessDied
from deuz_workers.testing.model_faults import refuse
from deuz_workers.testing.model_server import ModelServer
from tests.app.world import Effects, World
from tests.fake_clock import FakeClock

ONE_TRY = Limits(max_retries=0)
AWAY = ModelUnavailableError("away", status=503)
CAUSES: Mapping[str, ModelError] = {
    "no-connection": ModelUnavailableError("nobody there"),
    "timeout": ModelTimeoutError("silent"),
    "server-error": AWAY,
    "rate-limit": ModelRateLimitedError("slow down"),
    "overload": ModelUnavailableError("overloaded", status=529),
    "breaker-open": ModelBreakerOpenError("open"),
}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def model(name: str, *script: Entry, **given: Any) -> MockModel:
    return MockModel(script, model=name, **given)


def down(name: str, error: ModelError = AWAY) -> MockModel:
    """Fails whatever it is asked."""
    return MockModel.function(lambda _: error, model=name)


def agent(first: MockModel, *fallbacks: Any, limits: Limits = ONE_TRY, **given: Any) -> Agent:
    return Agent("x", model=first, fallback_models=fallbacks, limits=limits, **given)


def chooses(chosen: MockModel) -> Any:
    """A `prepare_step` that has every step ask this model."""

    def prepare(info: StepInfo) -> StepPlan:
        return StepPlan(model=chosen)

    return prepare


def asked(*models: MockModel) -> list[int]:
    """How many requests each has seen."""
    return [len(each.requests) for each in models]


async def run(world: World, made: Agent, **options: Any) -> AgentResult[Any]:
    return await world.process(made).aio.run_embedded("x", "go", run_id="r", **options)


async def resume(world: World, made: Agent, **options: Any) -> AgentResult[Any]:
    return await world.process(made).aio.resume_embedded("r", **options)


async def envelope(world: World) -> AgentRunEnvelope:
    return await world.process().aio.handle("r").envelope()


async def unknown_tokens(world: World) -> int:
    balance = await world.store.balance(run_scope_key((await world.head("r")).rid))
    assert balance is not None
    assert balance.held.tokens == 0
    return balance.unknown.tokens or 0


def looking(done: Effects) -> Any:
    @tool
    async def look() -> str:
        done("look")
        return "seen"

    return look


@pytest.mark.spec("FOV-001")
async def test_a_call_that_failed_goes_on_with_the_next_candidate(world: World) -> None:
    """In the order of the list, inside the same run; nobody else is asked."""
    first, second, third, fourth = down("a"), down("b"), model("c", "done"), model("d", "never")
    result = await run(world, agent(first, second, third, fourth))
    assert (result.status, result.output, result.steps) == ("completed", "done", 1)
    assert asked(first, second, third, fourth) == [1, 1, 1, 0]


@pytest.mark.spec("FOV-001")
async def test_the_model_of_a_step_comes_before_the_fallbacks(world: World) -> None:
    """The one that `prepare_step` chose is asked first, and then the list; the agent's own is none of its candidates."""
    own, chosen, fallback = model("own", "never"), down("chosen"), model("fallback", "done")
    made = agent(own, fallback, prepare_step=chooses(chosen))
    assert (await run(world, made)).output == "done"
    assert asked(own, chosen, fallback) == [0, 1, 1]


@pytest.mark.spec("FOV-002")
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_cause_that_another_model_may_not_have_fails_over_once(memory: World, cause: str) -> None:
    """Per cause: the fallback is called once and the run completed; after the first content it is not called."""
    fallback = model("b", "done")
    assert (await run(memory, agent(down("a", CAUSES[cause]), fallback))).status == "completed"
    models = (await envelope(memory)).models
    assert models is not None
    assert ([each.kind for each in models.failovers], asked(fallback)) == ([cause], [1])
    fallback = model("b", "never")
    begun = MockModel.function(lambda _: fails(CAUSES[cause], after=["It is"]), model="a")
    result = await memory.process(agent(begun, fallback)).aio.run_embedded("x", "go", run_id="other")
    assert (result.status, asked(begun, fallback)) == ("failed", [1, 0])


async def test_content_that_the_client_did_not_show_counts_too(memory: World) -> None:
    """Part of a call had arrived, as the error says."""
    fallback = model("b", "never")
    broken = ModelUnavailableError("cut", status=503, after_content=True)
    assert (await run(memory, agent(down("a", broken), fallback))).status == "failed"
    assert asked(fallback) == [0]


@pytest.mark.spec("WIR-010")
async def test_without_repeats_the_fallback_follows_at_once(memory: World) -> None:
    """`max_retries=0`: the primary, a real server, gets one request."""
    with ModelServer([refuse(503), "never"]) as server:
        primary = ChatCompletionsModel("m", server.base_url, retry=RetryPolicy(max_retries=0))
        made = Agent("x", model=primary, fallback_models=[model("b", "done")], limits=ONE_TRY)
        result = await run(memory, made)
        await primary.close()
        assert (result.output, server.received) == ("done", 1)


async def test_a_call_is_repeated_before_it_fails_over(memory: World) -> None:
    """As often as it has repeats left, and then the next candidate has as many."""
    first = down("a")
    second = MockModel.function(lambda request: AWAY if request.attempt < 4 else "done", model="b")
    assert (await run(memory, agent(first, second, limits=Limits(max_retries=1)))).output == "done"
    assert asked(first, second) == [2, 2]


async def test_nobody_waits_long_for_a_provider_while_another_is_there(memory: World) -> None:
    """One that asks for a minute is left at once, whatever repeats there are."""
    first, second = down("a", ModelRateLimitedError("later", retry_after_ms=60_000)), model("b", "done")
    assert (await run(memory, agent(first, second, limits=Limits(max_retries=3)))).output == "done"
    assert asked(first, second) == [1, 1]


@pytest.mark.spec("RES-018", "FOV-003")
async def test_a_refusal_is_the_answer(world: World) -> None:
    """`content_filter` ends the run as `refusal` after one call: no repair, no other model."""
    refusing, fallback = model("a", reply("no", finish_reason="content_filter")), model("b", "never")
    result = await run(world, agent(refusing, fallback, output_type=Output(NUMBER, validate=lambda value: value)))
    assert (result.status, result.reason, asked(refusing, fallback)) == ("stopped", "refusal", [1, 0])


@pytest.mark.spec("FOV-003")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelRequestError("bad", status=400), "model_request"),
        (ModelContextOverflowError("long"), "model_context_overflow"),
        (ModelResponseError("nonsense"), "model_response"),
        (ModelUnavailableError("the certificate changed", status=409), "model_unavailable"),
    ],
)
async def test_a_call_that_another_model_would_not_mend_fails_as_without_fallbacks(
    memory: World, error: ModelError, code: str
) -> None:
    """The same error, and the fallback is not asked."""
    fallback = model("b", "never")
    result = await run(memory, agent(down("a", error), fallback))
    assert (result.status, (result.error or {})["code"], asked(fallback)) == ("failed", code, [0])
    assert (await envelope(memory)).models is None


@pytest.mark.spec("FOV-003")
@pytest.mark.parametrize("ending", ["policy", "budget", "validation", "cancel", "deadline"])
async def test_what_ends_a_run_ends_it_with_fallbacks_too(world: World, ending: str) -> None:
    """Policy, budget, a wrong answer, a cancel, a deadline: nothing of it is a reason to ask another model."""
    fallback = model("b", "never")
    first = model("a", "no number", "no number either")
    options: dict[str, Any] = {}
    given: dict[str, Any] = {}
    match ending:
        case "policy":
            options["policy"] = ExecutionPolicy(allowed_models=["mock:b"])
        case "budget":
            options["budget"] = Budget(tokens=10)
        case "validation":
            given["output_type"] = Output(NUMBER, validate=lambda value: value)
        case "deadline":
            first = MockModel.function(lambda _: ModelTimeoutError("silent"), model="a")
            options["deadline"] = timedelta(milliseconds=1)
        case _:

            async def cancelled(request: ModelRequest) -> Entry:
                await app.aio.handle("r").cancel()
                return AWAY

            first = MockModel.function(cancelled, model="a")
    app = world.process(agent(first, fallback, **given))
    result = await app.aio.run_embedded("x", "go", run_id="r", **options)
    expected = {
        "policy": ("failed", "model_not_allowed"),
        "budget": ("failed", "budget_exceeded"),
        "validation": ("stopped", "output-attempts-exhausted"),
        "cancel": ("stopped", "aborted"),
        "deadline": ("failed", "deadline_exceeded"),
    }[ending]
    assert (result.status, result.reason or (result.error or {}).get("code")) == expected
    assert asked(fallback) == [0]


@pytest.mark.spec("FOV-004")
async def test_calls_that_ended_are_read_from_the_history(world: World) -> None:
    """The fallback finds the result of the tool in its request; the tool ran once."""
    done = Effects()
    first, fallback = model("a", calls(call("look")), AWAY), model("b", "never", "done")
    assert (await run(world, agent(first, fallback, tools=[looking(done)]))).output == "done"
    assert done.done == {"look": 1}
    assert fallback.requests[0].messages[-1].tool_results[0].text == "seen"


@pytest.mark.spec("FOV-005", "FIN-013")
@pytest.mark.parametrize("has_fallback", [True, False])
async def test_an_answer_that_moved_on_is_one_attempt(world: World, has_fallback: bool) -> None:
    """With one attempt allowed the fallback's answer completes the run; a failed call that is retried counts as one more."""
    output = Output(NUMBER, validate=lambda value: value)
    limits = Limits(max_retries=0, max_output_attempts=1 if has_fallback else 2)
    first = model("a", attempts(AWAY, '{"n": 1}'))
    fallbacks = [model("b", '{"n": 2}')] if has_fallback else []
    made = agent(first, *fallbacks, limits=limits, output_type=output)
    result = await run(world, made)
    if not has_fallback:
        assert result.status == "failed"
        result = await resume(world, made, retry_failed=True)
    assert (result.status, result.output) == ("completed", {"n": 2 if has_fallback else 1})
    assert (await envelope(world)).checkpoint.output_attempts == (1 if has_fallback else 2)


@pytest.mark.spec("FOV-006")
async def test_a_model_that_failed_is_not_called_in_later_legs(world: World) -> None:
    """The second leg, in another process, begins with the fallback."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    first, fallback = down("a"), model("b", calls(call("pay")), "done")
    made = agent(first, fallback, tools=[pay])
    waiting = await run(world, made)
    assert (waiting.status, asked(first, fallback)) == ("suspended", [1, 1])
    result = await resume(world, made, approvals={item.approval_id: True for item in waiting.pending_approvals})
    assert (result.output, asked(first, fallback)) == ("done", [1, 2])


@pytest.mark.spec("PRP-003")
async def test_the_model_of_a_step_is_checked_paid_for_and_replaced(world: World) -> None:
    """By its own price, and its fallback's after it failed; one that the policy forbids is not called."""

    def price_of(chosen: MockModel) -> Any:
        fallback = model("fallback", "done")
        made = agent(model("own", "never"), fallback, prepare_step=chooses(chosen))
        app = world.process(made)
        app.prices = type(app.prices)({"mock:own": Price(1, 2), "mock:chosen": Price(10, 20), "mock:fallback": Price(100, 200)})
        return app.aio.run_embedded("x", "go")

    assert (await price_of(model("chosen", "done"))).usage.cost_micros == 10 * 10 + 5 * 20
    assert (await price_of(down("chosen"))).usage.cost_micros == 10 * 100 + 5 * 200
    chosen = model("chosen", "never")
    policy = ExecutionPolicy(allowed_models=["mock:own", "mock:fallback"])
    made = agent(model("own", "never"), model("fallback", "never"), prepare_step=chooses(chosen))
    result = await run(world, made, policy=policy)
    assert ((result.error or {})["code"], asked(chosen)) == ("model_not_allowed", [0])


async def test_a_fallback_that_the_policy_forbids_is_refused(world: World) -> None:
    """The run ends there, although another candidate is behind it."""
    first, forbidden, third = down("a"), model("b", "never"), model("c", "never")
    result = await run(world, agent(first, forbidden, third), policy=ExecutionPolicy(allowed_models=["mock:a", "mock:c"]))
    assert (result.error or {})["code"] == "model_not_allowed"
    assert asked(first, forbidden, third) == [1, 0, 0]


@pytest.mark.spec("FOV-008", "STR-009")
async def test_readers_see_a_warning_where_the_error_would_have_been(world: World) -> None:
    """One part, `fallbackModels`, and the call that follows names its model; no error, nothing to discard."""
    made = agent(down("a"), model("b", "all done"))
    stream = stream_agent(made, "go", store=world.store, run_id="r")
    events = [event async for event in stream.events]
    warned = [event.part.warning for event in events if isinstance(event, PartEvent) and isinstance(event.part, WarningPart)]
    assert [(warning.type, warning.setting) for warning in warned] == [("warning", "fallbackModels")]
    assert warned[0].message == "mock:a failed in turn 1 (server-error); the run goes on with mock:b"
    phases = [(event.call_attempt, event.model) for event in events if isinstance(event, PhaseEvent)]
    assert phases == [(1, None), (2, "mock:b")]
    assert not [event for event in events if isinstance(event, Discard)]
    result = await stream.result
    assert [(warning.setting, warning.message) for warning in result.warnings] == [("fallbackModels", warned[0].message)]
    assert result.error is None


@pytest.mark.spec("FOV-009")
async def test_the_record_says_what_failed_and_what_answers(world: World) -> None:
    """Each fail-over with attempt, models, protocol, turn, phase and error; the selected model; the rules."""
    first, second = down("a"), down("b", ModelRateLimitedError("slow down", provider_code="rpm"))
    second.protocol = "mock-wire"  # pyright: ignore[reportAttributeAccessIssue]
    third = MockModel.function(lambda request: reply("enough") if request.output_format is None else '{"n": 1}', model="c")
    made = agent(
        model("own", calls(call("look")), AWAY),
        first,
        second,
        third,
        tools=[looking(Effects())],
        output_type=Output(NUMBER, validate=lambda value: value),
    )
    assert (await run(world, made)).output == {"n": 1}
    models = (await envelope(world)).models
    assert models is not None
    away = {"name": "ModelUnavailableError", "message": "away", "code": "model_unavailable", "status": 503}
    a, b = {"provider": "mock", "model": "a"}, {"provider": "mock", "model": "b", "protocol": "mock-wire"}
    slow = {"name": "ModelRateLimitedError", "message": "slow down", "code": "model_rate_limited", "provider_code": "rpm"}
    at = {"step": 2, "phase": "loop"}
    assert models.to_record() == {
        "policy": 1,
        "selected": {"provider": "mock", "model": "c"},
        "failovers": [
            {
                **at,
                "attempt": 1,
                "failed": {"provider": "mock", "model": "own"},
                "next": a,
                "kind": "server-error",
                "error": away,
            },
            {**at, "attempt": 2, "failed": a, "next": b, "kind": "server-error", "error": away},
            {
                **at,
                "attempt": 3,
                "failed": b,
                "next": {"provider": "mock", "model": "c"},
                "kind": "rate-limit",
                "error": slow,
            },
        ],
    }


async def test_a_record_with_models_has_version_2(world: World) -> None:
    """And the same run without a fail-over has 1, with fallbacks or without."""
    await run(world, agent(down("a"), model("b", "done")))
    assert (await world.head("r")).version == 2
    for run_id, made in (("s", agent(model("a", "done"), model("b", "never"))), ("t", agent(model("a", "done")))):
        await world.process(made).aio.run_embedded("x", "go", run_id=run_id)
        head = await world.head(run_id)
        assert (head.version, '"models"' in head.body) == (1, False)


@pytest.mark.spec("FOV-010")
@pytest.mark.parametrize(
    ("cause", "estimates"),
    [("server-error", 1), ("overload", 1), ("no-connection", 1), ("timeout", 1), ("rate-limit", 0), ("breaker-open", 0)],
)
async def test_what_may_have_been_billed_stays_on_hold(world: World, cause: str, estimates: int) -> None:
    """One estimate after a failure of which nobody knows, none after a 429; the fallback's own usage beside it."""
    result = await run(world, agent(down("a", CAUSES[cause]), model("b", "done")), budget=Budget(tokens=100_000))
    assert result.output == "done"
    unknown = await unknown_tokens(world)
    record = await envelope(world)
    assert record.unknown_tokens == unknown
    one = (4_096 + 1, 4_096 + 100)
    assert unknown == 0 if not estimates else one[0] <= unknown <= one[1]
    assert result.accounting.spent.tokens == result.usage.total_tokens == 15


@pytest.mark.spec("FOV-011")
async def test_a_fallback_stays_inside_the_budget(world: World) -> None:
    """A budget that fits one attempt refuses the fallback behind a hold, and admits it where nothing was billed."""
    fallback = model("b", "never")
    result = await run(world, agent(down("a"), fallback), budget=Budget(tokens=5_000))
    assert ((result.error or {})["code"], asked(fallback)) == ("budget_exceeded", [0])
    free = agent(down("a", CAUSES["rate-limit"]), model("b", "done"))
    result = await world.process(free).aio.run_embedded("x", "go", run_id="s", budget=Budget(tokens=5_000))
    assert result.output == "done"


@pytest.mark.spec("FOV-013")
async def test_a_request_is_made_for_its_candidate(world: World) -> None:
    """Strategy of the answer, window, and sampling as the candidate takes them; the vendor's own fields are of the first."""
    first, fallback = down("a"), model("b", reply("", call("answer", n=1)), output_mode="tool")
    fallback.rejects = {"temperature"}  # pyright: ignore[reportAttributeAccessIssue]
    output = Output(NUMBER, validate=lambda value: value, name="answer")
    made = agent(first, fallback, temperature=0.5, max_output_tokens=50, model_extra={"seed": 1}, output_type=output)
    assert (await run(world, made)).output == {"n": 1}
    [before], [after] = first.requests, fallback.requests
    assert (before.temperature, before.output_format is not None, before.tools, before.extra) == (0.5, True, (), {"seed": 1})
    assert (after.temperature, after.output_format, [spec.name for spec in after.tools], after.extra) == (
        None,
        None,
        ["answer"],
        {},
    )
    assert before.max_output_tokens == after.max_output_tokens == 50


@pytest.mark.spec("FOV-015")
async def test_another_list_of_fallbacks_is_another_binding(world: World) -> None:
    """Refused before any write, whether one is added, removed, or two change places; the same list goes on."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    def made(*names: str) -> Agent:
        return agent(model("a", calls(call("pay")), "done"), *(model(name, "never") for name in names), tools=[pay])

    waiting = await run(world, made("b", "c"))
    verdicts = {item.approval_id: True for item in waiting.pending_approvals}
    stored = await world.loaded("r")
    for names in (("b",), ("b", "c", "d"), ("c", "b"), ()):
        result = await resume(world, made(*names), approvals=verdicts)
        assert str((result.error or {})["message"]).startswith("Native agent binding changed across resume.")
        assert await world.loaded("r") == stored
    assert (await resume(world, made("b", "c"), approvals=verdicts)).output == "done"


@pytest.mark.spec("FOV-018")
async def test_the_last_candidate_fails_the_run_and_stays_the_one_that_is_called(world: World) -> None:
    """Two models that answer 503: failed with the last error, `retry` and one fail-over recorded; a retry calls it again."""
    first, last = down("a"), model("b", attempts(AWAY, ModelUnavailableError("still away", status=503), "done"))
    made = agent(first, last)
    result = await run(world, made)
    assert (result.status, (result.error or {})["message"]) == ("failed", "still away")
    record = await envelope(world)
    assert record.models is not None
    assert ((record.retry or {})["kind"], len(record.models.failovers)) == ("server-error", 1)
    again = await resume(world, agent(first, model("b", "done")), retry_failed=True)
    assert (again.output, asked(first)) == ("done", [1])


@pytest.mark.spec("CMP-007")
async def test_summaries_follow_the_replacement_and_have_none_of_their_own(world: World) -> None:
    """The summary is asked of the fallback that answers now; where that fails, the step does, and nobody else is asked."""

    @tool
    async def read() -> str:
        return "seen"

    def is_summary(request: ModelRequest) -> bool:
        return request.messages[0].text == INSTRUCTIONS

    broken = [True]

    def answer(request: ModelRequest) -> Entry:
        if is_summary(request):
            return AWAY if broken[0] else "in short"
        return calls(call("read"), text="page " * 200, usage=None) if int(request.request_id.split(":")[1]) < 5 else "done"

    first = MockModel.function(lambda _: AWAY, model="a", context_window_tokens=1_500)
    second = MockModel.function(answer, model="b", context_window_tokens=1_500)
    third = model("c", "never", context_window_tokens=1_500)
    policy = CompactionPolicy(keep_turns=1, summary_tokens=100)
    made = agent(first, second, third, tools=[read], compaction=policy)
    failed = await run(world, made)
    assert (failed.status, (failed.error or {})["code"], asked(first, third)) == ("failed", "model_unavailable", [1, 0])
    models = (await envelope(world)).models
    assert models is not None
    assert (models.selected.name, len(models.failovers)) == ("mock:b", 1)
    broken[0] = False
    assert (await resume(world, made, retry_failed=True)).output == "done"
    assert any(map(is_summary, second.requests))
    assert asked(first, third) == [1, 0]


async def test_a_window_that_overflows_is_the_candidate_s_own(memory: World) -> None:
    """A fallback that refuses the request as too long gets a shorter one, although its predecessor had needed one as well."""
    first = model("a", attempts(ModelContextOverflowError("long"), AWAY))
    second = MockModel.function(
        lambda request: ModelContextOverflowError("long") if request.attempt == 3 else "done", model="b"
    )
    assert (await run(memory, agent(first, second))).output == "done"
    assert asked(first, second) == [2, 2]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
async def test_a_death_at_any_commit_goes_on_with_the_right_model(world: World, at: int, applied: bool) -> None:
    """What failed over is not called again, each attempt is reserved once, and nothing is left on hold."""
    done = Effects()

    def made() -> tuple[Agent, MockModel]:
        first = model("a", calls(call("look")), AWAY, AWAY)
        second = model("b", "never", calls(call("look")), "done")
        return agent(first, second, tools=[looking(done)]), first

    dying, first = made()
    app = world.dying(dying, at=at, applied=applied)
    with pytest.raises(ProcessDied):
        await app.aio.run_embedded("x", "go", run_id="r", budget=Budget(tokens=1_000_000))
    before = await envelope(world)
    next_agent, first = made()
    again = world.process(next_agent)
    result = await again.aio.resume_embedded("r")
    if result.status == "stopped":  # a call was under way; somebody says that it had its effect
        outcome = {effect.tool_call_id: "seen" for effect in result.unknown_effects}
        result = await again.aio.resume_embedded("r", reconciled_tool_results=outcome)
    assert (result.output, result.usage.total_tokens) == ("done", 45)
    record = await envelope(world)
    assert record.models is not None
    assert [(each.failed.name, each.next.name, each.step) for each in record.models.failovers] == [("mock:a", "mock:b", 2)]
    if before.models is not None:
        assert asked(first) == [0]
    called = [row async for row in again.aio.handle("r").events(follow=False) if row.type == "model.called"]
    turns = [(row.data["step"], row.data["attempt"]) for row in called]
    assert len(set(turns)) == len(turns)
    failed_at = (2, record.models.failovers[0].attempt)
    later = [row.data.get("model") for row, turn in zip(called, turns, strict=True) if turn > failed_at]
    assert set(later) == {"mock:b"}
    assert await unknown_tokens(world) == record.unknown_tokens


async def test_a_run_that_needs_no_fallback_pays_nothing_for_it(memory: World) -> None:
    """Two commits without a tool, as ever, and two more bytes nowhere in the record."""
    bodies: list[str] = []
    for run_id, fallbacks in (("r", ()), ("s", (model("b", "never"),))):
        await memory.process(agent(model("a", "done"), *fallbacks)).aio.run_embedded("x", "go", run_id=run_id)
        head = await memory.head(run_id)
        assert head.revision == 2
        bodies.append(head.body.replace('"fallback":["mock:b"],', ""))
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    ("fallbacks", "text"),
    [
        ("mock:b", "fallback_models is a list of models, not a str"),
        ([7], "model is a int"),
        ([model("b"), model("b")], "'mock:b' is there twice"),
        ([model("a")], "'mock:a' is there twice"),
    ],
)
def test_candidates_that_cannot_be_told_apart_are_refused(fallbacks: Any, text: str) -> None:
    """When the agent is made."""
    with pytest.raises(ConfigurationError, match=text):
        Agent("x", model=model("a"), fallback_models=fallbacks)


async def test_a_fork_begins_with_all_its_models(memory: World) -> None:
    """What another run gave up is none of its own."""
    first, second = model("a", attempts(AWAY, "done")), model("b", calls(call("look")), "done")
    made = agent(first, second, tools=[looking(Effects())])
    assert (await run(memory, made)).output == "done"
    app = memory.process(made)
    await app.aio.fork("r", 0, new_run_id="fork")
    await app.aio.resume_embedded("fork")
    assert asked(first) == [2]


async def open_breaker(app: Any, run_ids: str = "abcde") -> None:
    """Each of these runs fails once."""
    for run_id in run_ids:
        assert (await app.aio.run_embedded("x", "go", run_id=run_id)).status == "failed"


@pytest.mark.spec("FOV-010")
@pytest.mark.parametrize("has_fallback", [True, False])
async def test_an_open_breaker_keeps_calls_back_before_anything_is_reserved(world: World, has_fallback: bool) -> None:
    """After five failures the model is not called, with a fallback or without; no call of it was begun or reserved."""
    first, fallback = down("a"), model("b", "done")
    app = world.process(
        agent(first), Agent("y", model=first, fallback_models=[fallback] if has_fallback else [], limits=ONE_TRY)
    )
    await open_breaker(app)
    result = await app.aio.run_embedded("y", "go", run_id="r", budget=Budget(tokens=100_000))
    assert len(first.requests) == 5
    record, called = await envelope(world), [row async for row in app.aio.handle("r").events(follow=False)]
    calls_of = [row.data.get("model") for row in called if row.type == "model.called"]
    spent = 15 if has_fallback else 0
    assert (result.accounting.spent.tokens, result.accounting.unknown, result.accounting.reserved) == (
        spent,
        Amount(0, result.accounting.unknown.cost_micros),
        Amount(0, result.accounting.reserved.cost_micros),
    )
    if has_fallback:
        assert (result.output, calls_of) == ("done", ["mock:b"])
        assert record.models is not None
        assert (record.models.failovers[0].kind, record.models.failovers[0].attempt) == ("breaker-open", 1)
        assert await unknown_tokens(world) == 0
    else:
        assert (result.status, (result.error or {})["code"], calls_of) == ("failed", "breaker_open", [])
        assert ((record.retry or {})["kind"], record.checkpoint.step) == ("breaker-open", 0)


async def test_a_call_that_is_kept_back_waits_for_the_moment_of_the_next_try(world: World) -> None:
    """With repeats left and nobody else to ask: the run is due when the breaker lets a call pass, and completes then."""
    first = MockModel.function(lambda _: AWAY if broken[0] else "done", model="a")
    broken, patient = [True], Agent("y", model=first, limits=Limits(max_retries=1))
    app = world.process(agent(first), patient)
    clock = FakeClock()
    app.__dict__["breakers"] = MemoryBreakers(clock)
    await open_breaker(app)
    handle = await app.aio.enqueue("y", "go", run_id="r")
    runtime = Runtime(app, LocalDoorbell())
    report = await runtime.engine.step("default", "r")
    assert report.end == "waiting"
    due_in_ms = (await world.head("r")).due_in_ms
    assert due_in_ms is not None
    assert 20_000 < due_in_ms <= 30_000
    broken[0] = False
    clock.advance(30_000)
    await world.later(31_000)
    await runtime.engine.step("default", "r")
    assert ((await handle.envelope()).output, len(first.requests)) == ("done", 6)
    assert await app.breakers.wait_ms("mock:a") == 0
    await runtime.close()


async def test_a_call_that_a_budget_refuses_is_not_the_one_that_tries(memory: World) -> None:
    """The breaker lets one call pass; that one is refused before it is sent, so the next run's call is sent at once."""
    clock = FakeClock()
    first = MockModel.function(lambda _: AWAY if len(first.requests) <= 5 else "done", model="a")
    app = memory.process(agent(first))
    app.__dict__["breakers"] = MemoryBreakers(clock)
    await open_breaker(app)
    clock.advance(30_000)
    refused = await app.aio.run_embedded("x", "go", run_id="small", budget=Budget(tokens=1))
    assert (refused.error or {})["code"] == "budget_exceeded"
    assert (await app.aio.run_embedded("x", "go", run_id="r")).output == "done"
    assert len(first.requests) == 6


async def test_a_call_that_is_held_back_is_not_the_one_that_tries(memory: World) -> None:
    """The same where a rate lets it wait, which is asked behind the breaker: whoever is looked at next tries."""
    clock = FakeClock()
    first = MockModel.function(lambda _: AWAY if len(first.requests) <= 5 else "done", model="a")
    app = memory.process(agent(first))
    app.__dict__["breakers"] = MemoryBreakers(clock)
    await open_breaker(app)
    clock.advance(30_000)
    await app.aio.operator.limit_rate("model", "mock:a", calls_per_minute=1)
    await app.aio.enqueue("x", "go", run_id="r")
    runtime = Runtime(app, LocalDoorbell())
    assert await memory.store.take_rate([Draw(RateName("model", "mock:a"), 1, 0)]) == 0
    assert (await runtime.engine.step("default", "r")).end == "held_back"
    assert await app.breakers.wait_ms("mock:a") == 0
    await runtime.close()


async def test_a_refusal_of_the_call_that_tries_closes_the_breaker(memory: World) -> None:
    """The provider is back and says no to this one: the next call is not kept back for another thirty seconds."""
    clock, refused = FakeClock(), ModelRequestError("no such field", status=400)
    first = MockModel.function(lambda request: AWAY if len(first.requests) <= 5 else refused, model="a")
    app = memory.process(agent(first))
    app.__dict__["breakers"] = MemoryBreakers(clock)
    await open_breaker(app)
    clock.advance(30_000)
    assert (await app.aio.run_embedded("x", "go", run_id="r")).status == "failed"
    assert (len(first.requests), await app.breakers.wait_ms("mock:a")) == (6, 0)


async def test_each_task_of_a_swarm_remembers_for_itself(memory: World) -> None:
    """A task is a run: the fail-over of one is no concern of another, which begins with all its models."""
    first, fallback = model("a", AWAY), model("b", "done")
    swarm = Swarm("s", [Task("one", agent="x", prompt="go"), Task("two", agent="x", prompt="go", depends_on=["one"])])
    result = await memory.process(agent(first, fallback)).aio.run_swarm_embedded(swarm, run_id="s")
    assert (result.status, result.outputs, asked(first, fallback)) == ("completed", {"two": "done"}, [2, 2])


async def test_a_provider_that_asked_to_wait_is_heeded_although_its_call_moved_on(memory: World) -> None:
    """The run is done, and the rate of the model that failed stays shut for as long as it asked."""
    first = down("a", ModelRateLimitedError("too many", retry_after_ms=60_000))
    app = memory.process(agent(first, model("b", "done")))
    await app.aio.operator.limit_rate("model", "mock:a", calls_per_minute=6_000)
    assert (await app.aio.run_embedded("x", "go", run_id="r")).output == "done"
    assert 50_000 < await memory.store.take_rate([Draw(RateName("model", "mock:a"))]) <= 60_000


@pytest.mark.spec("FOV-012")
async def test_attempts_of_a_child_are_its_parent_s_to_allow_and_to_pay(world: World) -> None:
    """Both of them stand in the ledger of the parent, under its policy: a fallback that it forbids is refused, and the child
    that failed is a result for the parent's model."""
    for run_id, allowed in (("r", None), ("s", ["mock:boss", "mock:a"])):
        first, fallback = down("a"), model("b", "found it")
        helper = Agent("helper", model=first, fallback_models=[fallback], limits=ONE_TRY)
        parent = Agent("x", model=model("boss", calls(call("helper", prompt="go")), "done"), tools=[helper])
        app = world.process(parent)
        policy = None if allowed is None else ExecutionPolicy(allowed_models=allowed)
        result = await app.aio.run_embedded("x", "go", run_id=run_id, budget=Budget(tokens=100_000), policy=policy)
        assert (result.status, asked(first, fallback)) == ("completed", [1, 1 if allowed is None else 0])
        balance = await world.store.balance(run_scope_key((await world.head(run_id)).rid))
        assert balance is not None
        assert balance.spent.tokens == (45 if allowed is None else 30)
        assert 4_096 < (balance.unknown.tokens or 0) < 2 * 4_096
        assert balance.held.tokens == 0
        [receipt] = (await world.receipts(run_id)).values()
        assert (receipt.outcome, receipt.reason) == ((None, None) if allowed is None else ("child-failed", "model_not_allowed"))
