"""Pruning and inserting beside somebody who writes the same run or takes the same name."""

from __future__ import annotations

from dataclasses import replace

import psycopg

from deuz_workers.core.change import Applied, Head, RevisionConflict
from deuz_workers.ports.whole_run import WholeRun
from deuz_workers.store import SqlStore
from deuz_workers.testing.store_conformance_bench import Bench, change_from, message, new_rid
from tests.store.sessions import OneSession, Sessions


async def failed(bench: Bench) -> Head:
    head = await bench.start()
    await bench.applied(head, status="failed", due_in_ms=None)
    return await bench.again(head)


async def prune(store: SqlStore, bench: Bench) -> int:
    return await store.prune(older_ms=-1, status=("failed",), scope=bench.scope, limit=10)


def inserted(bench: Bench, run_id: str) -> WholeRun:
    return WholeRun(new_rid(), bench.scope, run_id, "agent", "writer", "{}", "queued", 0, (message(0),), (), ())


async def test_a_run_that_is_taken_up_is_not_pruned(bench: Bench, sessions: Sessions) -> None:
    """While the commit that takes it up is under way, and afterwards: the prune leaves it to a later batch."""
    head = await failed(bench)
    async with await psycopg.AsyncConnection.connect(sessions.url) as holder:
        taken_up = await SqlStore(OneSession(sessions.url, holder)).commit(change_from(head, status="running"))
        assert isinstance(taken_up, Applied)
        assert await prune(sessions.store, bench) == 0
        await holder.commit()
    assert await prune(sessions.store, bench) == 0
    assert (await bench.again(head)).status == "running"


async def test_a_run_that_is_pruned_is_not_taken_up(bench: Bench, sessions: Sessions) -> None:
    """A commit that waited for the prune finds no run, and writes nothing."""
    head = await failed(bench)
    change = change_from(head, status="running", messages=(message(0),))
    gone, outcome = await sessions.race(lambda store: prune(store, bench), lambda store: store.commit(change))
    assert (gone, outcome) == (1, RevisionConflict(None))
    assert await bench.store.head(bench.scope, head.run_id) is None
    assert await sessions.rows("select 1 from message where rid = %s", head.rid) == []


async def test_two_prunes_take_different_runs(bench: Bench, sessions: Sessions) -> None:
    """The second passes what the first has locked, and does not wait."""
    for _ in range(3):
        await failed(bench)
    async with await psycopg.AsyncConnection.connect(sessions.url) as holder:
        first = SqlStore(OneSession(sessions.url, holder))
        assert await first.prune(older_ms=-1, status=("failed",), scope=bench.scope, limit=2) == 2
        assert await prune(sessions.store, bench) == 1
        await holder.commit()
    assert await prune(sessions.store, bench) == 0


async def test_of_two_that_insert_under_one_name_one_does(bench: Bench, sessions: Sessions) -> None:
    """The second waits, and finds the first; so it is beside a start."""
    run_id = bench.name()
    one, other = inserted(bench, run_id), inserted(bench, run_id)
    first, second = await sessions.race(lambda store: store.insert_run(one), lambda store: store.insert_run(other))
    assert (first.created, second.created, second.rid) == (True, False, one.rid)
    assert await sessions.rows("select count(*) from message where rid = %s", other.rid) == [(0,)]
    run = bench.run()
    late = replace(inserted(bench, run.run_id), rid=new_rid())
    started, refused = await sessions.race(lambda store: store.create(run), lambda store: store.insert_run(late))
    assert (started.created, refused.created, refused.rid) == (True, False, run.rid)
