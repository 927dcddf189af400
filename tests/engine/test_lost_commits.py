"""Steps that are told of a revision which the store does not have (architecture D16)."""

from __future__ import annotations

import pytest

from deuz_workers.core.lost_commits import WENT_BACKWARDS, revision_after
from deuz_workers.core.names import run_lease_key
from deuz_workers.leases.sqlite import SqliteLeases
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.leases import Lease
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool


class Payer:
    """A simulation of an agent that pays three times, and what it paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool
        async def pay(n: int) -> str:
            """Pay once more."""
            self.paid.append(n)
            return "paid"

        def answer(request: ModelRequest) -> Entry:
            turn = sum(message.role == "assistant" for message in request.messages)
            return "done" if turn == 3 else calls(call("pay", n=turn))

        agent = AgentDefinition("payer", MockModel.function(answer), tools={"pay": pay})
        self.leases = SqliteLeases(":memory:")
        self.simulation = Simulation({"payer": agent}, leases=self.leases)

    async def begun(self) -> Process:
        """A process that took the first turn of the run `r`."""
        await self.simulation.enqueue("payer", "r")
        process = Process(self.simulation)
        assert (await process.engine.step(SCOPE, "r")).end == "turn"
        return process

    async def stands(self) -> tuple[str | None, int]:
        head = await self.simulation.store.head(SCOPE, "r")
        assert head is not None
        return head.parked, head.revision


async def test_a_run_that_is_stored_at_a_lower_revision_than_was_seen_is_parked() -> None:
    """Nothing of it is executed, and its revision leaps above what was seen; said again, it changes nothing."""
    payer = Payer()
    process = await payer.begun()
    _, revision = await payer.stands()
    for seen in (revision + 3, revision + 2):
        report = await process.engine.step(SCOPE, "r", seen=seen)
        assert report.end == ("parked" if seen == revision + 3 else "idle")
        assert await payer.stands() == (WENT_BACKWARDS, revision_after(revision + 3))
    assert payer.paid == [0]


async def test_what_was_seen_is_no_reason_to_stop_where_it_is_stored() -> None:
    """A doorbell of the stored revision, and a late one of an earlier, execute the run."""
    payer = Payer()
    process = await payer.begun()
    _, revision = await payer.stands()
    assert (await process.engine.step(SCOPE, "r", seen=revision)).end == "turn"
    assert (await process.engine.step(SCOPE, "r", seen=1)).end == "turn"
    assert payer.paid == [0, 1, 2]


async def test_a_person_frees_it_and_the_same_news_stop_it_no_more() -> None:
    """After a retry it goes on from the older record, whatever doorbells from before are still about."""
    payer = Payer()
    process = await payer.begun()
    _, revision = await payer.stands()
    assert (await process.engine.step(SCOPE, "r", seen=revision + 3)).end == "parked"
    await payer.simulation.store.add_note(SCOPE, "r", "retry", "{}")
    assert (await process.engine.step(SCOPE, "r", seen=revision + 3)).end == "turn"
    assert payer.paid == [0, 1]
    assert (await payer.simulation.run("r")).envelope.status == "completed"


async def test_a_lease_that_lapsed_tells_what_its_holder_saw() -> None:
    """Nobody has to ring for it."""
    payer = Payer()
    process = await payer.begun()
    _, revision = await payer.stands()
    dead = await payer.leases.acquire(run_lease_key(SCOPE, "r"), "dead", 0, revision=revision + 5, force=True)
    assert isinstance(dead, Lease)
    assert (await process.engine.step(SCOPE, "r")).end == "parked"
    assert await payer.stands() == (WENT_BACKWARDS, revision_after(revision + 5))


async def test_a_cancel_that_waits_ends_the_run_instead() -> None:
    """It starts nothing, and nobody has to look at it."""
    payer = Payer()
    process = await payer.begun()
    _, revision = await payer.stands()
    await payer.simulation.store.add_note(SCOPE, "r", "cancel", "{}")
    assert (await process.engine.step(SCOPE, "r", seen=revision + 3)).end == "ended"
    assert (await payer.simulation.load("r")).envelope.status == "stopped"
    assert payer.paid == [0]


@pytest.mark.parametrize("seen", [0, 10_000])
async def test_a_run_that_has_ended_stays_as_it_is(seen: int) -> None:
    """Parking would take its result away."""
    payer = Payer()
    process = await payer.begun()
    run = await payer.simulation.run("r")
    await process.engine.step(SCOPE, "r", seen=seen)
    assert await payer.stands() == (None, run.envelope.revision)


async def test_a_run_that_is_gone_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """There is no row to park."""
    payer = Payer()
    process = await payer.begun()
    assert (await process.engine.step(SCOPE, "lost", seen=4)).end == "unknown_run"
    assert "run_lost run=lost seen=4" in caplog.text
