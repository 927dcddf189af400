"""Several executors of one run at a time: what the revision in the store stops when no lease does."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Literal

import pytest

from deuz_workers.core.change import Applied, Change, Outcome
from deuz_workers.core.codec import encode
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.unclean_ends import QUARANTINE
from deuz_workers.core.usage import Budget
from deuz_workers.engine.engine import StepReport
from deuz_workers.errors import AgentRunLeaseError, RevisionConflictError
from deuz_workers.ports.budgets import ScopeBalance
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.leases import Gone, Lease, Released
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import Known, Loaded
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.testing.lying_leases import LyingLeases
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.decorator import tool
from tests.engine.test_crash_schedules import Board, agent_on, final_form, play, reconciler


def paying(paid: Counter[str], *, approval: bool) -> AgentDefinition:
    """Pays once in its first turn, then says done."""

    @tool(needs_approval=approval)
    async def pay() -> str:
        paid["pay"] += 1
        return "paid"

    return AgentDefinition("a", MockModel([calls(call("pay")), "done"]), tools={"pay": pay})


def requests_of(simulation: Simulation) -> list[str]:
    model = simulation.agents["a"].model
    assert isinstance(model, MockModel)
    return [request.request_id for request in model.requests]


@pytest.mark.spec("LEA-007", "LEA-010", "LSE-015")
@pytest.mark.parametrize("effect", ["model", "tool"])
async def test_of_two_executors_before_one_effect_one_reaches_it(effect: str) -> None:
    """Both were granted the run and stand before the commit that precedes the call: it is made once, one has a conflict."""
    paid: Counter[str] = Counter()
    simulation = Simulation({"a": paying(paid, approval=effect == "tool")}, leases=LyingLeases())
    store = simulation.store
    await simulation.enqueue("a", "r")
    if effect == "tool":
        assert (await Process(simulation).engine.step(SCOPE, "r")).end == "suspended"
        [item] = await store.open_items(SCOPE, "r")
        await store.answer_item(SCOPE, "r", item.item_id, encode({"approved": True}))
    commit, both, arrived = store.commit, asyncio.Barrier(2), 0

    async def together(change: Change) -> Outcome:
        nonlocal arrived
        arrived += 1
        if arrived <= 2:
            await both.wait()
        return await commit(change)

    store.commit = together
    reports = await asyncio.gather(*(Process(simulation).engine.step(SCOPE, "r") for _ in range(2)))
    [loser] = [report for report in reports if report.end == "over"]
    [winner] = [report for report in reports if report.end != "over"]
    assert isinstance(loser.error, RevisionConflictError)
    assert (loser.error.code, loser.bells, winner.error) == ("revision_conflict", (), None)
    run = await simulation.run("r")
    assert (run.envelope.status, run.envelope.output, paid) == ("completed", "done", {"pay": 1})
    assert len(requests_of(simulation)) == len(set(requests_of(simulation))) == 2


@pytest.mark.spec("LSE-015")
@pytest.mark.parametrize("predecessor", ["none", "lapsed"])
@pytest.mark.parametrize("seed", range(10))
async def test_three_executors_at_once_lose_nothing(seed: int, predecessor: Literal["none", "lapsed"]) -> None:
    """Everyone is granted everything: each accepted revision stays, no unsafe effect happens twice, the end is the usual one.

    Steps of three processes overlap at random. What a repeated step did in vain is stopped by the store.
    """
    script = (("pay", "put"), ("show",), ("fail", "pay"))
    quiet, _, _ = await play(script, frozenset())
    board, chance = Board(), random.Random(seed)
    simulation = Simulation({"worker": agent_on(board, script)}, leases=LyingLeases(predecessor=predecessor))
    await simulation.enqueue("worker", "r")
    store = simulation.store
    commit, load = store.commit, store.load
    applied: list[int] = []

    async def slow_commit(change: Change) -> Outcome:
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        outcome = await commit(change)
        if isinstance(outcome, Applied):
            applied.append(outcome.revision)
        return outcome

    async def slow_load(scope: str, run_id: str, known: Known | None = None) -> Loaded | None:
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        return await load(scope, run_id, known)

    store.commit, store.load = slow_commit, slow_load
    processes = [Process(simulation) for _ in range(3)]
    ends: Counter[str] = Counter()
    for _ in range(60):
        reports = await asyncio.gather(*(process.engine.step(SCOPE, "r") for process in processes))
        ends.update(report.end for report in reports)
        run = await simulation.load("r")
        head = await store.head(SCOPE, "r")
        assert head is not None
        if run.envelope.is_final:
            break
        if head.parked == QUARANTINE:
            await store.add_note(SCOPE, "r", "retry", "{}")
        elif head.parked is not None:
            await reconciler(simulation, board)(run)
        elif head.due_in_ms is not None:
            simulation.clock.passed_ms += max(0, head.due_in_ms)
    run = await simulation.load("r")
    assert final_form(run) == final_form(quiet)
    assert applied == list(range(1, run.envelope.revision + 1))
    assert ends["over"] > 0
    assert ends["crashed"] == 0
    assert all(count == 1 for key, count in board.effects.items() if not str(board.values[key]).startswith("put"))


@pytest.mark.spec("DST-011")
async def test_a_grant_with_a_stale_read_is_found_out() -> None:
    """A replica that lags behind shows the state before somebody else's step: nothing is called or written from it."""
    paid: Counter[str] = Counter()
    simulation = Simulation({"a": paying(paid, approval=False)})
    await simulation.enqueue("a", "r")
    store = simulation.store
    load = store.load
    stale = await load(SCOPE, "r")
    assert (await Process(simulation).engine.step(SCOPE, "r")).end == "turn"
    before = await store.load(SCOPE, "r")

    async def lagging(scope: str, run_id: str, known: Known | None = None) -> Loaded | None:
        return stale

    store.load = lagging
    report = await Process(simulation).engine.step(SCOPE, "r")
    store.load = load
    assert report.end == "over"
    assert isinstance(report.error, RevisionConflictError)
    assert (len(requests_of(simulation)), paid) == (1, {"pay": 1})
    assert await store.load(SCOPE, "r") == before
    assert (await simulation.run("r")).envelope.output == "done"


@pytest.mark.spec("DST-007")
async def test_a_lease_that_is_lost_while_the_model_answers() -> None:
    """The call is abandoned, nothing is written, its hold stays unknown; the new holder's call has a hold of its own."""
    called, balances = asyncio.Event(), list[ScopeBalance]()

    async def balance() -> ScopeBalance:
        found = await simulation.store.balance(run_scope_key((await simulation.load("r")).envelope.rid))
        assert found is not None
        return found

    async def answer(request: ModelRequest) -> Entry:
        balances.append(await balance())
        if request.attempt == 1:
            called.set()
            await asyncio.Event().wait()
        return "done"

    simulation = Simulation({"a": AgentDefinition("a", MockModel.function(answer))})
    await simulation.enqueue("a", "r", budget=Budget(tokens=1_000_000))
    old, new = Process(simulation), Process(simulation)
    stepping: asyncio.Task[StepReport] = asyncio.ensure_future(old.engine.step(SCOPE, "r"))
    await called.wait()
    simulation.clock.passed_ms += simulation.settings.lease_ttl_ms + 1
    assert (await new.engine.step(SCOPE, "r")).end == "ended"
    stored = await simulation.store.load(SCOPE, "r")
    old.engine.gear.heartbeat.beat()
    report = await asyncio.wait_for(stepping, 10)
    assert report.end == "over"
    assert isinstance(report.error, AgentRunLeaseError)
    assert report.error.code == "lease_lost"
    assert await simulation.store.load(SCOPE, "r") == stored
    first, second = balances
    hold = first.held.tokens
    assert hold
    assert (first.unknown.tokens, second.held.tokens, second.unknown.tokens) == (0, hold, hold)
    run, after = await simulation.load("r"), await balance()
    assert (run.envelope.output, run.envelope.unknown_tokens) == ("done", hold)
    assert (after.held.tokens, after.unknown.tokens, after.spent.tokens) == (0, hold, run.envelope.usage.total_tokens)
    assert len(requests_of(simulation)) == len(set(requests_of(simulation))) == 2


async def test_an_answer_whose_ringer_was_held_off_is_rung_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between the last commit of a step and the release of its lease: whoever was rung finds the run held and drops
    the doorbell, so the holder rings in its place."""
    paid: Counter[str] = Counter()
    simulation = Simulation({"a": paying(paid, approval=True)})
    store, release = simulation.store, simulation.leases.release
    await simulation.enqueue("a", "r")
    held: list[str] = []

    async def release_late(lease: Lease) -> Released | Gone:
        if not held:
            [item] = await store.open_items(SCOPE, "r")
            await store.answer_item(SCOPE, "r", item.item_id, encode({"approved": True}))
            held.append("begins")
            held[:] = [(await Process(simulation).engine.step(SCOPE, "r")).end]
        return await release(lease)

    monkeypatch.setattr(simulation.leases, "release", release_late)
    report = await Process(simulation).engine.step(SCOPE, "r")
    assert (report.end, held) == ("suspended", ["held"])
    assert [bell.run_id for bell in report.bells] == ["r"]
    run = await simulation.run("r")
    assert (run.envelope.status, paid) == ("completed", {"pay": 1})
