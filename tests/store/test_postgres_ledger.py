"""Many sessions on one budget scope."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import psycopg

from deuz_workers.core.change import Applied, BudgetExceeded, Reserve, Settle
from deuz_workers.core.usage import Budget
from deuz_workers.store import open_store
from deuz_workers.testing.store_conformance_bench import Bench, change_from


async def test_a_scope_worth_ten_calls_admits_ten_of_320(migrated_postgres_dsn: str, bench: Bench) -> None:
    """32 clients on 16 connections reserve ten times each in one scope: exactly ten are admitted, none fails otherwise."""
    await bench.store.set_budget("org", Budget(tokens=10 * 100))
    stores = [open_store(migrated_postgres_dsn) for _ in range(4)]
    outcomes: Counter[str] = Counter()

    async def client(number: int) -> None:
        store = stores[number % len(stores)]
        head = await bench.start()
        for call in range(10):
            outcome = await store.commit(
                change_from(head, reserve=Reserve(f"{head.run_id}/{call}", (f"run:{head.rid.hex}", "org"), 100, None))
            )
            outcomes[type(outcome).__name__] += 1
            head = await bench.again(head)

    await asyncio.gather(*(client(number) for number in range(32)))
    await asyncio.gather(*(store.close() for store in stores))
    assert outcomes == {"Applied": 10, "BudgetExceeded": 310}
    balance = await bench.store.balance("org")
    assert balance is not None
    assert (balance.held.tokens, balance.spent.tokens) == (1_000, 0)


async def test_reserving_and_settling_at_once_keeps_the_books(migrated_postgres_dsn: str, bench: Bench) -> None:
    """16 runs reserve, settle, release or lose calls in three nested scopes; the limit is never passed.

    What was spent, held and left unknown is right to the token.
    """
    limit = 2_000
    await bench.store.set_budget("org", Budget(tokens=limit, usd_micros=10**9))
    await bench.store.set_budget("team", Budget(usd_micros=10**9))
    stores = [open_store(migrated_postgres_dsn) for _ in range(4)]
    spent: Counter[str] = Counter()

    async def client(number: int) -> None:
        store, scopes = stores[number % len(stores)], (f"run:{number}", "team", "org")
        await store.set_budget(scopes[0], Budget(tokens=10**9))
        head = await bench.start()
        for call in range(12):
            request = f"{number}/{call}"
            outcome = await store.commit(change_from(head, reserve=Reserve(request, scopes, 100 + number, 7)))
            head = await bench.again(head)
            if isinstance(outcome, BudgetExceeded):
                assert outcome.scope == "org"
                spent["refused"] += 1
                continue
            ends = ("settled", "settled", "settled", "released", "unknown")[(number + call) % 5]
            used = 11 + call
            settled = await store.commit(change_from(head, settle=(Settle(request, scopes, ends, used, 3),)))
            assert isinstance(settled, Applied)
            spent[ends] += {"settled": used, "released": 0, "unknown": 100 + number}[ends]
            head = await bench.again(head)

    async def watch() -> None:
        while True:
            balance = await bench.store.balance("org")
            assert balance is not None
            parts = (balance.spent.tokens, balance.held.tokens, balance.unknown.tokens)
            assert all(part is not None and part >= 0 for part in parts), parts
            assert sum(part or 0 for part in parts) <= limit, parts

    watcher = asyncio.ensure_future(watch())
    await asyncio.gather(*(client(number) for number in range(16)))
    assert not watcher.done(), watcher.exception()
    watcher.cancel()
    await asyncio.gather(watcher, *(store.close() for store in stores), return_exceptions=True)
    for key in ("org", "team"):
        balance = await bench.store.balance(key)
        assert balance is not None
        assert (balance.spent.tokens, balance.held.tokens, balance.unknown.tokens) == (spent["settled"], 0, spent["unknown"])
    assert spent["refused"]


async def test_nothing_of_a_pruned_run_is_left_in_what_it_shared(migrated_postgres_dsn: str, bench: Bench) -> None:
    """Although nobody has reserved there since its last call was settled: balance and usage are as before, and only what nobody
    knows keeps its row."""
    await bench.store.set_budget("org", Budget(tokens=10_000))
    rids: list[UUID] = []
    for name, ends in (("unknown", ("unknown", "settled")), ("known", ("released", "settled"))):
        head = await bench.start()
        rids.append(head.rid)
        for call, outcome in enumerate(ends):
            request = f"{name}/{call}"
            await bench.store.commit(change_from(head, reserve=Reserve(request, ("org",), 100, 7)))
            head = await bench.again(head)
            settle = Settle(request, ("org",), outcome, 60, 5)  # pyright: ignore[reportArgumentType]
            await bench.store.commit(change_from(head, settle=(settle,)))
            head = await bench.again(head)
        await bench.applied(head, status="completed", due_in_ms=None)
    before = await bench.store.balance("org"), await bench.store.usage("org")
    assert await bench.store.prune(older_ms=-1, status=("completed",), scope=bench.scope, limit=10) == 2
    after = await bench.store.balance("org"), await bench.store.usage("org")
    assert after[0] == before[0]
    assert [(use.spent, use.held, use.unknown) for use in after[1]] == [(use.spent, use.held, use.unknown) for use in before[1]]
    with psycopg.connect(migrated_postgres_dsn) as connection:
        for table in ("reservation", "settlement"):
            found = connection.execute(f"select rid, request_id from {table}").fetchall()
            assert found == [(rids[0], "unknown/0")]
