"""Admissions of 64 callers who share one budget: ``python -m tests.bench.ledger_load`` prints a table.

Every caller is a run that reserves in the scope and settles, each in a commit of its own, over and over; only the reservation
locks the scope. A figure is of reservations: how many a second, and how long the slowest hundredth of them took. The callers
are coroutines of one process with a connection each, so Python is part of it: see the lines where each has a scope of its own.

``finished``   calls that were settled under the scope before, written by SQL and folded by the product's own next reservation
``slices``     rows that the scope is cut into, whose limits were granted in advance (`set_budget(slices=...)`)
``2 ms``       the server waits 2 ms before every flush of its log (`commit_delay` with `commit_siblings` 0), as a cloud disk
               does: a reservation keeps the row of its scope locked so long. Servers run with fsync on
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, replace
from statistics import quantiles

import psycopg

from deuz_workers.core.change import Head, Reserve, Settle
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.core.usage import Budget
from deuz_workers.embedded import EmbeddedPostgres
from deuz_workers.store import SqlStore, migrate, open_store
from deuz_workers.testing.store_conformance_bench import Bench
from tests.bench.machine import machine

CALLERS = 64
KEY = "org:bench"
LIMIT = 10**15
SEED_BATCH = 100_000


@dataclass(frozen=True, slots=True)
class Load:
    finished: int
    slices: int
    delay_ms: int
    shared: bool = True
    """False: every caller has a scope of its own, which is what the machine can do."""


@dataclass(frozen=True, slots=True)
class Figure:
    admissions_per_s: float
    p50_ms: float
    p99_ms: float


async def seed(store: SqlStore, url: str, finished: int) -> None:
    """`finished` settled calls under the scope, folded."""
    bench, made = Bench(store), 0
    head = await bench.start()
    while made < finished:
        batch = min(SEED_BATCH, finished - made)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(
                "with calls as (select gen_random_uuid() as rid, n::text as request_id from generate_series(1, %s) n),"
                " held as (insert into reservation (rid, request_id, scope_key, tokens, micros, at)"
                "          select rid, request_id, %s, 100, 7, now() from calls),"
                " scope as (update budget_scope set held_tokens = held_tokens + 100 * %s, held_micros = held_micros + 7 * %s"
                "           where key = %s)"
                " insert into settlement"
                " (rid, request_id, scope_key, outcome, tokens, micros, held_tokens, held_micros, folded, at)"
                " select rid, request_id, %s, 'settled', 60, 5, 100, 7, false, now() from calls",
                [batch, KEY, batch, batch, KEY, KEY],
            )
        made += batch
        shared = (SharedBudget(KEY, Budget(tokens=LIMIT)),)  # a limit of its own: the scope itself is asked, not a slice
        await bench.applied(await bench.again(head), reserve=Reserve(f"fold{made}", (KEY,), 1, 1, shared))
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("vacuum (analyze) budget_scope, reservation, settlement")
    balance = await store.balance(KEY)
    assert balance is not None
    assert balance.spent == Budget(60 * finished, 5 * finished), balance


async def press(store: SqlStore, load: Load, seconds: float) -> Figure:
    benches = [Bench(store) for _ in range(CALLERS)]
    heads = [await bench.start() for bench in benches]
    keys = [KEY if load.shared else f"{KEY}:{number}" for number in range(CALLERS)]
    if not load.shared:
        for key in keys:
            await store.set_budget(key, Budget(LIMIT, LIMIT))
    took_ms: list[float] = []

    async def caller(bench: Bench, head: Head, key: str, until: float) -> None:
        shared, made = (SharedBudget(key, as_stored=True),), 0
        while time.monotonic() < until:
            began = time.monotonic()
            outcome = await bench.applied(head, reserve=Reserve(f"{made}", (key,), 100, 7, shared))
            took_ms.append((time.monotonic() - began) * 1_000)
            head = replace(head, revision=outcome.revision, status="running")
            outcome = await bench.applied(head, settle=(Settle(f"{made}", (key,), "settled", 60, 5),))
            head = replace(head, revision=outcome.revision)
            made += 1

    began = time.monotonic()
    await asyncio.gather(*(caller(*one, began + seconds) for one in zip(benches, heads, keys, strict=True)))
    spent_s = time.monotonic() - began
    hundredths = quantiles(took_ms, n=100)
    return Figure(len(took_ms) / spent_s, hundredths[49], hundredths[98])


async def measure(url: str, load: Load, seconds: float) -> Figure:
    """On a database that holds nothing else."""
    store = open_store(url, max_connections=CALLERS)
    assert isinstance(store, SqlStore)
    try:
        await store.set_budget(KEY, Budget(LIMIT, LIMIT), slices=load.slices or None)
        if load.finished:
            await seed(store, url, load.finished)
        await press(store, load, min(seconds, 3.0))  # connections are open then, and plans made
        return await press(store, load, seconds)
    finally:
        await store.close()


def loads(finished: tuple[int, ...], slices: int) -> list[Load]:
    made = [Load(0, 0, delay_ms, shared=False) for delay_ms in (0, 2)]
    return made + [Load(count, cut, delay_ms) for delay_ms in (0, 2) for cut in (0, slices) for count in finished]


async def run(finished: tuple[int, ...], slices: int, seconds: float) -> None:
    print(machine())
    print(f"{'commits':>8} {'slices':>7} {'finished':>9} {'admissions/s':>13} {'p50 ms':>8} {'p99 ms':>8}")
    with EmbeddedPostgres() as server:
        for number, load in enumerate(loads(finished, slices)):
            name = f"load{number}"
            with psycopg.connect(server.url, autocommit=True) as admin:
                admin.execute(f"create database {name}".encode())
                admin.execute(f"alter database {name} set commit_delay = {load.delay_ms * 1_000}".encode())
                admin.execute(f"alter database {name} set commit_siblings = 0".encode())
            await migrate(server.url_of(name))
            figure = await measure(server.url_of(name), load, seconds)
            with psycopg.connect(server.url, autocommit=True) as admin:
                admin.execute(f"drop database {name} with (force)".encode())
            print(
                f"{f'{load.delay_ms} ms' if load.delay_ms else 'disk':>8} {load.slices if load.shared else 'none':>7}"
                f" {load.finished:>9,} {figure.admissions_per_s:>13,.0f} {figure.p50_ms:>8.1f} {figure.p99_ms:>8.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ledger_load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each line")
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--finished", type=int, nargs="*", default=[1_000, 1_000_000])
    given = parser.parse_args()
    asyncio.run(run(tuple(given.finished), given.slices, given.seconds))


if __name__ == "__main__":
    main()
