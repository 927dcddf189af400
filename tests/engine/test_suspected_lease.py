"""A lease that nobody confirmed for its whole time: nothing begins under it, and what began is saved."""

from __future__ import annotations

import pytest

from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import Known, Loaded
from deuz_workers.ports.verify import Verified, VerifyContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool
from deuz_workers.tools.output import Output

TTL_MS = 3_000


async def test_the_outcome_of_a_tool_is_saved_under_a_suspected_lease() -> None:
    """No renewal came through while the tool ran, and nobody took the run: its outcome is committed, once, in the same step."""

    @tool
    async def pay() -> str:
        simulation.clock.passed_ms += TTL_MS + 1
        return "paid"

    simulation = Simulation({"a": AgentDefinition("a", MockModel([call("pay"), "done"]), tools={"pay": pay})}, ttl_ms=TTL_MS)
    await simulation.enqueue("a", "r")
    assert (await Process(simulation).engine.step(SCOPE, "r")).end == "turn"
    [receipt] = (await simulation.load("r")).receipts.values()
    assert (receipt.stage, receipt.value) == ("completed", "paid")


async def test_no_model_call_begins_under_a_suspected_lease() -> None:
    """The run was loaded so slowly that the lease may be somebody else's: nothing is reserved, nothing is sent."""
    model = MockModel(["done"])
    simulation = Simulation({"a": AgentDefinition("a", model)}, ttl_ms=TTL_MS)
    load = simulation.store.load

    async def load_slowly(scope: str, run_id: str, known: Known | None = None) -> Loaded | None:
        loaded = await load(scope, run_id, known)
        simulation.clock.passed_ms += TTL_MS + 1
        return loaded

    await simulation.enqueue("a", "r")
    simulation.store.load = load_slowly
    assert (await Process(simulation).engine.step(SCOPE, "r")).end == "over"
    head = await simulation.store.head(SCOPE, "r")
    assert head is not None
    assert (model.requests, head.revision) == ((), 0)


@pytest.mark.parametrize("follows", ["tool", "output", "verify"])
async def test_the_reply_of_a_model_is_saved_under_a_suspected_lease(follows: str) -> None:
    """No renewal came through while the model wrote, and nobody took the run: its reply is saved, what it asks for is not
    begun, and the next step goes on from it without another model call."""
    begun: list[str] = []

    async def answer(request: ModelRequest) -> Entry:
        if len(model.requests) == 1:
            simulation.clock.passed_ms += TTL_MS + 1
        return calls(call("pay")) if follows == "tool" and len(model.requests) == 1 else '{"value": 1}'

    @tool
    async def pay() -> str:
        begun.append("tool")
        return "paid"

    def accept(value: int) -> None:
        begun.append("output")

    def verify(output: object, context: VerifyContext) -> Verified:
        begun.append("verify")
        return Verified()

    model = MockModel.function(answer)
    output = Output(int, validate=accept) if follows == "output" else None
    tools = {"pay": pay} if follows == "tool" else {}
    agent = AgentDefinition("a", model, tools=tools, output=output, verify=verify if follows == "verify" else None)
    simulation = Simulation({"a": agent}, ttl_ms=TTL_MS)
    await simulation.enqueue("a", "r")
    assert (await Process(simulation).engine.step(SCOPE, "r")).end == "over"
    run = await simulation.load("r")
    assert (begun, run.history[-1].role, run.envelope.checkpoint.open_call) == ([], "assistant", None)
    run = await simulation.run("r")
    assert (run.envelope.status, begun) == ("completed", [follows])
    assert len(model.requests) == (2 if follows == "tool" else 1)
