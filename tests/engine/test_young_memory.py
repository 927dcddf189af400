"""After the lease server forgot everything: who looks at a run while its living holder has not renewed yet."""

from __future__ import annotations

import asyncio

from deuz_workers.core.change import Change, Head, Outcome
from deuz_workers.leases.sqlite import SqliteLeases
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.testing.simulation import SCOPE, Process, Simulation


async def test_a_call_that_began_behind_the_look_at_the_head_is_left_to_its_holder() -> None:
    """The head was read between two commits of the holder, and the claim came after the second: nothing is taken over."""
    began, go, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        began.set()
        await end.wait()
        return "done"

    simulation = Simulation({"a": AgentDefinition("a", MockModel.function(answer))})
    leases, store = simulation.leases, simulation.store
    assert isinstance(leases, SqliteLeases)
    commit, head = store.commit, store.head

    async def commit_later(change: Change) -> Outcome:
        await go.wait()
        return await commit(change)

    async def read_before(scope: str, run_id: str) -> Head | None:
        found = await head(scope, run_id)
        go.set()
        await began.wait()
        return found

    store.commit, store.head = commit_later, read_before
    await simulation.enqueue("a", "r")
    holder, other = Process(simulation), Process(simulation)
    holding = asyncio.ensure_future(holder.engine.step(SCOPE, "r"))
    await asyncio.sleep(0)
    await leases.forget()
    async with asyncio.timeout(10):
        assert (await other.engine.step(SCOPE, "r")).end == "young"
    store.head = head
    assert holder.engine.gear.heartbeat.beat()
    end.set()
    assert (await holding).end == "ended"
    assert await store.unclean_ends(SCOPE, "r") == ()
