"""Admissions against one budget scope, which every run of a tenant may share."""

from __future__ import annotations

import asyncio
import time

from deuz_workers.core.change import Reserve, Settle
from deuz_workers.core.usage import Budget
from deuz_workers.store import open_store
from deuz_workers.testing.store_conformance_bench import Bench
from tests.bench.windows import Figures

CLIENTS = 8
SCOPE = "scope:bench"


async def admissions(database_url: str, *, seconds: float) -> Figures:
    """Eight runs that do nothing but reserve in one scope and settle the reservation before, each in one commit."""
    store = open_store(database_url, max_connections=CLIENTS)
    try:
        await store.set_budget(SCOPE, Budget(10**15, None))
        until = time.monotonic() + seconds
        began = time.monotonic()
        made = await asyncio.gather(*(_reserve(Bench(store), until) for _ in range(CLIENTS)))
        return {"reservations_per_s_one_scope": sum(made) / (time.monotonic() - began)}
    finally:
        await store.close()


async def _reserve(bench: Bench, until: float) -> int:
    head = await bench.start()
    made = 0
    while time.monotonic() < until:
        settle = (Settle(f"{made - 1}", (SCOPE,), "settled", 90),) if made else ()
        await bench.applied(head, reserve=Reserve(f"{made}", (SCOPE,), 100, 0), settle=settle)
        head = await bench.again(head)
        made += 1
    return made
