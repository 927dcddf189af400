"""The stages that every tool call passes, how many calls run at a time, and what is waited for."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from deuz_workers import Agent, ExecutionPolicy, Guardrails, Limits, MockModel, ToolCallRequest, ToolContext, tool
from deuz_workers.core.change import Applied, Change, Outcome
from deuz_workers.core.codec import decode
from deuz_workers.core.messages import ToolResultPart
from deuz_workers.engine.committer import Committer
from deuz_workers.providers.script import call, calls, reply
from deuz_workers.testing.crashing_store import ProcessDied
from deuz_workers.tools import threads
from tests.app.world import Effects, World


@pytest.mark.spec("GRD-003", "PTH-001")
async def test_a_call_passes_its_stages_in_order(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy, guardrail, approval, admission with the receipt, execution, outcome and its guardrail, checkpoint; no stage of a
    call whose reply was cut off."""
    stages: list[str] = []
    violation, store_commit = ExecutionPolicy.violation, memory.store.commit

    def policy(self: ExecutionPolicy, given: Any, known: Any) -> Any:
        stages.append("policy")
        return violation(self, given, known)

    async def commit(change: Change) -> Outcome:
        outcome = await store_commit(change)
        if isinstance(outcome, Applied):
            of_tool = [row.stage for row in change.receipts]
            stages.extend(["admitted"] if change.starts and of_tool else [])
            stages.extend(of_tool)
            bodies = [decode(row.body) for row in change.messages]
            stages.extend("checkpoint" for body in bodies if isinstance(body, dict) and body.get("role") == "tool")
        return outcome

    async def approver(request: ToolCallRequest) -> bool:
        stages.append("approval")
        return True

    def before(arguments: Any, context: Any) -> None:
        stages.append("on_tool_call")

    def after(text: Any, context: Any) -> None:
        stages.append("on_tool_result")

    @tool(needs_approval=True)
    async def work() -> str:
        stages.append("execution")
        return "worked"

    monkeypatch.setattr(ExecutionPolicy, "violation", policy)
    monkeypatch.setattr(memory.store, "commit", commit)
    model = MockModel([calls(call("work")), reply("", call("work"), finish_reason="length")])
    rails = Guardrails(on_tool_call=[before], on_tool_result=[after])
    agent = Agent("x", model=model, tools=[work], guardrails=rails, approve_tool_call=approver)
    result = await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, result.reason) == ("stopped", "length")
    once = ["policy", "on_tool_call", "approval", "admitted", "executing", "execution"]
    assert stages[: len(once)] == once
    # The last checkpoint is that of the reply that was cut off: its call is answered, and met no stage.
    assert stages[len(once) :] == ["completed", "on_tool_result", "checkpoint", "checkpoint"]


class Crowd:
    """Twelve calls of one turn, which end in another order than they began."""

    def __init__(self, concurrency: int | None = None) -> None:
        self.now, self.peak, self.begun = 0, 0, Effects()
        self.dies_at = 0
        wanted = [call("work", n=n).with_id(f"c{n:02}") for n in range(12)]
        self.model = MockModel([calls(*wanted), "done"])
        self.limits = Limits() if concurrency is None else Limits(tool_concurrency=concurrency)

    @property
    def agent(self) -> Agent:
        @tool
        async def work(n: int) -> int:
            self.begun(f"c{n:02}")
            self.now += 1
            self.peak = max(self.peak, self.now)
            if len(self.begun.done) == self.dies_at:
                raise ProcessDied
            for _ in range(2 + 7 * n % 5):
                await asyncio.sleep(0)
            self.now -= 1
            return n

        return Agent("x", model=self.model, tools=[work], limits=self.limits)


@pytest.mark.spec("PTH-014")
@pytest.mark.parametrize(("concurrency", "peak"), [(None, 5), (1, 1), (3, 3), (50, 12)])
async def test_so_many_calls_of_a_turn_run_at_a_time(world: World, concurrency: int | None, peak: int) -> None:
    """Five unless the agent says otherwise; each runs once, and the results stand in the order of the calls."""
    crowd = Crowd(concurrency)
    result = await world.process(crowd.agent).aio.run_embedded("x", "go", run_id="r")
    assert (result.status, crowd.peak) == ("completed", peak)
    assert crowd.begun.done == {f"c{n:02}": 1 for n in range(12)}
    [answers] = [message.tool_results for message in result.messages if message.role == "tool"]
    assert [(part.call_id, part.text) for part in answers] == [(f"c{n:02}", str(n)) for n in range(12)]


@pytest.mark.parametrize("dies_at", [1, 5, 6, 9, 12])
async def test_a_call_that_waits_for_its_place_has_not_begun(memory: World, dies_at: int) -> None:
    """The process dies in one of them: what had begun is unknown, as many as run at a time at most; the rest runs later."""
    crowd = Crowd()
    crowd.dies_at = dies_at
    with pytest.raises(ProcessDied):
        await memory.process(crowd.agent).aio.run_embedded("x", "go", run_id="r")
    begun = set(crowd.begun.done)
    stopped = await memory.process(crowd.agent).aio.resume_embedded("r")
    unknown = {effect.tool_call_id for effect in stopped.unknown_effects}
    assert 1 <= len(unknown) <= 5
    assert unknown <= begun | {f"c{n:02}" for n in range(5)}
    crowd.dies_at = 0
    settled = await memory.process(crowd.agent).aio.resume_embedded("r", reconciled_tool_results=dict.fromkeys(unknown, 7))
    assert settled.status == "completed"
    assert set(crowd.begun.done.values()) == {1}
    assert set(crowd.begun.done) | unknown == {f"c{n:02}" for n in range(12)}


async def test_calls_that_wait_do_not_begin_after_a_cancel(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcomes of those that ran are kept, and the run ends as cancelled."""
    crowd = Crowd(2)
    app = memory.process(crowd.agent)
    commit = Committer.commit

    async def cancelled_first(self: Committer, *events: Any) -> None:
        if crowd.begun.done and not (await memory.head("r")).cancel_seq:
            assert await memory.process(crowd.agent).aio.handle("r").cancel()  # its signal reaches no other process here
        await commit(self, *events)

    monkeypatch.setattr(Committer, "commit", cancelled_first)
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, result.reason) == ("stopped", "aborted")
    assert crowd.begun.done == {"c00": 1, "c01": 1}
    assert {name: one.stage for (_, name), one in (await memory.receipts("r")).items()} == {
        "c00": "completed",
        "c01": "completed",
    }


@pytest.mark.spec("PTH-019")
@pytest.mark.parametrize("why", ["limit", "cancel"])
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_a_run_resolves_only_after_its_slow_tool_returned(memory: World, why: str, kind: str) -> None:
    """Its limit passed or the run was cancelled: the tool is told, and nothing of it is left when the run ends."""
    told, ended = threading.Event(), threading.Event()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(context: ToolContext) -> str:
        loop.call_soon_threadsafe(began.set)
        if context.signal.wait(20_000):
            told.set()
        time.sleep(0.1)  # what it has begun comes to its end
        ended.set()
        return "late"

    async def slow_too(context: ToolContext) -> str:
        began.set()
        while not context.signal.is_set:  # noqa: ASYNC110 - what tools have is a flag
            await asyncio.sleep(0.005)
        told.set()
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
        ended.set()
        return "late"

    async def stubborn(context: ToolContext) -> str:
        try:
            return await slow_too(context)
        except asyncio.CancelledError:
            return await slow_too(context)

    limit = 100 if why == "limit" else None
    made = tool(name="slow", timeout_ms=limit)(slow if kind == "thread" else stubborn)
    app = memory.process(Agent("x", model=MockModel([calls(call("slow")), "done"]), tools=[made]))
    running = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="r"))
    await began.wait()
    if why == "cancel":
        await app.aio.handle("r").cancel()
    result = await running
    assert (told.is_set(), ended.is_set()) == (True, True)
    assert result.status == ("completed" if why == "limit" else "stopped")
    if kind == "thread" and why == "limit":
        [part] = [part for message in result.messages for part in message.parts if isinstance(part, ToolResultPart)]
        assert (part.is_error, part.outcome) == (True, "timeout")


@pytest.mark.spec("FR-05")
async def test_a_call_that_ignores_its_limit_is_not_begun_again(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that nothing can end is given up after a while; its call counts as over, and no attempt follows beside it."""
    monkeypatch.setattr(threads.THREADS, "_linger_ms", 50)
    may_end, begun = threading.Event(), Effects()

    @tool(replay="idempotent", timeout_ms=50)
    def pay() -> str:
        begun("pay")
        may_end.wait(30)
        return "paid"

    model = MockModel([calls(call("pay").with_id("p")), "done"])
    agent = Agent("x", model=model, tools=[pay])
    try:
        result = await memory.process(agent).aio.run_embedded("x", "go", run_id="r")
        assert (result.status, begun.done, threads.THREADS.abandoned()) == ("completed", {"pay": 1}, {"pay": 1})
        again = await memory.process(agent).aio.resume_embedded("r")
        assert (again.status, begun.done) == ("completed", {"pay": 1})
        receipt = (await memory.receipts("r"))[1, "p"]
        assert (receipt.stage, receipt.outcome, receipt.attempt) == ("failed", "timeout", 1)
    finally:
        may_end.set()
