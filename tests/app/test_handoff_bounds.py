"""What belongs to the run stays with it when it is handed over: policy, guardrails, budget, answer, fallbacks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from deuz_workers import (
    Agent,
    Block,
    Budget,
    ExecutionPolicy,
    Guardrails,
    Limits,
    MockModel,
    ModelUnavailableError,
    Rejected,
    StepInfo,
    StepPlan,
    Verified,
    VerifyContext,
)
from deuz_workers.core.change import Applied, Change, Outcome
from deuz_workers.core.codec import decode
from deuz_workers.core.names import run_scope_key
from deuz_workers.engine.restraint import BRAKED_MOST_MS
from deuz_workers.providers.script import call, calls, fails
from tests.app.delegating import scripted
from tests.app.handing_over import NEVER, asked, member, offered, paying, results, to
from tests.app.test_brakes import until_held
from tests.app.world import Effects, World


class Total(BaseModel):
    total: int


@pytest.mark.spec("CHD-003")
@pytest.mark.parametrize("what", ["model", "tool"])
async def test_allowlists_of_the_run_apply_to_the_target(world: World, what: str) -> None:
    """A model or a tool of the target that the run may not use ends it, and nothing is sent or called."""
    done = Effects()
    billing = member("billing", NEVER, calls(call("pay").with_id("p")), NEVER, tools=[paying(done)])
    policy = (
        ExecutionPolicy(allowed_models={"mock:triage"})
        if what == "model"
        else ExecutionPolicy(allowed_tools={"transfer_to_billing"})
    )
    result = await world.process(member("triage", to("billing"), handoffs=[billing])).aio.run_embedded(
        "triage", "go", run_id="r", policy=policy
    )
    error = dict(result.error or {})
    assert (error["name"], error["code"]) == ("ExecutionPolicyError", f"{what}_not_allowed")
    assert error[what] == ("mock:billing" if what == "model" else "pay")
    assert (len(asked(billing)), done.done) == (0 if what == "model" else 1, {})


@pytest.mark.spec("CHD-003")
async def test_what_the_target_uses_is_spent_by_the_run(world: World) -> None:
    """Its calls are admitted against the budget of the run, which has room for the first agent's alone."""
    billing = member("billing", NEVER, "done", max_output_tokens=50)
    triage = member("triage", to("billing"), handoffs=[billing], max_output_tokens=50)
    app = world.process(triage)
    result = await app.aio.run_embedded("triage", "go", run_id="r", budget=Budget(tokens=100_000))
    balance = await world.store.balance(run_scope_key((await world.head("r")).rid))
    assert balance is not None
    assert (result.status, balance.spent.tokens) == ("completed", 30)
    tight = member("triage", to("billing"), handoffs=[member("billing", NEVER, NEVER, max_output_tokens=90_000)])
    result = await world.process(tight).aio.run_embedded("triage", "go", run_id="s", budget=Budget(tokens=80_000))
    assert (result.status, (result.error or {})["code"]) == ("failed", "budget_exceeded")


async def test_a_policy_of_the_target_holds_while_it_drives(world: World) -> None:
    """What it forbids ends the run under it, what it wants approved waits; handed back, the run has its own again."""
    done = Effects()
    strict = ExecutionPolicy(allowed_tools={"transfer_to_triage", "look"}, required_approvals={"look"})
    billing = member(
        "billing", NEVER, calls(call("look").with_id("l")), to("triage"), tools=[paying(done, name="look")], policy=strict
    )
    pays = calls(call("pay").with_id("p"))
    triage = member("triage", to("billing"), NEVER, NEVER, pays, "done", tools=[paying(done)], handoffs=[billing])
    waiting = await world.process(triage).aio.run_embedded("triage", "go", run_id="r")
    [item] = waiting.pending_approvals
    assert (item.tool_name, offered(billing)) == ("look", ["look", "transfer_to_triage"])
    result = await world.process(triage).aio.resume_embedded("r", approvals={item.approval_id: True})
    assert (result.output, done.done) == ("done", {"look billing": 1, "pay triage": 1})
    other = member("billing", NEVER, pays, NEVER, tools=[paying(done)], policy=strict)
    result = await world.process(member("triage", to("billing"), handoffs=[other])).aio.run_embedded("triage", "go", run_id="s")
    assert (result.error or {})["code"] == "tool_not_allowed"


@pytest.mark.spec("HND-013", "GRD-011")
@pytest.mark.parametrize("how", ["target", "child"])
async def test_guardrails_stay_with_the_run(world: World, how: str) -> None:
    """A rule of the first agent blocks the target's tool, and that of a child; what the target brings along is not asked."""
    done, brought = Effects(), Effects()

    def no_money(arguments: Any, context: Any) -> Block | None:
        return Block("no money") if (context.call.name, context.active_agent) == ("pay", "billing") else None

    def of_target(arguments: Any, context: Any) -> None:
        brought("asked")

    rails = Guardrails(on_tool_call=no_money)
    pays = calls(call("pay").with_id("p"))
    if how == "target":
        other = Guardrails(on_tool_call=of_target)
        billing = member("billing", NEVER, pays, "done", tools=[paying(done)], guardrails=other)
        root = member("triage", to("billing"), handoffs=[billing], guardrails=rails)
    else:
        billing = member("billing", pays, "done", tools=[paying(done)])
        root = scripted("triage", calls(call("billing", prompt="go")), "done", tools=[billing], guardrails=rails)
    result = await world.process(root).aio.run_embedded("triage", "go", run_id="r")
    assert (result.status, done.done, brought.done) == ("completed", {}, {})
    assert results(billing)[-1].outcome == "blocked"


@pytest.mark.spec("FIN-012")
async def test_the_final_answer_is_asked_of_the_target(world: World) -> None:
    """Its model, its tools, also after a rejection by type and by the verifier; type and verifier are the run's."""

    async def verify(output: Total, context: VerifyContext) -> Verified | Rejected:
        return Verified() if output.total == 3 else Rejected("not three")

    answers = ["ready", "no idea", '{"total": 2}', '{"total": 3}']
    billing = member("billing", NEVER, *answers, tools=[paying(Effects())])
    limits = Limits(max_output_attempts=2, max_verify_attempts=2)
    triage = member("triage", to("billing"), handoffs=[billing], output_type=Total, verify=verify, limits=limits)
    result = await world.process(triage).aio.run_embedded("triage", "go", run_id="r")
    assert (result.status, result.output) == ("completed", Total(total=3))
    assert (len(asked(triage)), len(asked(billing))) == (1, 4)
    assert [request.output_format is not None for request in asked(billing)] == [False, True, True, True]
    assert {tuple(offered(billing, place)) for place in range(4)} == {("pay", "transfer_to_triage")}


@pytest.mark.spec("FOV-007")
async def test_the_models_of_targets_and_of_steps_fail_over(world: World) -> None:
    """To the fallbacks of the run, under the target's instructions and tools; so does a model that a step chose."""
    away = fails(ModelUnavailableError("away", status=503))
    spare = MockModel([NEVER, "done"], model="spare")
    billing = member("billing", NEVER, away, tools=[paying(Effects())])
    triage = member("triage", to("billing"), handoffs=[billing], fallback_models=[spare], limits=Limits(max_retries=0))
    result = await world.process(triage).aio.run_embedded("triage", "go", run_id="r")
    assert (result.output, len(asked(billing)), len(spare.requests)) == ("done", 1, 1)
    assert spare.requests[0].messages[0].text == "You are billing."
    assert [spec.name for spec in spare.requests[0].tools] == ["pay", "transfer_to_triage"]
    models = (await world.process().aio.handle("r").envelope()).models
    assert models is not None
    assert [(each.failed.name, each.next.name) for each in models.failovers] == [("mock:billing", "mock:spare")]
    chosen, second = MockModel([away], model="chosen"), MockModel(["done"], model="second")
    agent = Agent(
        "x",
        model=MockModel([NEVER]),
        tools=[paying(Effects())],
        fallback_models=[second],
        limits=Limits(max_retries=0),
        prepare_step=lambda info: StepPlan(model=chosen),
    )
    assert (await world.process(agent).aio.run_embedded("x", "go")).output == "done"
    assert (len(chosen.requests), len(second.requests)) == (1, 1)


async def test_hooks_of_the_run_see_every_step(memory: World) -> None:
    """`prepare_step` and `stop_when` are the first agent's; those of a target count in runs of its own."""
    steps, foreign = Effects(), Effects()

    def prepare(info: StepInfo) -> StepPlan:
        steps(f"{info.agent} {info.active_agent} {info.step}")
        return StepPlan(active_tools=["pay"] if info.step == 2 else None)

    def elsewhere(info: StepInfo) -> bool:
        foreign("asked")
        return True

    billing = member("billing", NEVER, calls(call("pay").with_id("p")), NEVER, tools=[paying(Effects())], stop_when=elsewhere)

    def stop_third(info: StepInfo) -> bool:
        return info.step == 3

    triage = member("triage", to("billing"), handoffs=[billing], prepare_step=prepare, stop_when=stop_third)
    result = await memory.process(triage).aio.run_embedded("triage", "go")
    assert (result.status, result.reason, foreign.done) == ("stopped", "stop-condition", {})
    assert (steps.done, offered(billing)) == ({"triage triage 1": 1, "triage billing 2": 1}, ["pay"])


async def test_a_transfer_passes_the_stages_of_every_call(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy, guardrail, approval, receipt, execution with the transfer in the commit of its result, result guardrail, answer;
    the same list as of a tool of one's own, in as many commits."""
    stages: list[str] = []
    violation, store_commit = ExecutionPolicy.violation, memory.store.commit

    def policy(self: ExecutionPolicy, given: Any, known: Any) -> Any:
        stages.append("policy")
        return violation(self, given, known)

    async def commit(change: Change) -> Outcome:
        outcome = await store_commit(change)
        if isinstance(outcome, Applied):
            stages.extend(row.stage for row in change.receipts)
            stages.extend("handed off" for row in change.journal if "run.handed_off" in row)
            bodies = [decode(row.body) for row in change.messages]
            stages.extend("answered" for body in bodies if isinstance(body, dict) and body.get("role") == "tool")
        return outcome

    def seen(name: str) -> Any:
        def rail(value: Any, context: Any) -> None:
            stages.append(name)

        return rail

    async def approver(request: Any) -> bool:
        stages.append("approval")
        return True

    monkeypatch.setattr(ExecutionPolicy, "violation", policy)
    monkeypatch.setattr(memory.store, "commit", commit)
    rails = Guardrails(on_tool_call=seen("on_tool_call"), on_tool_result=seen("on_tool_result"))
    passed: dict[str, list[str]] = {}
    for name, turn in (("transfer", to("billing")), ("tool", calls(call("pay").with_id("p")))):
        stages.clear()
        triage = member(
            "triage",
            turn,
            "done",
            tools=[paying(Effects())],
            handoffs=[member("billing", NEVER, "done")],
            guardrails=rails,
            approve_tool_call=approver,
            policy=ExecutionPolicy(required_approvals={"transfer_to_billing", "pay"}),
        )
        assert (await memory.process(triage).aio.run_embedded("triage", "go", run_id=name)).output == "done"
        passed[name] = list(stages)
    both = ["policy", "on_tool_call", "approval", "executing", "on_tool_result", "completed"]
    assert [stage for stage in passed["transfer"] if stage != "handed off"] == passed["tool"]
    assert {*passed["tool"]} == {*both, "answered"}
    assert passed["transfer"].count("handed off") == 1
    assert passed["transfer"].index("handed off") - passed["transfer"].index("completed") == 1


async def test_a_brake_on_the_driver_holds_the_run(memory: World) -> None:
    """From the moment on at which it drives; what the first agent had begun was ended."""
    billing = member("billing", NEVER, "done")
    triage = member("triage", to("billing"), handoffs=[billing])
    app = memory.process(triage)
    await app.aio.operator.set_brake("agent", "billing")
    running = asyncio.ensure_future(app.aio.run_embedded("triage", "go", run_id="r"))
    await until_held(app, running)
    assert (len(asked(triage)), len(asked(billing))) == (1, 0)
    assert (await memory.process().aio.handle("r").envelope()).active_agent == "billing"
    await app.aio.operator.lift_brake("agent", "billing")
    await memory.later(BRAKED_MOST_MS)
    assert (await running).output == "done"
