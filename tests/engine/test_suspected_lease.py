"""A lease that nobody confirmed for its whole time: nothing begins under it, and what began is saved."""

from __future__ import annotations

from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.store import Known, Loaded
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool

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
