"""What one turn asks of store and leases; `docs/steps.md` lists it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from deuz_workers.core.limits import Limits
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.leases import Gone, Lease, Released
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call, calls
from deuz_workers.store.dialect import Row
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool_from_schema


async def test_a_turn_with_one_tool_is_one_load_and_three_commits_however_long_the_run_is() -> None:
    """Claim, load, three commits, release: the same at the third turn and at the thirtieth."""

    async def put(arguments: dict[str, Any], context: object) -> str:
        return "ok"

    made = tool_from_schema("put", "Puts.", {"type": "object", "properties": {}}, put)
    model = MockModel([*(calls(call("put")) for _ in range(40)), "done"])
    simulation = Simulation({"a": AgentDefinition("a", model, tools={"put": made}, limits=Limits(max_steps=100))})
    asked: Counter[str] = Counter()
    fetch, acquire, release = simulation.store.dialect.fetch, simulation.leases.acquire, simulation.leases.release

    async def counted_fetch(operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Row]:
        asked[operation] += 1
        return await fetch(operation, params, connection=connection)

    async def counted_acquire(*args: Any, **options: Any) -> Any:
        asked["acquire"] += 1
        return await acquire(*args, **options)

    async def counted_release(lease: Lease) -> Released | Gone:
        asked["release"] += 1
        return await release(lease)

    simulation.store.dialect.fetch = counted_fetch
    simulation.leases.acquire = counted_acquire
    simulation.leases.release = counted_release
    await simulation.enqueue("a", "r")
    process = Process(simulation)
    for turn in range(1, 31):
        asked.clear()
        assert (await process.engine.step(SCOPE, "r")).end == "turn"
        if turn in (3, 30):
            assert asked == {"acquire": 1, "load": 1, "commit_plain": 3, "release": 1}
