"""Steps that are broken off while a tool runs: the lease says whether its effect may still be under way."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from deuz_workers.core.names import run_lease_key
from deuz_workers.leases.sqlite import SqliteLeases
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
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


async def test_a_coroutine_that_was_ended_lets_the_next_one_follow_at_once() -> None:
    """Nothing of it runs any more."""
    broken = Broken()
    await broken.off(broken.waiting())
    assert (await broken.leases.peek(KEY)).ms_left is None
