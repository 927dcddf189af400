"""What a run may do: looked at before anything happens to a call, again in the settle, and only ever narrower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from deuz_workers import Agent, Budget, ExecutionPolicy, Guardrails, MockModel, StepInfo, StepPlan, ToolCallRequest, tool
from deuz_workers.core.policy import NO_POLICY
from deuz_workers.engine.controls import KnownControls
from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.providers.prices import Price, PriceList
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World
from tests.fake_clock import FakeClock

CODE = "tool_not_allowed"


class Shop:
    """Tools that read and pay, and everything that is asked about them."""

    def __init__(self, *script: Any, gate: bool = False) -> None:
        self.done, self.asked, self.gate = Effects(), Effects(), gate
        self.model = MockModel([*script, "done"])

    def agent(self, policy: ExecutionPolicy = NO_POLICY, **options: Any) -> Agent:
        def predicate(arguments: Mapping[str, Any]) -> bool:
            self.asked("predicate")
            return self.gate

        @tool
        async def read() -> str:
            self.done("read")
            return "read"

        @tool(needs_approval=predicate)
        async def pay() -> str:
            self.done("pay")
            return "paid"

        def guard(arguments: Any, context: Any) -> None:
            self.asked("guardrail")

        rails = Guardrails(on_tool_call=[guard])
        return Agent("x", model=self.model, tools=[read, pay], policy=policy, guardrails=rails, **options)


@pytest.mark.spec("PTH-003")
async def test_one_forbidden_call_ends_the_run_before_anything_happens_to_any(world: World) -> None:
    """An allowed call before it does not run; no guardrail, no predicate, no receipt; the error names the forbidden call."""
    shop = Shop(calls(call("read").with_id("r"), call("pay").with_id("p")), gate=True)
    app = world.process(shop.agent(ExecutionPolicy(allowed_tools={"read"})))
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert result.status == "failed"
    error = dict(result.error or {})
    assert (error["name"], error["code"], error["tool_call_id"], error["tool"]) == ("ExecutionPolicyError", CODE, "p", "pay")
    assert (shop.done.done, shop.asked.done, await world.receipts("r")) == ({}, {}, {})
    assert result.pending_approvals == ()


async def test_what_a_policy_forbids_is_not_offered(memory: World) -> None:
    """The model is not led to a call that would end its run."""
    shop = Shop()
    await memory.process(shop.agent(ExecutionPolicy(allowed_tools={"read"}))).aio.run_embedded("x", "go")
    assert [spec.name for spec in shop.model.requests[0].tools] == ["read"]


async def test_a_tool_that_a_step_brings_in_is_gated_like_any_other(world: World) -> None:
    """`prepare_step` offers what the policy forbids: it is not shown, and a call of it ends the run."""
    shop = Shop(calls(call("pay").with_id("p")))

    def prepare(info: StepInfo) -> StepPlan:
        return StepPlan(active_tools=["read", "pay"], tool_choice="required")

    agent = shop.agent(ExecutionPolicy(allowed_tools={"read"}), prepare_step=prepare)
    result = await world.process(agent).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, (result.error or {})["code"], (result.error or {})["tool"]) == ("failed", CODE, "pay")
    assert ([spec.name for spec in shop.model.requests[0].tools], shop.done.done) == (["read"], {})


@pytest.mark.spec("APR-001", "PTH-005")
@pytest.mark.parametrize("gate", ["flag", "policy", "approver"])
async def test_each_of_the_three_gates_holds_the_call(memory: World, gate: str) -> None:
    """The tool's own flag, the list of the policy, and an inline approver: nothing began when the gate was asked."""
    seen: list[bool] = []
    shop = Shop(calls(call("pay").with_id("p")), gate=gate == "flag")

    async def approver(request: ToolCallRequest) -> bool:
        seen.append(not await memory.receipts("r") and not shop.done.done)
        return False

    policy = ExecutionPolicy(required_approvals=() if gate == "flag" else {"pay"})
    options = {"approve_tool_call": approver} if gate == "approver" else {}
    agent = shop.agent(policy, **options)
    result = await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    assert (shop.done.done, {stage.stage for stage in (await memory.receipts("r")).values()} <= {"failed"}) == ({}, True)
    if gate == "approver":
        assert (result.status, seen) == ("completed", [True])
        return
    [asked] = result.pending_approvals
    assert (result.status, await memory.receipts("r")) == ("suspended", {})
    assert (await memory.process(agent).aio.resume_embedded("r", approvals={asked.approval_id: True})).status == "completed"
    assert shop.done.done == {"pay": 1}


@pytest.mark.spec("SET-004", "PTH-012")
async def test_an_approved_call_is_looked_at_again_when_it_is_settled(world: World) -> None:
    """The policy became narrower while people decided: the approved call does not run, whoever agreed to it."""
    shop = Shop(calls(call("pay").with_id("p")), gate=True)
    app = world.process(shop.agent())
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    await app.aio.handle("r").approve(asked)
    narrower = world.process(shop.agent(ExecutionPolicy(allowed_tools={"read"})))
    result = await narrower.aio.resume_embedded("r")
    error = dict(result.error or {})
    assert (result.status, error["code"], error["tool_call_id"]) == ("failed", CODE, "p")
    assert (shop.done.done, await world.receipts("r")) == ({}, {})


@pytest.mark.spec("PTH-012")
async def test_a_settle_goes_through_the_same_stages(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy and guardrails are asked once when the turn is taken up and once more when it is settled."""
    looked: list[list[str]] = []
    violation: Callable[..., Any] = ExecutionPolicy.violation

    def counted(self: ExecutionPolicy, given: Any, known: Any) -> Any:
        given = list(given)
        looked.append([one.call_id for one in given])
        return violation(self, given, known)

    monkeypatch.setattr(ExecutionPolicy, "violation", counted)
    shop = Shop(calls(call("read").with_id("r"), call("pay").with_id("p")), gate=True)
    app = memory.process(shop.agent())
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    assert (looked, shop.asked.done["guardrail"]) == ([["r", "p"]], 2)
    await app.aio.resume_embedded("r", approvals={asked.approval_id: True})
    assert (looked, shop.asked.done["guardrail"]) == ([["r", "p"]] * 2, 4)
    assert shop.done.done == {"read": 1, "pay": 1}


@pytest.mark.spec("PRP-004")
async def test_a_tool_that_a_step_activates_is_gated_like_any_other(memory: World) -> None:
    """`prepare_step` activates one that the policy does not allow: its call ends the run."""
    shop = Shop(calls(call("pay").with_id("p")))

    def activate(info: StepInfo) -> StepPlan:
        return StepPlan(active_tools=["read", "pay"])

    agent = shop.agent(ExecutionPolicy(allowed_tools={"read"}), prepare_step=activate)
    result = await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, dict(result.error or {})["code"], shop.done.done) == ("failed", CODE, {})


async def test_a_model_that_a_step_chooses_is_checked_before_it_is_called(memory: World) -> None:
    """The agent's own is allowed, another is not: no request is sent and nothing is reserved for it."""
    other = MockModel(["never"], model="other")
    shop = Shop(calls(call("read")))

    def choose(info: StepInfo) -> StepPlan:
        return StepPlan(model=other if info.step == 2 else None)

    agent = shop.agent(ExecutionPolicy(allowed_models={shop.model.name}), prepare_step=choose)
    result = await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    error = dict(result.error or {})
    assert (result.status, error["code"], error["model"]) == ("failed", "model_not_allowed", other.name)
    assert (len(shop.model.requests), len(other.requests)) == (1, 0)
    assert (await memory.head("r")).model_step == 1


@pytest.mark.parametrize("by", ["run", "resume"])
async def test_a_stored_policy_is_only_narrowed(world: World, by: str) -> None:
    """A run that began under a narrow policy keeps it in a process that allows more; one that was narrowed keeps that."""
    dies = [True]

    def agent(policy: ExecutionPolicy = NO_POLICY) -> Agent:
        @tool(replay="idempotent")
        async def read() -> str:
            if dies:
                raise ProcessDied
            return "read"

        @tool
        async def pay() -> None:
            pytest.fail("it is not allowed")

        return Agent("x", model=model, tools=[read, pay], policy=policy)

    model = MockModel([calls(call("read")), calls(call("pay").with_id("p")), "done"])
    narrow = ExecutionPolicy(allowed_tools={"read"})
    with pytest.raises(ProcessDied):
        await world.process(agent()).aio.run_embedded("x", "go", run_id="r", policy=narrow if by == "run" else None)
    if by == "resume":
        with pytest.raises(ProcessDied):
            await world.process(agent()).aio.resume_embedded("r", policy=narrow)
        assert (await world.process(agent()).aio.handle("r").envelope()).policy == narrow
    dies.clear()
    result = await world.process(agent(ExecutionPolicy({"read", "pay"}))).aio.resume_embedded("r", policy=NO_POLICY)
    assert (result.status, dict(result.error or {})["code"]) == ("failed", CODE)


async def test_a_deadline_of_a_policy_is_the_runs(memory: World) -> None:
    """It ends the run like one that was given with it, by the store's clock where it was known when the run was made."""
    at = datetime(2020, 1, 1, tzinfo=UTC)
    policy = ExecutionPolicy(deadline_ms=round(at.timestamp() * 1000))
    shop = Shop()
    result = await memory.process(shop.agent(policy)).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, dict(result.error or {})["code"], len(shop.model.requests)) == ("failed", "deadline_exceeded", 0)
    left = (await memory.head("r")).deadline_in_ms
    assert left is not None
    assert left < 0
    later = Shop(calls(call("read")))
    app = memory.process(later.agent())
    await app.aio.enqueue("x", "go", run_id="s")
    result = await memory.process(later.agent(policy)).aio.resume_embedded("s")
    assert (result.status, dict(result.error or {})["code"], len(later.model.requests)) == ("failed", "deadline_exceeded", 0)


HOUR_MS = 3_600_000


@dataclass
class SkewedClock:
    """A worker's whose time of day is wrong."""

    by_ms: int
    inner: SystemClock

    def unix_ms(self) -> int:
        return self.inner.unix_ms() + self.by_ms

    def monotonic_ms(self) -> int:
        return self.inner.monotonic_ms()

    async def sleep_ms(self, ms: int) -> None:
        await self.inner.sleep_ms(ms)


@pytest.mark.spec("POL-008")
@pytest.mark.parametrize(("skew_ms", "left_ms", "status"), [(-HOUR_MS, -1_000, "failed"), (HOUR_MS, 600_000, "completed")])
async def test_a_deadline_is_judged_by_the_clock_of_the_store(world: World, skew_ms: int, left_ms: int, status: str) -> None:
    """A worker an hour behind does not extend one that a resume gave, and one an hour ahead does not cut it short."""
    shop = Shop(calls(call("read")))
    agent = shop.agent()
    await world.process(agent).aio.enqueue("x", "go", run_id="r")
    app = world.process(agent)
    app.clock = SkewedClock(skew_ms, SystemClock())
    policy = ExecutionPolicy(deadline_ms=await world.store.now_ms() + left_ms)
    result = await app.aio.resume_embedded("r", policy=policy)
    assert result.status == status
    if status == "failed":
        assert (dict(result.error or {})["code"], len(shop.model.requests)) == ("deadline_exceeded", 0)


@pytest.mark.spec("POL-008")
@pytest.mark.parametrize("waits_for", ["person", "child"])
async def test_a_run_that_waits_is_looked_at_again_by_its_deadline(world: World, waits_for: str) -> None:
    """Of a deadline that a resume gave, by the clock of the store: a worker an hour behind waits no longer. Then it ends."""
    shop = Shop(calls(call("pay").with_id("p")), gate=True)
    agent = shop.agent()
    if waits_for == "child":
        agent = Agent("boss", model=MockModel([calls(call("x", prompt="pay")), "never"]), tools=[agent])
    await world.process(agent).aio.enqueue(agent.name, "go", run_id="r")
    app = world.process(agent)
    app.clock = SkewedClock(-HOUR_MS, SystemClock())
    policy = ExecutionPolicy(deadline_ms=await world.store.now_ms() + 600_000)
    assert (await app.aio.resume_embedded("r", policy=policy)).status == "suspended"
    due_in_ms = (await world.head("r")).due_in_ms
    assert due_in_ms is not None
    assert 0 < due_in_ms <= 600_000
    await world.later(601_000)
    result = await world.process(agent).aio.resume_embedded("r")
    assert (result.status, dict(result.error or {})["code"], shop.done.done) == ("failed", "deadline_exceeded", {})
    page = await world.process(agent).aio.list_runs()
    assert {head.status for head in page.heads} <= {"failed", "stopped"}


@pytest.mark.spec("POL-005")
async def test_deadlines_are_unix_time_in_milliseconds_of_the_injected_clock(memory: World) -> None:
    """The store's, standing still: a second before the deadline the run goes on, at it the run has failed."""
    at_ms = 1_800_000_000_000
    for left_ms, status in ((60_000, "completed"), (0, "failed")):
        memory.store.now = at_ms - left_ms
        shop = Shop()
        app = memory.process(shop.agent(ExecutionPolicy(deadline_ms=at_ms)))
        result = await app.aio.run_embedded("x", "go")
        assert (result.status, len(shop.model.requests)) == (status, int(status == "completed"))
    clock = FakeClock()
    known = KnownControls()
    assert known.store_ms(clock) == clock.unix_ms(), "before anything was read"
    memory.store.now = at_ms
    await known.read(memory.store, clock)
    clock.advance(250)
    assert known.store_ms(clock) == at_ms + 250


@pytest.mark.spec("POL-007")
async def test_a_resume_with_a_later_deadline_keeps_the_stored_one(world: World) -> None:
    """And one with more tools, more models, fewer approvals and more depth keeps all of that."""
    shop = Shop(calls(call("pay").with_id("p")), gate=True)
    now_ms = await world.store.now_ms()
    stored = ExecutionPolicy({"read", "pay"}, {shop.model.name}, {"read"}, now_ms + HOUR_MS, 2)
    app = world.process(shop.agent())
    await app.aio.run_embedded("x", "go", run_id="r", policy=stored)
    wider = ExecutionPolicy({"read", "pay", "more"}, None, (), now_ms + 2 * HOUR_MS, 5)
    [asked] = (await app.aio.resume_embedded("r")).pending_approvals
    result = await app.aio.resume_embedded("r", approvals={asked.approval_id: True}, policy=wider)
    assert result.status == "completed"
    assert (await app.aio.handle("r").envelope()).policy == stored


@pytest.mark.spec("POL-006")
async def test_a_call_that_the_policy_allows_can_still_be_invalid(memory: World) -> None:
    """Its context, its arguments and its result are judged each by themselves, and end neither the run nor the other calls."""
    ran = Effects()

    @tool(context_schema=int)
    async def scoped() -> str:
        ran("scoped")
        return "never"

    @tool
    async def typed(n: int) -> str:
        ran("typed")
        return "never"

    def refuse(value: Any) -> None:
        raise ValueError("not like this")

    @tool(output_schema=str, validate_result=refuse)
    async def judged() -> str:
        ran("judged")
        return "something"

    @tool
    async def plain() -> str:
        ran("plain")
        return "ok"

    batch = calls(call("scoped"), call("typed", n="x"), call("judged"), call("plain"))
    policy = ExecutionPolicy({"scoped", "typed", "judged", "plain"})
    agent = Agent("x", model=MockModel([batch, "done"]), tools=[scoped, typed, judged, plain], policy=policy)
    app = memory.process(agent)
    result = await app.aio.run_embedded("x", "go", run_id="r", tools_context={"scoped": "no number"})
    outcomes = {receipt.tool: receipt.outcome for receipt in (await memory.receipts("r")).values()}
    assert result.status == "completed"
    assert outcomes == {"scoped": "invalid-context", "typed": "invalid-arguments", "judged": "invalid-result", "plain": None}
    assert ran.done == {"judged": 1, "plain": 1}
    forbidden = Agent("y", model=MockModel([calls(call("plain"))]), tools=[plain, scoped], policy=ExecutionPolicy({"scoped"}))
    result = await memory.process(forbidden).aio.run_embedded("y", "go", tools_context={"scoped": 7})
    assert (result.status, dict(result.error or {})["code"]) == ("failed", CODE), "a valid context allows nothing"


@pytest.mark.spec("POL-009")
@pytest.mark.parametrize(
    ("budget", "price", "status"),
    [
        (Budget.of(tokens=100_000), Price(1e6, 1e6), "completed"),
        (Budget.of(usd=1_000), Price(0.001, 0.001), "completed"),
        (Budget.of(tokens=10), Price(0, 0), "failed"),
        (Budget.of(usd=0.01), Price(1e6, 1e6), "failed"),
    ],
)
async def test_a_dimension_that_is_not_named_has_no_limit(world: World, budget: Budget, price: Price, status: str) -> None:
    """A budget in tokens admits a call at any price, one in dollars any number of tokens; each limits what it names."""
    shop = Shop()
    app = world.process(shop.agent(max_output_tokens=1_000))
    app.prices = PriceList({shop.model.name: price})
    result = await app.aio.run_embedded("x", "go", budget=budget)
    assert (result.status, len(shop.model.requests)) == (status, int(status == "completed"))
    if status == "failed":
        assert dict(result.error or {})["code"] == "budget_exceeded"
