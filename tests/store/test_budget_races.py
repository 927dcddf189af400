"""Two sessions and one budget on Postgres: the second has to wait for a row lock of the first, in both orders."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers.core.change import Applied, BudgetExceeded, Change, Head, Reserve, Settle
from deuz_workers.core.shared_budget import SharedBudget, Window
from deuz_workers.core.usage import Budget
from deuz_workers.store import SqlStore
from deuz_workers.testing.store_conformance_bench import Bench, change_from
from tests.store.sessions import Sessions

KEY = "user:42"
AS_STORED = SharedBudget(KEY, as_stored=True)
FULL = BudgetExceeded(KEY, "budget_exceeded")


def asking(head: Head, request: str, tokens: int, shared: SharedBudget = AS_STORED, **given: Any) -> Change:
    return change_from(head, reserve=Reserve(request, (KEY,), tokens, None, (shared,)), **given)


async def counted(bench: Bench) -> int | None:
    balance = await bench.store.balance(KEY)
    assert balance is not None
    return balance.counted.tokens


async def lost(bench: Bench, tokens: int) -> Head:
    """A run with a call of which nobody knows what became; not folded yet."""
    head = await bench.start()
    await bench.applied(head, reserve=Reserve("lost", (KEY,), tokens, None, (AS_STORED,)))
    await bench.applied(await bench.again(head), settle=(Settle("lost", (KEY,), "unknown"),))
    return head


@pytest.mark.parametrize("window", [None, Window(3_600_000)])
async def test_what_was_admitted_meanwhile_counts(bench: Bench, sessions: Sessions, window: Window | None) -> None:
    """Two calls for which there is room for one: the second waited, and is judged by the row that the first left."""
    shared = SharedBudget(KEY, Budget(tokens=100), window)
    first = await bench.start()
    await bench.applied(first, reserve=Reserve("0", (KEY,), 1, None, (shared,)))
    one, two = await bench.start(), await bench.start()
    outcomes = await sessions.race(
        lambda store: store.commit(asking(one, "1", 60, shared)), lambda store: store.commit(asking(two, "1", 60, shared))
    )
    assert isinstance(outcomes[0], Applied)
    assert outcomes[1] == FULL
    assert await counted(bench) == 61


@pytest.mark.parametrize("release_first", [True, False])
@pytest.mark.parametrize("folded", [True, False])
async def test_a_release_and_a_reservation(bench: Bench, sessions: Sessions, folded: bool, release_first: bool) -> None:
    """Whoever waits for the other: the hold is counted no more afterwards, and it was taken off once."""
    await bench.store.set_budget(KEY, Budget(tokens=1_000))
    head = await lost(bench, 100)
    other, asks = await bench.start(), await bench.start()
    if folded:
        await bench.applied(other, reserve=Reserve("0", (KEY,), 0, None, (AS_STORED,)))

    async def release(store: SqlStore) -> object:
        return await store.release_hold(head.rid, "lost", actor="ops")

    async def reserve(store: SqlStore) -> object:
        return await store.commit(asking(asks, "1", 10))

    if folded:  # the row is folded and nobody else writes it: neither waits
        for act in (release, reserve) if release_first else (reserve, release):
            await act(sessions.store)
    else:
        await sessions.race(*((release, reserve) if release_first else (reserve, release)))
    assert await bench.store.release_hold(head.rid, "lost", actor="ops") == ()
    for request in ("2", "3"):
        await bench.applied(await bench.again(asks), reserve=Reserve(request, (KEY,), 10, None, (AS_STORED,)))
    balance = await bench.store.balance(KEY)
    assert balance is not None
    assert (balance.spent.tokens, balance.held.tokens, balance.unknown.tokens) == (0, 30, 0)


async def test_two_releases_of_one_hold(bench: Bench, sessions: Sessions) -> None:
    """One of them did it, and one line of the audit says so."""
    head = await lost(bench, 100)
    outcomes = await sessions.race(
        lambda store: store.release_hold(head.rid, "lost", actor="eve"),
        lambda store: store.release_hold(head.rid, "lost", actor="joe"),
    )
    assert outcomes == ((KEY,), ())
    assert [row.actor for row in await bench.store.budget_audit(KEY)] == ["eve"]


async def test_two_open_one_scope_with_different_windows(bench: Bench, sessions: Sessions) -> None:
    """The first use decides, also for one that began before it was known."""
    one, two = await bench.start(), await bench.start()
    hour, day = SharedBudget(KEY, window=Window(3_600_000)), SharedBudget(KEY, window=Window(86_400_000))
    first, second = await sessions.race(
        lambda store: store.commit(asking(one, "1", 1, hour)), lambda store: store.commit(asking(two, "1", 1, day))
    )
    assert isinstance(first, Applied)
    assert second == BudgetExceeded(KEY, "window_mismatch")


@pytest.mark.parametrize("set_first", [True, False])
async def test_a_lower_limit_and_a_reservation_in_a_slice(bench: Bench, sessions: Sessions, set_first: bool) -> None:
    """A reservation that waited for the new limit is judged by it; a limit that waited counts what is held."""
    await bench.store.set_budget(KEY, Budget(tokens=10_000), slices=2)
    one, two = await bench.start(), await bench.start()
    await bench.applied(one, reserve=Reserve("1", (KEY,), 50, None, (AS_STORED,)))
    rid = two.rid.int % 2 == one.rid.int % 2
    asks = two if rid else await _of_slice(bench, one.rid.int % 2)
    await bench.applied(asks, reserve=Reserve("0", (KEY,), 1, None, (AS_STORED,)))
    asks = await bench.again(asks)

    async def lower(store: SqlStore) -> object:
        return await store.set_budget(KEY, Budget(tokens=60))

    async def reserve(store: SqlStore) -> object:
        return await store.commit(asking(asks, "2", 50))

    outcomes = await sessions.race(*((lower, reserve) if set_first else (reserve, lower)))
    outcome = next(outcome for outcome in outcomes if outcome is not None)
    assert outcome == FULL if set_first else isinstance(outcome, Applied)
    assert await counted(bench) == (51 if set_first else 101)
    assert await bench.store.commit(asking(await bench.again(one), "3", 10)) == FULL


async def _of_slice(bench: Bench, place: int) -> Head:
    while True:
        head = await bench.start()
        if head.rid.int % 2 == place:
            return head


async def test_two_slices_grow_at_once(bench: Bench, sessions: Sessions) -> None:
    """What is left is granted to one of them, and the other one sees that it is gone."""
    await bench.store.set_budget(KEY, Budget(tokens=100), slices=2)
    one, two = await _of_slice(bench, 0), await _of_slice(bench, 1)

    async def grow(store: SqlStore, place: int) -> Any:
        return await store.dialect.fetch("grow_slice", {"key": f"{KEY}#{place}", "tokens": 60, "micros": 0, "now_ms": None})

    first, second = await sessions.race(lambda store: grow(store, 0), lambda store: grow(store, 1))
    assert (len(first), len(second)) == (1, 0)
    assert isinstance(await bench.store.commit(asking(one, "1", 60)), Applied)
    assert await bench.store.commit(asking(two, "1", 60)) == FULL
    assert isinstance(await bench.store.commit(asking(two, "2", 40)), Applied)


@pytest.mark.parametrize("reclaim_first", [True, False])
async def test_a_slice_is_asked_back_while_a_call_reserves_in_it(bench: Bench, sessions: Sessions, reclaim_first: bool) -> None:
    """Both happen one after the other: the call is admitted either way, and what it holds is granted to its slice."""
    await bench.store.set_budget(KEY, Budget(tokens=1_000), slices=2)
    head = await bench.start()
    await bench.applied(head, reserve=Reserve("1", (KEY,), 10, None, (AS_STORED,)))
    asks = await bench.again(head)

    async def reclaim(store: SqlStore) -> object:
        return await store.dialect.fetch("reclaim_slices", {"key": KEY, "now_ms": None})

    async def reserve(store: SqlStore) -> object:
        return await store.commit(asking(asks, "2", 10))

    outcomes = await sessions.race(*((reclaim, reserve) if reclaim_first else (reserve, reclaim)))
    assert isinstance(outcomes[1] if reclaim_first else outcomes[0], Applied)
    await sessions.store.dialect.fetch("reclaim_slices", {"key": KEY, "now_ms": None})
    [[granted, limits]] = await sessions.rows(
        "select b.granted_tokens, (select sum(s.limit_tokens)::bigint from budget_scope s where s.slice_of = b.key)"
        " from budget_scope b where b.key = %s",
        KEY,
    )
    assert granted == limits == 20
