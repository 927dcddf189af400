"""Sums in the place of the calls of runs that have ended: no total changes by them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deuz_workers.core.change import Applied, Head, Reserve, Settle
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.shared_budget import SharedBudget, Window
from deuz_workers.core.usage import Budget, Usage
from deuz_workers.ports.budgets import LedgerCompaction, StillOpen
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench, item
from deuz_workers.testing.store_conformance_children import child_of, items_of

OUTCOMES = ("settled", "settled", "settled", "released", "unknown", "unknown")


@dataclass(frozen=True, slots=True)
class Charged:
    """A run and the scopes that its calls reserve in, its own first."""

    head: Head
    scopes: tuple[str, ...]


async def end_call(
    bench: Bench, run: Charged, request_id: str, outcome: str, tokens: int = 30, model: str = "m", *, reserves: bool = True
) -> None:
    """One call of the run, from its reservation, unless it was made before, to its end."""
    if reserves:
        shared = tuple(SharedBudget(key, as_stored=True) for key in run.scopes if not key.startswith("run:"))
        reserve = Reserve(request_id, run.scopes, 100, 50, shared, model)
        reserved = await bench.commit(await bench.again(run.head), reserve=reserve)
        assert isinstance(reserved, Applied), reserved
    settle = Settle(request_id, (), outcome)  # type: ignore[arg-type]
    if outcome == "settled":
        settle = replace(settle, tokens=tokens, cost_micros=7, usage=Usage(tokens - 9, 9, 5, 3, 7))
    await bench.applied(await bench.again(run.head), settle=(settle,))


async def family_of(bench: Bench, shared: Sequence[str], *names: str) -> tuple[Charged, ...]:
    """A run with a budget and runs that it delegated, each with a budget of its own inside it; the parent waits."""
    new = bench.run(budget=Budget(tokens=100_000))
    assert (await bench.store.create(new)).created
    parent = Charged(await bench.head(new.run_id), (run_scope_key(new.rid), *shared))
    if not names:
        return (parent,)
    children = tuple(child_of(parent.head, name, budget=Budget(tokens=50_000)) for name in names)
    await bench.applied(parent.head, status="suspended", due_in_ms=None, items=items_of(*names), children=children)
    made = [Charged(await bench.head(one.run_id), (run_scope_key(one.rid), *parent.scopes)) for one in children]
    return (replace(parent, head=await bench.again(parent.head)), *made)


async def finish(bench: Bench, *runs: Charged) -> None:
    for run in runs:
        await bench.applied(await bench.again(run.head), status="completed", due_in_ms=None)


async def compact(bench: Bench, run: Charged, **given: Any) -> LedgerCompaction | StillOpen | None:
    return await bench.store.compact_ledger(bench.scope, run.head.run_id, **{"actor": "ops", **given})


async def totals(bench: Bench, keys: Sequence[str]) -> list[Any]:
    """All that can be asked about these budgets: how they stand, what each model used, ever and lately, and the holds."""
    lately = await bench.store.now_ms() // HOUR_MS * HOUR_MS
    return [
        (
            await bench.store.balance(key),
            await bench.store.usage(key),
            await bench.store.usage(key, lately),
            [replace(hold, age_ms=0) for hold in await bench.store.holds(key)],
        )
        for key in keys
    ]


class LedgerCompactionConformance:
    """`compact_ledger`."""

    async def test_no_total_changes_by_a_compaction(self, store: RunStore) -> None:
        """Whatever calls there were: balance, usage by model and holds of every budget are what they were, also when it is done
        again and when the budgets are used on."""
        for seed in range(4):
            chance, bench = random.Random(seed), Bench(store)  # noqa: S311 - which calls there are
            user, org, week = (f"{name}:{bench.scope}" for name in ("user", "org", "week"))
            await store.set_budget(org, Budget(tokens=10**9), slices=chance.choice((0, 2)))
            await store.set_budget(week, Budget(tokens=10**9), window=Window(168 * HOUR_MS))
            family = await family_of(bench, (org, user, week), "a", "b")
            [other] = await family_of(bench, (org, user, week))
            for number in range(24):
                run = chance.choice((*family, other))
                outcome, model = chance.choice(OUTCOMES), chance.choice(("big", "small"))
                await end_call(bench, run, f"q{number}", outcome, chance.randrange(20, 200), model)
            await finish(bench, *family)
            keys = sorted({key for run in (*family, other) for key in run.scopes})
            before = await totals(bench, keys)
            done = await compact(bench, family[0])
            assert isinstance(done, LedgerCompaction)
            assert await totals(bench, keys) == before, seed
            again = await compact(bench, family[0])
            assert await totals(bench, keys) == before, seed
            assert again == replace(done, settled=0, released=0), seed
            await end_call(bench, other, "later", "settled", 33, "big")
            for key in other.scopes:
                then, now = before[keys.index(key)][0], await store.balance(key)
                assert now is not None
                assert (now.spent.tokens, now.spent.usd_micros) == (then.spent.tokens + 33, then.spent.usd_micros + 7), seed
                assert (now.held, now.unknown) == (then.held, then.unknown), seed
            last = await compact(bench, family[0])
            assert isinstance(last, LedgerCompaction)
            assert last.waiting == 0

    async def test_settled_calls_are_sums_and_released_ones_forgotten(self, store: RunStore) -> None:
        """Counted by call, not by budget; the run's own budget stays. Who did it is written down for each budget, once."""
        bench = Bench(store)
        user = f"user:{bench.scope}"
        [run] = await family_of(bench, (user,))
        for number, outcome in enumerate(("settled", "settled", "released", "unknown")):
            await end_call(bench, run, f"q{number}", outcome)
        await finish(bench, run)
        assert await compact(bench, run, actor="eve", reason="month end") == LedgerCompaction(1, 2, 1, 1, 0)
        assert await compact(bench, run, actor="joe") == LedgerCompaction(1, 0, 0, 1, 0)
        for key in run.scopes:
            balance = await store.balance(key)
            assert balance is not None
            assert (balance.spent, balance.held, balance.unknown) == (Budget(60, 14), Budget(0, 0), Budget(100, 50))
            [row] = [row for row in await store.budget_audit(key) if row.action == "compacted"]
            assert (row.actor, row.reason, row.rid, row.tokens, row.micros) == ("eve", "month end", run.head.rid, 60, 14)

    async def test_an_unknown_call_of_a_compacted_run_can_be_released(self, store: RunStore) -> None:
        """It is listed before and after, and freeing it takes it off every budget once; the next compaction forgets it."""
        bench = Bench(store)
        user = f"user:{bench.scope}"
        [run] = await family_of(bench, (user,))
        await end_call(bench, run, "done", "settled")
        await end_call(bench, run, "lost", "unknown")
        await finish(bench, run)
        await compact(bench, run)
        [hold] = await store.holds(user)
        assert (hold.request_id, hold.tokens, sorted(hold.scope_keys)) == ("lost", 100, sorted(run.scopes))
        assert sorted(await store.release_hold(run.head.rid, "lost", actor="ops")) == sorted(run.scopes)
        assert await compact(bench, run) == LedgerCompaction(1, 0, 1, 0, 0)
        assert await store.release_hold(run.head.rid, "lost", actor="ops") == ()
        for key in run.scopes:
            balance = await store.balance(key)
            assert balance is not None
            assert (balance.spent, balance.held, balance.unknown) == (Budget(30, 7), Budget(0, 0), Budget(0, 0))

    async def test_a_run_that_has_not_ended_is_not_compacted(self, store: RunStore) -> None:
        """Nor one with such a run below it, with work behind its end, or parked; it is named, and nothing is done."""
        bench = Bench(store)
        user = f"user:{bench.scope}"
        parent, child = await family_of(bench, (user,), "a")
        await end_call(bench, child, "1", "settled")
        assert await compact(bench, parent) == StillOpen(parent.head.run_id, "suspended", None)
        await finish(bench, parent)
        assert await compact(bench, parent) == StillOpen(child.head.run_id, "running", None)
        await store.park(child.head.rid, (await bench.again(child.head)).revision, "reconciliation")
        assert await compact(bench, parent) == StillOpen(child.head.run_id, "running", "reconciliation")
        [busy] = await family_of(bench, (user,))
        await bench.applied(busy.head, status="completed", due_in_ms=0)
        assert await compact(bench, busy) == StillOpen(busy.head.run_id, "completed", None)
        [rewound] = await family_of(bench, (user,))
        await finish(bench, rewound)
        await store.park(rewound.head.rid, (await bench.again(rewound.head)).revision, "store-behind")
        assert await compact(bench, rewound) == StillOpen(rewound.head.run_id, "completed", "store-behind")
        [waits] = await family_of(bench, (user,))
        await bench.suspended(waits.head, item("i"))
        assert await compact(bench, waits) == StillOpen(waits.head.run_id, "suspended", None)
        assert [row for row in await store.budget_audit(user) if row.action == "compacted"] == []

    async def test_a_child_is_compacted_before_its_parent_has_ended(self, store: RunStore) -> None:
        """Its own part alone; what the others spent is done with them."""
        bench = Bench(store)
        user = f"user:{bench.scope}"
        parent, one, two = await family_of(bench, (user,), "a", "b")
        for run in (one, two, two):
            await end_call(bench, run, f"q{run.head.run_id}{(await bench.again(run.head)).revision}", "settled")
        await finish(bench, one)
        before = await totals(bench, (user, *two.scopes, *one.scopes))
        assert await compact(bench, one) == LedgerCompaction(1, 1, 0, 0, 0)
        assert await totals(bench, (user, *two.scopes, *one.scopes)) == before
        await finish(bench, two, parent)
        assert await compact(bench, parent) == LedgerCompaction(3, 2, 0, 0, 0)
        assert await totals(bench, (user, *two.scopes, *one.scopes)) == before

    async def test_a_swarm_is_compacted_with_its_tasks(self, store: RunStore) -> None:
        """Once all of them have ended; also those that never began."""
        bench = Bench(store)
        org = f"org:{bench.scope}"
        swarm = await bench.swarm({"a": (), "b": ("a",)}, slots=1)
        await swarm.fill()
        await end_call(bench, Charged(await swarm.head("a"), (org,)), "1", "settled")
        await bench.applied(await swarm.own_head(), status="stopped", due_in_ms=None)
        found = await store.compact_ledger(bench.scope, swarm.run_id, actor="ops")
        assert isinstance(found, StillOpen)
        assert found.run_id in {run.run_id for run in swarm.runs.values()}
        await swarm.end("a", "failed")
        await store.block_downstream(swarm.rid, 100)
        before = await totals(bench, (org,))
        assert await store.compact_ledger(bench.scope, swarm.run_id, actor="ops") == LedgerCompaction(3, 1, 0, 0, 0)
        assert await totals(bench, (org,)) == before

    async def test_there_is_no_such_run(self, store: RunStore) -> None:
        """Under that name in that scope."""
        bench, other = Bench(store), Bench(store)
        [run] = await family_of(bench, ())
        await finish(bench, run)
        assert await store.compact_ledger(bench.scope, "nobody", actor="ops") is None
        assert await store.compact_ledger(other.scope, run.head.run_id, actor="ops") is None

    async def test_a_compacted_run_is_pruned_like_any_other(self, store: RunStore) -> None:
        """What others share counts as before, and a run that comes later under its name has nothing of it."""
        bench = Bench(store)
        user = f"user:{bench.scope}"
        [run] = await family_of(bench, (user,))
        for number, outcome in enumerate(("settled", "released", "unknown")):
            await end_call(bench, run, f"q{number}", outcome)
        await finish(bench, run)
        await compact(bench, run)
        spent = [(use.model, use.spent, use.unknown) for use in await store.usage(user)], await store.balance(user)
        assert await store.prune(older_ms=-1, status=("completed",), scope=bench.scope, limit=10) == 1
        assert ([(use.model, use.spent, use.unknown) for use in await store.usage(user)], await store.balance(user)) == spent
        assert await store.balance(run.scopes[0]) is None
        assert await store.usage(run.scopes[0]) == ()
        assert await compact(bench, run) is None
