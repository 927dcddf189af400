"""Compacting a ledger on Postgres beside others that have the same rows in hand: no total changes, whoever comes first."""

from __future__ import annotations

import asyncio
import random
from typing import LiteralString

import psycopg
import pytest

from deuz_workers.core.change import Applied, Reserve
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.usage import Budget
from deuz_workers.ports.budgets import LedgerCompaction
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance_bench import Bench, change_from
from deuz_workers.testing.store_conformance_ledger_compaction import Charged, compact, end_call, family_of, finish, totals
from tests.store.sessions import DEADLINE_S, OneSession, Sessions

KEY = "user:42"
CALLS = ("settled", "settled", "released", "unknown")


async def ended(bench: Bench, *names: str) -> tuple[Charged, ...]:
    """A family that has ended; what became of its calls is in no scope row yet."""
    family = await family_of(bench, (KEY,), *names)
    for run in family:
        requests = [f"{run.head.rid.hex}:{number}" for number in range(len(CALLS))]
        for request in requests:
            shared = (SharedBudget(KEY, as_stored=True),)
            reserve = Reserve(request, run.scopes, 100, 50, shared, "m")
            assert isinstance(await bench.commit(await bench.again(run.head), reserve=reserve), Applied)
        for request, outcome in zip(requests, CALLS, strict=True):
            await end_call(bench, run, request, outcome, reserves=False)
    await finish(bench, *family)
    return family


async def compacts(store: SqlStore, run: Charged) -> object:
    return await store.compact_ledger(run.head.scope, run.head.run_id, actor="ops")


async def rows_left(sessions: Sessions, run: Charged) -> list[tuple[str, str]]:
    """Request and outcome of what the run still has in the shared scope."""
    query = "select request_id, outcome from settlement where rid = %s and scope_key = %s order by request_id"
    return [(row[0], row[1]) for row in await sessions.rows(query, run.head.rid, KEY)]


async def test_two_at_once(bench: Bench, sessions: Sessions) -> None:
    """The second waits for the first and finds nothing left to do; each budget has one line in the audit."""
    family = await ended(bench, "a")
    before = await totals(bench, family[1].scopes)
    first, second = await sessions.race(lambda store: compacts(store, family[0]), lambda store: compacts(store, family[0]))
    assert (first, second) == (LedgerCompaction(2, 4, 2, 2, 0), LedgerCompaction(2, 0, 0, 2, 0))
    assert await totals(bench, family[1].scopes) == before
    assert [row.action for row in await bench.store.budget_audit(KEY)] == ["compacted"]


async def test_a_child_and_its_tree_at_once(bench: Bench, sessions: Sessions) -> None:
    """Both have the topmost run in hand, one after the other."""
    family = await ended(bench, "a")
    before = await totals(bench, family[1].scopes)
    first, second = await sessions.race(lambda store: compacts(store, family[1]), lambda store: compacts(store, family[0]))
    assert (first, second) == (LedgerCompaction(1, 2, 1, 1, 0), LedgerCompaction(2, 2, 1, 2, 0))
    assert await totals(bench, family[1].scopes) == before


@pytest.mark.parametrize("compact_first", [True, False])
async def test_a_commit_that_folds(bench: Bench, sessions: Sessions, compact_first: bool) -> None:
    """A reservation of another run in the shared budget: whoever waits, what was settled is counted once, and becomes sums."""
    [run] = await ended(bench)
    [other] = await family_of(bench, (KEY,))
    before = (await totals(bench, run.scopes))[1]

    async def reserve(store: SqlStore) -> object:
        shared = (SharedBudget(KEY, as_stored=True),)
        return await store.commit(change_from(other.head, reserve=Reserve("1", other.scopes, 10, None, shared, "m")))

    async def compacting(store: SqlStore) -> object:
        return await compacts(store, run)

    outcomes = await sessions.race(*((compacting, reserve) if compact_first else (reserve, compacting)))
    done, reserved = outcomes if compact_first else reversed(outcomes)
    assert isinstance(reserved, Applied)
    # What the reservation folded is met by a second statement, and what the first had summed up is not there again.
    assert isinstance(done, LedgerCompaction)
    assert done.unknown == 1
    assert [outcome for _, outcome in await rows_left(sessions, run)] == ["unknown"]
    now = (await totals(bench, run.scopes))[1]
    assert (now[0].spent, now[0].unknown, now[0].held) == (before[0].spent, before[0].unknown, Budget(10, 0))
    assert (now[1][0].spent, now[1][0].calls, now[1][0].usage) == (
        before[1][0].spent,
        before[1][0].calls + 1,
        before[1][0].usage,
    )


async def test_a_parent_that_reserves_while_its_child_is_compacted(bench: Bench, sessions: Sessions) -> None:
    """They take their budgets in one order, deepest first."""
    parent, child = await family_of(bench, (KEY,), "a")
    await end_call(bench, child, "1", "settled")
    await finish(bench, child)
    asks = await bench.again(parent.head)
    before = await totals(bench, child.scopes)

    async def reserve(store: SqlStore) -> object:
        shared = (SharedBudget(KEY, as_stored=True),)
        return await store.commit(change_from(asks, reserve=Reserve("p", parent.scopes, 10, None, shared, "m")))

    reserved, done = await sessions.race(reserve, lambda store: compacts(store, child))
    assert isinstance(reserved, Applied)
    assert done == LedgerCompaction(1, 1, 0, 0, 0)
    for then, now in zip(before, await totals(bench, child.scopes), strict=True):
        assert (now[0].spent, now[0].unknown) == (then[0].spent, then[0].unknown)


async def test_budgets_are_locked_deepest_first_and_before_their_calls(bench: Bench, sessions: Sessions) -> None:
    """A commit that has the parent's budget locked and goes on to the shared one, and then folds, is in nobody's way: the
    compaction of the child waits at the parent's, with neither the shared one nor any call in hand."""
    parent, child = await family_of(bench, (KEY,), "a")
    await end_call(bench, child, "1", "settled")
    await finish(bench, child)
    before = await totals(bench, child.scopes)
    locking: LiteralString = "select 1 from budget_scope where key = %s for no key update"
    async with (
        await psycopg.AsyncConnection.connect(sessions.url) as holder,
        await psycopg.AsyncConnection.connect(sessions.url, autocommit=True) as watcher,
    ):
        await holder.execute(locking, (parent.scopes[0],))
        waiting = asyncio.ensure_future(compacts(sessions.store, child))
        await sessions.until_somebody_waits(watcher, waiting)
        own = await holder.execute(f"{locking} skip locked", (child.scopes[0],))
        assert await own.fetchall() == [], "the child's own is locked before"
        # Nobody waits here, so that no deadlock is broken and tried again in silence.
        await holder.execute(f"{locking} nowait", (KEY,))
        await holder.execute("select 1 from settlement where scope_key <> %s for update nowait", (child.scopes[0],))
        await holder.commit()
        assert await asyncio.wait_for(waiting, DEADLINE_S) == LedgerCompaction(1, 1, 0, 0, 0)
    assert await totals(bench, child.scopes) == before


@pytest.mark.parametrize("compact_first", [True, False])
async def test_an_operator_releases_a_hold(bench: Bench, sessions: Sessions, compact_first: bool) -> None:
    """Neither waits: the call was unknown when the compaction began, so it stays, and it is free once."""
    [run] = await ended(bench)
    lost = f"{run.head.rid.hex}:3"
    before = (await totals(bench, run.scopes))[1][0]
    async with await psycopg.AsyncConnection.connect(sessions.url) as holder:
        one, two = SqlStore(OneSession(sessions.url, holder)), sessions.store
        compacting, releasing = (one, two) if compact_first else (two, one)
        if compact_first:
            await compacts(compacting, run)
        releases = releasing.release_hold(run.head.rid, lost, actor="eve")
        assert await asyncio.wait_for(releases, DEADLINE_S) == tuple(sorted(run.scopes))
        if not compact_first:
            assert await asyncio.wait_for(compacts(compacting, run), DEADLINE_S) == LedgerCompaction(1, 2, 1, 1, 0)
        await holder.commit()
    for _ in range(2):
        assert await bench.store.release_hold(run.head.rid, lost, actor="eve") == ()
        now = (await totals(bench, run.scopes))[1][0]
        assert (now.spent, now.held, now.unknown) == (before.spent, Budget(0, 0), Budget(0, 0))
        await compact(bench, run)
    assert await rows_left(sessions, run) == []


async def test_a_prune_goes_first(bench: Bench, sessions: Sessions) -> None:
    """Who waited for it finds no run, and leaves no sums of a budget that is gone."""
    [run] = await ended(bench)
    before = (await totals(bench, run.scopes))[1][0]

    async def prune(store: SqlStore) -> int:
        return await store.prune(older_ms=-1, status=("completed",), scope=bench.scope, limit=10)

    assert await sessions.race(prune, lambda store: compacts(store, run)) == (1, None)
    assert await bench.store.balance(KEY) == before
    assert await sessions.rows("select 1 from budget_history where scope_key = %s", run.scopes[0]) == []


async def test_a_prune_passes_a_tree_that_is_compacted(bench: Bench, sessions: Sessions) -> None:
    """It does not wait, and takes it the next time, with the sums of its own budgets."""
    family = await ended(bench, "a")
    before = (await totals(bench, family[1].scopes))[-1][0]

    async def prune() -> int:
        return await sessions.store.prune(older_ms=-1, status=("completed",), scope=bench.scope, limit=10)

    async with await psycopg.AsyncConnection.connect(sessions.url) as holder:
        await compacts(SqlStore(OneSession(sessions.url, holder)), family[1])
        assert await asyncio.wait_for(prune(), DEADLINE_S) == 0
        await holder.commit()
    assert await prune() == 1
    assert await bench.store.balance(KEY) == before
    assert await sessions.rows("select 1 from budget_history where scope_key like 'run:%%'") == []


async def test_many_at_once_keep_the_books(migrated_postgres_dsn: str, bench: Bench) -> None:
    """Compactions of several trees, calls of a run that goes on, releases and a prune, in four sessions: nobody is refused, no
    money appears or goes, and in the end only what nobody knows has rows."""
    families = [await ended(bench, "a", "b") for _ in range(4)]
    [alive] = await family_of(bench, (KEY,))
    runs = [run for family in families for run in family]
    before = await bench.store.balance(KEY)
    assert before is not None
    stores = [open_store(migrated_postgres_dsn) for _ in range(4)]
    acts = [(compacts, run) for run in runs for _ in range(2)]
    random.Random(3).shuffle(acts)

    async def calls() -> None:
        for number in range(12):
            await end_call(bench, alive, f"later{number}", "settled")

    async def releases() -> None:
        for run in runs[::2]:
            assert await stores[1].release_hold(run.head.rid, f"{run.head.rid.hex}:3", actor="eve")

    done = await asyncio.gather(calls(), releases(), *(act(stores[place % 4], run) for place, (act, run) in enumerate(acts)))
    assert all(isinstance(each, LedgerCompaction) for each in done[2:])
    pruning = (store.prune(older_ms=-1, status=("completed",), scope=bench.scope, limit=1) for store in stores[:2])
    again = (compacts(store, family[0]) for store, family in zip(stores[2:], families, strict=False))
    await asyncio.gather(*pruning, *again)
    now = await bench.store.balance(KEY)
    assert now is not None
    assert now.spent == Budget((before.spent.tokens or 0) + 12 * 30, (before.spent.usd_micros or 0) + 12 * 7)
    assert now.held == Budget(0, 0)
    freed = len(runs[::2])
    assert now.unknown == Budget((before.unknown.tokens or 0) - 100 * freed, (before.unknown.usd_micros or 0) - 50 * freed)
    used = [(use.spent, use.unknown) for use in await bench.store.usage(KEY)]
    assert used == [(now.spent, now.unknown)]
    await asyncio.gather(*(store.close() for store in stores))
