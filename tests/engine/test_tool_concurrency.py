"""Calls of a turn that wait for their place, when the worker is told to go."""

from __future__ import annotations

from deuz_workers.core.limits import Limits
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool


async def test_a_worker_that_drains_begins_no_further_call_of_its_turn() -> None:
    """The calls in flight end and are saved, the lease is given back, and the next worker begins the others; each runs once."""
    ran: list[int] = []
    processes: list[Process] = []

    @tool
    async def work(n: int) -> int:
        """Work."""
        ran.append(n)
        if n == 1:
            processes[0].engine.drain()
        return n

    model = MockModel([calls(*(call("work", n=n).with_id(f"c{n}") for n in range(6))), "done"])
    agent = AgentDefinition("worker", model, tools={"work": work}, limits=Limits(tool_concurrency=2))
    simulation = Simulation({"worker": agent})
    await simulation.enqueue("worker", "r")
    processes.append(Process(simulation))
    report = await processes[0].engine.step(SCOPE, "r")
    assert (report.end, ran) == ("drained", [0, 1])
    assert [bell.run_id for bell in report.bells] == ["r"]
    saved = await simulation.load("r")
    assert {name: receipt.stage for name, receipt in saved.receipts.items()} == {"c0": "completed", "c1": "completed"}
    run = await simulation.run("r")
    assert (run.envelope.output, sorted(ran)) == ("done", list(range(6)))
