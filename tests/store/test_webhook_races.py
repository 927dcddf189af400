"""A commit that becomes visible late is told all the same: the cursor of webhooks stays behind every open transaction."""

from __future__ import annotations

from typing import Any, cast
from uuid import uuid4

import psycopg

from deuz_workers.core.codec import encode
from deuz_workers.ports.webhooks import Delivery
from deuz_workers.store import SqlStore, open_store
from deuz_workers.testing.store_conformance_bench import Bench
from tests.store.sessions import OneSession, Sessions

HOUR_MS = 3_600_000


async def test_what_is_committed_late_is_found_however_far_others_have_looked(migrated_postgres_dsn: str) -> None:
    """A run's end is written and not committed while passes look on for an hour of the store's clock; then it is committed."""
    store = open_store(migrated_postgres_dsn)
    sessions, bench = Sessions(migrated_postgres_dsn, store), Bench(store)
    await store.add_webhook("wh_1", bench.scope, "https://hook.example/", ["run.completed"])
    late, early = await bench.start(), await bench.start()
    end = {"status": "completed", "due_in_ms": None, "journal": (encode({"type": "run.completed"}),)}
    began_ms = await store.now_ms()
    async with await psycopg.AsyncConnection.connect(migrated_postgres_dsn) as holder:
        await Bench(SqlStore(OneSession(migrated_postgres_dsn, holder))).applied(late, **end)
        await bench.applied(early, **end)
        store.now = began_ms + HOUR_MS
        for _ in range(4):
            await store.collect_webhook_events(24 * HOUR_MS)
        assert [given.run_id for given in await _taken(store)] == [early.run_id]
        await holder.commit()
    await store.collect_webhook_events(24 * HOUR_MS)
    assert [given.run_id for given in await _taken(store)] == [late.run_id]
    for _ in range(3):
        await store.collect_webhook_events(24 * HOUR_MS)
    [(moved,)] = await sessions.rows("select extract(epoch from horizon) * 1000 from webhook")
    assert moved > began_ms, "with nothing open the cursor goes on"
    assert await _taken(store) == ()
    await store.close()


async def test_two_passes_at_once_do_not_wait_for_each_other(migrated_postgres_dsn: str) -> None:
    """While one holds an endpoint, the other looks at the rest and is done; nothing is told twice."""
    store = open_store(migrated_postgres_dsn)
    bench = Bench(store)
    await store.add_webhook("wh_1", bench.scope, "https://hook.example/", ["run.completed"])
    await bench.applied(await bench.start(), status="completed", due_in_ms=None, journal=(encode({"type": "run.completed"}),))
    async with await psycopg.AsyncConnection.connect(migrated_postgres_dsn) as holder:
        first = SqlStore(OneSession(migrated_postgres_dsn, holder))
        assert await first.collect_webhook_events(HOUR_MS) == 1
        assert await store.collect_webhook_events(HOUR_MS) == 0
        await holder.commit()
    assert await store.collect_webhook_events(HOUR_MS) == 0
    assert len(await _taken(store)) == 1
    await store.close()


async def test_what_other_roles_have_open_is_waited_for_unseen(migrated_postgres_dsn: str) -> None:
    """A role that may not see when others began keeps its cursor a minute back, which every commit of ours ends within."""
    store = open_store(migrated_postgres_dsn)
    sessions = Sessions(migrated_postgres_dsn, store)
    await store.add_webhook("wh_1", "s", "https://hook.example/", ["run.completed"])
    role = f"limited_{uuid4().hex}"
    began_ms = await store.now_ms()
    async with (
        await psycopg.AsyncConnection.connect(migrated_postgres_dsn, autocommit=True) as limited,
        await psycopg.AsyncConnection.connect(migrated_postgres_dsn) as other,
    ):
        await limited.execute(cast(Any, f"create role {role}"))
        await limited.execute(cast(Any, f"grant select, insert, update, delete on all tables in schema public to {role}"))
        await other.execute("select 1")
        await limited.execute(cast(Any, f"set role {role}"))
        mine = SqlStore(OneSession(migrated_postgres_dsn, limited), now_ms=began_ms + HOUR_MS)
        for _ in range(3):
            await mine.collect_webhook_events(24 * HOUR_MS)
        [(horizon_ms,)] = await sessions.rows("select extract(epoch from horizon) * 1000 from webhook")
        assert horizon_ms == began_ms + HOUR_MS - 60_000
        await limited.execute("reset role")
        await limited.execute(cast(Any, f"drop owned by {role}"))
        await limited.execute(cast(Any, f"drop role {role}"))
    await store.close()


async def test_an_endpoint_that_is_removed_during_a_pass_leaves_nothing(migrated_postgres_dsn: str) -> None:
    """The removal waits for the pass, and does away with what the pass wrote meanwhile, too."""
    store = open_store(migrated_postgres_dsn)
    sessions, bench = Sessions(migrated_postgres_dsn, store), Bench(store)
    await store.add_webhook("wh_1", bench.scope, "https://hook.example/", ["run.completed"])
    await bench.applied(await bench.start(), status="completed", due_in_ms=None, journal=(encode({"type": "run.completed"}),))
    found = await sessions.race(
        lambda mine: mine.collect_webhook_events(HOUR_MS), lambda other: other.remove_webhook("wh_1", bench.scope)
    )
    assert found == (1, True)
    assert await sessions.rows("select count(*) from webhook_delivery") == [(0,)]
    await store.close()


async def _taken(store: SqlStore) -> tuple[Delivery, ...]:
    store.now, now = None, store.now
    taken = await store.take_webhook_deliveries(limit=10, batch=10, claim_ms=HOUR_MS)
    for given in taken:
        await store.webhook_delivered(given, is_last=True)
    store.now = now
    return taken
