"""Steps that are broken off while a tool runs: the lease says whether its effect may still be under way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from deuz_workers.core.limits import Limits
from deuz_workers.core.names import run_lease_key
from deuz_workers.engine import user_code
from deuz_workers.leases.sqlite import SqliteLeases
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool
from deuz_workers.tools.function import FunctionTool
from deuz_workers.tools.threads import THREADS

KEY = run_lease_key(SCOPE, "r")


class Broken:
    """A step that is cancelled in the middle of a tool."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.leases = SqliteLeases(":memory:")

    def blocking(self) -> FunctionTool[..., Any]:
        @tool(replay="idempotent")
        def pay() -> str:
            """Pay, from a thread."""
            self.began.set()
            assert self.go_on.wait(30)
            return "paid"

        return pay

    def waiting(self) -> FunctionTool[..., Any]:
        @tool(replay="idempotent")
        async def await_payment() -> str:
            """Pay, on the loop."""
            self.began.set()
            await asyncio.sleep(30)
            return "paid"

        return await_payment

    async def off(self, pay: FunctionTool[..., Any]) -> None:
        agent = AgentDefinition("payer", MockModel([calls(call(pay.name)), "done"]), tools={pay.name: pay})
        simulation = Simulation({"payer": agent}, leases=self.leases)
        await simulation.enqueue("payer", "r")
        step = asyncio.ensure_future(Process(simulation).engine.step(SCOPE, "r"))
        await asyncio.to_thread(self.began.wait, 30)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step


async def test_a_thread_that_goes_on_keeps_the_lease_from_being_given_back() -> None:
    """It lapses: until then, nobody begins the effect that may still be under way a second time."""
    broken = Broken()
    await broken.off(broken.blocking())
    assert THREADS.running() == {"pay": 1}
    assert (await broken.leases.peek(KEY)).ms_left is not None
    broken.go_on.set()


@pytest.mark.parametrize("where", ["tool", "model"])
async def test_a_coroutine_that_swallows_its_cancellation_is_left(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The step goes on after the grace period: the call counts as one that took too long, what it returns later as nothing."""
    monkeypatch.setattr(user_code, "GRACE_S", 0.01)
    released, ended = asyncio.Event(), asyncio.Event()

    async def deaf() -> str:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        ended.set()
        return "too late"

    @tool(timeout_ms=5)
    async def work() -> str:
        """Work, and hear nothing."""
        return await deaf()

    async def answer(request: ModelRequest) -> Entry:
        if where == "model":
            await deaf()
        return calls(call("work")) if len(request.messages) == 1 else "done"

    limits = Limits(model_timeout_ms=5 if where == "model" else 60_000, max_retries=0, max_reruns=0)
    agent = AgentDefinition("payer", MockModel.function(answer), tools={"work": work}, limits=limits)
    simulation = Simulation({"payer": agent})
    await simulation.enqueue("payer", "r")
    try:
        async with asyncio.timeout(30):
            run = await simulation.run("r")
        assert not ended.is_set()
    finally:
        released.set()  # or the loop would wait for it without end
        await ended.wait()
    assert "coroutine_left" in caplog.text
    if where == "tool":
        [part] = [part for message in run.history for part in message.tool_results]
        assert (run.envelope.status, part.outcome) == ("completed", "timeout")
        assert "tool_left run=r tool=work" in caplog.text
    else:
        assert (run.envelope.status, (run.envelope.error or {})["code"]) == ("failed", "model_timeout")


async def test_a_coroutine_that_was_ended_lets_the_next_one_follow_at_once() -> None:
    """Nothing of it runs any more."""
    broken = Broken()
    await broken.off(broken.waiting())
    assert (await broken.leases.peek(KEY)).ms_left is None
