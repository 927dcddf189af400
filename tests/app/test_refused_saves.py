"""A store that refuses one save and accepts all later ones: what was done, what is known, and how the next leg goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from deuz_workers import Agent, Deuz, MockModel, tool
from deuz_workers.app.order import IN_PROCESS_QUEUE
from deuz_workers.core.change import Bell
from deuz_workers.core.names import run_lease_key
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import CrashingStore
from tests.app.world import Effects, World

RESERVATION, EXECUTING, OUTCOME, SECOND_RESERVATION, TERMINAL = 1, 2, 3, 4, 5
"""The commits of a run with one tool call, by what they have to store before the run may go on."""


class Bench:
    """A run of one call over a store that refuses its commit number `at`."""

    def __init__(
        self, world: World, replay: Literal["idempotent"] | None = None, show: Callable[[str], str] | None = None
    ) -> None:
        self.world = world
        self.done = Effects()
        self.model = MockModel([calls(call("act").with_id("c")), "done"])

        @tool(replay=replay, to_model_output=show)
        async def act() -> str:
            self.done("act")
            return "did it"

        self.agent = Agent("x", model=self.model, tools=[act])

    async def refuse(self, at: int, run_id: str = "r") -> None:
        """Afterwards the run has failed here, nothing more was offered, and the lease is free."""
        store = CrashingStore(self.world.store, at, error=RuntimeError("disk full"))
        app = self.world.process(self.agent, store=store.as_store)
        result = await app.aio.run_embedded("x", "go", run_id=run_id)
        assert (result.status, store.commits) == ("failed", at)
        assert (await app.leases.peek(run_lease_key("default", run_id))).ms_left is None
        await self.world.later(60_000)

    async def resume(self, run_id: str = "r") -> str:
        result = await self.world.process(self.agent).aio.resume_embedded(run_id)
        return result.reason or result.status


@pytest.mark.spec("STF-008")
async def test_without_a_reservation_no_request_is_sent(world: World) -> None:
    """The model is not called before its reservation is stored."""
    bench = Bench(world)
    await bench.refuse(RESERVATION)
    assert bench.model.requests == ()
    assert await bench.resume() == "completed"


@pytest.mark.spec("STF-001")
async def test_without_an_executing_receipt_no_tool_is_started(world: World) -> None:
    """Nothing ran; a plain resume runs the step again from the checkpoint before it, and the tool once."""
    bench = Bench(world)
    await bench.refuse(EXECUTING)
    assert bench.done.done == {}
    assert await bench.resume() == "completed"
    assert bench.done.done == {"act": 1}


@pytest.mark.spec("STF-003")
async def test_an_idempotent_effect_that_could_not_be_recorded_is_repeated(world: World) -> None:
    """Under the same identity: twice done, one receipt."""
    bench = Bench(world, "idempotent")
    await bench.refuse(OUTCOME)
    assert await bench.resume() == "completed"
    assert bench.done.done == {"act": 2}
    assert list(await world.receipts("r")) == [(1, "c")]


@pytest.mark.spec("STF-002")
async def test_any_other_effect_that_could_not_be_recorded_is_not_guessed_at(world: World) -> None:
    """The resume stops for reconciliation and writes nothing; where the raw value was stored, nothing is unknown."""
    bench = Bench(world)
    await bench.refuse(OUTCOME)
    revision = (await world.head("r")).revision
    assert await bench.resume() == "tool-reconciliation-required"
    assert (bench.done.done, (await world.head("r")).revision) == ({"act": 1}, revision)

    bench = Bench(world, show=lambda text: f"{text}, shown")
    await bench.refuse(OUTCOME + 1, run_id="shown")
    assert await bench.resume("shown") == "completed"
    assert bench.done.done == {"act": 1}
    [part] = bench.model.requests[-1].messages[-1].tool_results
    assert part.text == "did it, shown"


@pytest.mark.spec("STF-006", "CKP-012")
async def test_an_end_that_could_not_be_stored_is_not_reported(world: World) -> None:
    """The stored run is not failed; a plain resume finishes it and repeats no tool."""
    bench = Bench(world)
    await bench.refuse(TERMINAL)
    head = await world.head("r")
    assert (head.status, head.phase) == ("running", "loop")
    assert await bench.resume() == "completed"
    assert bench.done.done == {"act": 1}


@pytest.mark.spec("CKP-002")
async def test_after_a_refused_save_nothing_moves_here(world: World) -> None:
    """Whichever it was: no further model call, tool call or save, and the lease is free."""
    for at in (RESERVATION, EXECUTING, OUTCOME, SECOND_RESERVATION, TERMINAL):
        bench = Bench(world)
        store = CrashingStore(world.store, at, error=RuntimeError("disk full"))
        app = world.process(bench.agent, store=store.as_store)
        await app.aio.run_embedded("x", "go", run_id=f"r{at}")
        assert (len(bench.model.requests), bench.done.done["act"], store.commits) == (
            {RESERVATION: 0, TERMINAL: 2}.get(at, 1),
            1 if at >= OUTCOME else 0,
            at,
        )
        assert (await app.leases.peek(run_lease_key("default", f"r{at}"))).ms_left is None


class RingingStore(CrashingStore):
    """Somebody rings for the run the moment that its step has failed, as another driver's sweep may."""

    app: Deuz

    async def record_unclean_end(self, *given: Any) -> int | None:
        attempts = await self._inner.record_unclean_end(*given)
        await self.app.doorbell.ring_here([Bell("default", "r", IN_PROCESS_QUEUE)])
        return attempts


async def test_a_bell_that_comes_while_a_step_fails_begins_no_other(memory: World) -> None:
    """Whoever drives the run is told that it failed here; nothing goes on behind that."""
    bench = Bench(memory)
    store = RingingStore(memory.store, EXECUTING, error=RuntimeError("disk full"))
    store.app = app = memory.process(bench.agent, store=store.as_store)
    result = await app.aio.run_embedded("x", "go", run_id="r")
    assert (result.status, store.commits, bench.done.done) == ("failed", EXECUTING, {})
