"""What the settle of a resume does with calls: those that have an outcome are answered, the others meet their gate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from deuz_workers import Agent, ExecutionPolicy, Limits, MockModel, tool
from deuz_workers.core.messages import ToolResultPart
from deuz_workers.core.policy import NO_POLICY
from deuz_workers.errors import ModelUnavailableError
from deuz_workers.ports.model import ModelReply, ModelRequest, OnText
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.app.world import Effects, World

OUTCOMES = ("executed", "completed", "failed", "validation-failed", "projection-failed", "reconciled")


class Desk:
    """A gated call with one outcome, beside one that takes its process along."""

    def __init__(self, world: World, outcome: str, gate: str) -> None:
        self.world, self.outcome, self.gate = world, outcome, gate
        self.done, self.asked = Effects(), Effects()
        self.dies = True
        self.model = MockModel([calls(call("work").with_id("w"), call("die").with_id("d")), "done"])

    @property
    def agent(self) -> Agent:
        def predicate(arguments: Mapping[str, Any]) -> bool:
            self.asked("predicate")
            return self.gate == "flag"

        def show(value: Any) -> str:
            if self.dies and self.outcome in ("executed", "projection-failed"):
                if self.outcome == "executed":
                    raise ProcessDied  # behind the commit of the raw value
                raise ValueError("not yet")
            return f"shown {value}"

        def check(value: Any) -> Any:
            if self.outcome == "validation-failed":
                raise ValueError("not valid")
            return value

        @tool(needs_approval=predicate, to_model_output=show, output_schema=int, validate_result=check)
        async def work() -> int:
            self.done("work")
            if self.outcome == "failed":
                raise ValueError("no luck")
            if self.outcome == "reconciled" and self.dies:
                raise ProcessDied
            return 7

        @tool(replay="idempotent")
        async def die() -> str:
            if not self.dies:
                return "alive"
            if self.outcome in ("executed", "reconciled"):
                await asyncio.Event().wait()  # the other call takes the process along
            while not await self.has_ended():  # noqa: ASYNC110 - in another process' store
                await asyncio.sleep(0.002)
            raise ProcessDied

        policy = ExecutionPolicy(required_approvals={"work"}) if self.gate == "policy" else NO_POLICY
        return Agent("x", model=self.model, tools=[work, die], policy=policy)

    async def has_ended(self) -> bool:
        receipt = (await self.world.receipts("r")).get((1, "w"))
        return receipt is not None and receipt.stage not in ("executing", "executed")


@pytest.mark.spec("SET-002")
@pytest.mark.parametrize("gate", ["flag", "policy"])
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_call_with_an_outcome_passes_no_gate_again(memory: World, outcome: str, gate: str) -> None:
    """Whatever its outcome and whichever gate it met: it is answered without running or a verdict, and nobody is asked."""
    desk = Desk(memory, outcome, gate)
    app = memory.process(desk.agent)
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    with pytest.raises(ProcessDied):
        await app.aio.resume_embedded("r", approvals={asked.approval_id: True})
    await asyncio.sleep(0)
    before = desk.asked.done["predicate"]
    desk.dies = False
    given = {"reconciled_tool_results": {"w": 8}} if outcome == "reconciled" else {}
    result = await memory.process(desk.agent).aio.resume_embedded("r", **given)  # type: ignore[arg-type]
    assert (result.status, result.pending_approvals) == ("completed", ())
    assert (desk.done.done, desk.asked.done["predicate"]) == ({"work": 1}, before)
    receipt = (await memory.receipts("r"))[1, "w"]
    stage = {"failed": "failed", "validation-failed": "validation-failed"}.get(outcome, "completed")
    assert (receipt.stage, receipt.attempt) == (stage, 1)


@pytest.mark.parametrize("given", [True, False])
async def test_calls_without_an_outcome_meet_their_gate(memory: World, given: bool) -> None:
    """In a turn that was taken up, one that never started and one that was allowed again: with a verdict they run, without one
    they are denied, and the run goes on."""
    done, dies = Effects(), [True]

    def agent() -> Agent:
        @tool(needs_approval=True)
        async def pay(to: str) -> str:
            done(to)
            if dies:
                raise ProcessDied
            return f"paid {to}"

        return Agent("x", model=model, tools=[pay])

    model = MockModel([calls(call("pay", to="ann").with_id("a")), "done"])
    app = memory.process(agent())
    [asked] = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    with pytest.raises(ProcessDied):
        await app.aio.resume_embedded("r", approvals={asked.approval_id: True})
    dies.clear()
    approvals = {asked.approval_id: True} if given else {}
    result = await memory.process(agent()).aio.resume_embedded("r", retry_tool_call_ids=["a"], approvals=approvals)
    assert (result.status, done.done) == ("completed", {"ann": 1 + given})
    [part] = [part for message in result.messages for part in message.parts if isinstance(part, ToolResultPart)]
    assert part.text == ("paid ann" if given else "Tool call denied. Reason: No approval response.")


class Fatal(MockModel):
    """Takes its process along when it is asked."""

    async def call(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        raise ProcessDied


@pytest.mark.spec("SET-007")
@pytest.mark.parametrize("how", ["death", "retry_failed"])
async def test_what_was_settled_is_never_settled_again(world: World, how: str) -> None:
    """The model fails after the settle: a second resume brings no verdict, and the results are those of the first."""
    done = Effects()

    def agent(*script: Any, model: type[MockModel] = MockModel) -> Agent:
        @tool(needs_approval=True)
        async def pay(to: str) -> str:
            done(to)
            return f"paid {to}"

        return Agent("x", model=model(script), tools=[pay], limits=Limits(max_retries=0))

    turn = calls(call("pay", to="ann").with_id("a"), call("pay", to="bob").with_id("b"))
    app = world.process(agent(turn))
    ann, bob = (await app.aio.run_embedded("x", "go", run_id="r")).pending_approvals
    verdicts = {ann.approval_id: True, bob.approval_id: {"approved": False, "reason": "not bob"}}
    second = world.process(agent(turn, ModelUnavailableError("away"), model=Fatal if how == "death" else MockModel))
    if how == "death":
        with pytest.raises(ProcessDied):
            await second.aio.resume_embedded("r", approvals=verdicts)
    else:
        assert (await second.aio.resume_embedded("r", approvals=verdicts)).status == "failed"
    await world.later(600_000)
    last = world.process(agent(turn, "unused", "done"))
    result = await last.aio.resume_embedded("r", retry_failed=how == "retry_failed")
    assert (result.status, done.done) == ("completed", {"ann": 1})
    texts = [part.text for message in result.messages for part in message.parts if isinstance(part, ToolResultPart)]
    assert texts == ["paid ann", "Tool call denied. Reason: not bob"]
