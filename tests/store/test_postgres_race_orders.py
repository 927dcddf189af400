"""The other order of races, and of pairs of statements that meet less often: each waits for the other's row lock once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deuz_workers.core.change import Applied, BudgetExceeded, CancelPending, Reserve, RevisionConflict, Settle
from deuz_workers.core.usage import Budget
from deuz_workers.store import SqlStore
from deuz_workers.testing.store_conformance_bench import Bench, change_from, item, message
from tests.store.sessions import Sessions

Act = Callable[[SqlStore], Awaitable[Any]]
BOTH = pytest.mark.parametrize("swapped", [False, True], ids=["first", "second"])
"""Whether what is named first in the test comes first, or waits."""


async def in_order(sessions: Sessions, one: Act, other: Act, swapped: bool) -> tuple[Any, Any]:
    """What `one` and `other` returned, whoever of them waited."""
    if swapped:
        second, first = await sessions.race(other, one)
        return first, second
    return await sessions.race(one, other)


@BOTH
async def test_a_cancel_meets_a_suspension(bench: Bench, sessions: Sessions, swapped: bool) -> None:
    """A suspension that waited for a cancel is refused; a cancel that waited for a suspension makes the run due."""
    head = await bench.start()
    suspend = change_from(head, status="suspended", due_in_ms=None, items=(item("i"),))
    noted, outcome = await in_order(
        sessions,
        lambda store: store.add_note(head.scope, head.run_id, "cancel", "{}"),
        lambda store: store.commit(suspend),
        swapped,
    )
    assert noted is not None
    if swapped:
        assert isinstance(outcome, Applied)
    else:
        assert outcome == CancelPending(1)
    assert (await bench.again(head)).has_work


@BOTH
async def test_a_cancel_meets_the_start_of_an_effect(bench: Bench, sessions: Sessions, swapped: bool) -> None:
    """A start that waited for a cancel is refused, its reservation too; a cancel that waited finds the effect begun."""
    await bench.store.set_budget("org", Budget(tokens=100))
    head = await bench.start()
    start = change_from(head, starts=True, mid_step=True, reserve=Reserve("r1", ("org",), 60, None))
    noted, outcome = await in_order(
        sessions,
        lambda store: store.add_note(head.scope, head.run_id, "cancel", "{}"),
        lambda store: store.commit(start),
        swapped,
    )
    assert noted is not None
    balance = await bench.store.balance("org")
    assert balance is not None
    if swapped:
        assert isinstance(outcome, Applied)
        assert (balance.held.tokens, (await bench.again(head)).mid_step) == (60, True)
    else:
        assert outcome == CancelPending(1)
        assert (balance.held.tokens, (await bench.again(head)).mid_step) == (0, False)


@BOTH
async def test_an_answer_meets_the_end_of_its_run(bench: Bench, sessions: Sessions, swapped: bool) -> None:
    """An answer that waited for the ending is stored nowhere; one that came first does not keep the run from ending."""
    head = await bench.suspended(await bench.start(), item("a"))
    end = change_from(head, status="stopped", due_in_ms=None)
    answered, outcome = await in_order(
        sessions,
        lambda store: store.answer_item(head.scope, head.run_id, "a", '"yes"'),
        lambda store: store.commit(end),
        swapped,
    )
    assert isinstance(outcome, Applied)
    assert answered is not None
    assert (answered.stored, answered.bell is not None) == (not swapped, not swapped)
    after = await bench.again(head)
    assert (after.status, after.has_work) == ("stopped", False)


@BOTH
async def test_an_answer_meets_a_parking(bench: Bench, sessions: Sessions, swapped: bool) -> None:
    """Whoever waits, the answer is kept and a parked run has no work before somebody frees it; then it is due."""
    head = await bench.suspended(await bench.start(), item("a"))
    answered, parked = await in_order(
        sessions,
        lambda store: store.answer_item(head.scope, head.run_id, "a", '"yes"'),
        lambda store: store.park(head.rid, 1, "quarantine"),
        swapped,
    )
    assert answered is not None
    assert answered.stored
    after = await bench.again(head)
    assert (after.parked is not None, after.has_work) == (parked, not parked)
    await bench.store.add_note(head.scope, head.run_id, "retry", "{}")
    assert (await bench.again(head)).has_work


async def test_a_retry_waits_for_the_last_answer_of_a_parked_run(bench: Bench, sessions: Sessions) -> None:
    """The answer alone wakes nobody; the retry that waited for it frees the run, and it is due."""
    head = await bench.suspended(await bench.start(), item("a"))
    assert await bench.store.park(head.rid, 1, "quarantine")
    answered, noted = await sessions.race(
        lambda store: store.answer_item(head.scope, head.run_id, "a", '"yes"'),
        lambda store: store.add_note(head.scope, head.run_id, "retry", "{}"),
    )
    assert answered is not None
    assert answered.stored
    assert noted is not None
    assert (await bench.again(head)).has_work


@BOTH
async def test_a_takeover_meets_the_commit_of_the_holder_before(bench: Bench, sessions: Sessions, swapped: bool) -> None:
    """The count of an end that waited for a commit finds another revision and counts nothing; a commit that waited is applied,
    and the taker, which read the revision before it, is refused."""
    head = await bench.start()
    commit = change_from(head, messages=(message(0),))
    outcome, attempts = await in_order(
        sessions,
        lambda store: store.commit(commit),
        lambda store: store.record_unclean_end(head.rid, 0, 0, "{}"),
        swapped,
    )
    assert isinstance(outcome, Applied)
    assert attempts == (1 if swapped else None)
    assert await bench.commit(head, messages=(message(0),)) == RevisionConflict(1)


async def test_two_fills_at_once(bench: Bench, sessions: Sessions) -> None:
    """The second waits for the swarm row and gives only what the first has left."""
    swarm = await bench.swarm({"a": (), "b": (), "c": ()}, slots=2)
    first, second = await sessions.race(lambda store: store.fill_slots(swarm.rid), lambda store: store.fill_slots(swarm.rid))
    assert (len(first), len(second)) == (2, 0)
    assert sorted((await swarm.statuses()).values()) == ["ready", "running", "running"]


async def test_a_fill_waits_for_a_parking(bench: Bench, sessions: Sessions) -> None:
    """A task that was parked meanwhile gets no slot; another one does."""
    swarm = await bench.swarm({"a": (), "b": ()}, slots=1)
    head = await swarm.head("a")
    parked, _ = await sessions.race(
        lambda store: store.park(head.rid, 0, "quarantine"), lambda store: store.fill_slots(swarm.rid)
    )
    assert parked
    await swarm.fill()
    assert await swarm.statuses() == {"a": "needs_reconciliation", "b": "running"}


async def test_two_settlements_of_one_swarm(bench: Bench, sessions: Sessions) -> None:
    """Both are told of the same head, which has work and no second revision: a doorbell too many costs a look."""
    swarm = await bench.swarm({"a": ()}, slots=1)
    await swarm.fill()
    await bench.applied(await swarm.own_head(), due_in_ms=None)
    assert (await swarm.end("a")).swarm_open == 0
    first, second = await sessions.race(
        lambda store: store.settle_swarm(swarm.rid), lambda store: store.settle_swarm(swarm.rid)
    )
    assert first is not None
    assert second == first
    own = await swarm.own_head()
    assert (own.has_work, own.revision) == (True, 1)


@BOTH
async def test_a_lower_limit_meets_a_reservation(bench: Bench, sessions: Sessions, swapped: bool) -> None:
    """A reservation that waited for the new limit is judged by it; a limit that waited keeps what is held."""
    await bench.store.set_budget("org", Budget(tokens=100))
    head = await bench.start()
    reserve = change_from(head, reserve=Reserve("r1", ("org",), 60, None))
    _, outcome = await in_order(
        sessions, lambda store: store.set_budget("org", Budget(tokens=50)), lambda store: store.commit(reserve), swapped
    )
    balance = await bench.store.balance("org")
    assert balance is not None
    if swapped:
        assert isinstance(outcome, Applied)
        assert balance.held.tokens == 60
    else:
        assert outcome == BudgetExceeded("org", "budget_exceeded")
        assert balance.held.tokens == 0


async def test_a_settlement_waits_for_a_reservation(bench: Bench, sessions: Sessions) -> None:
    """A run that settles and reserves in one commit, behind another one's reservation, is judged by both."""
    store = bench.store
    await store.set_budget("org", Budget(tokens=100))
    one, two = await bench.start(), await bench.start()
    await bench.applied(one, reserve=Reserve("r1", ("org",), 40, None))
    one = await bench.again(one)
    reserve = change_from(two, reserve=Reserve("r3", ("org",), 60, None))
    again = change_from(one, settle=(Settle("r1", ("org",), "settled", 10),), reserve=Reserve("r2", ("org",), 30, None))
    first, second = await sessions.race(lambda store: store.commit(reserve), lambda store: store.commit(again))
    assert isinstance(first, Applied)
    assert isinstance(second, Applied)
    balance = await store.balance("org")
    assert balance is not None
    assert (balance.spent.tokens, balance.held.tokens, balance.unknown.tokens) == (10, 90, 0)
