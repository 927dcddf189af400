"""Runs that go, and runs that come from elsewhere: pruning, inserting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deuz_workers.core.change import FINAL, Head, MessageRow, ReceiptRow, Reserve, RunStatus, Settle
from deuz_workers.core.names import run_scope_key
from deuz_workers.core.usage import Budget
from deuz_workers.ports.store import RunStore
from deuz_workers.ports.whole_run import JournalRow, WholeRun
from deuz_workers.testing.store_conformance_bench import ODD_TEXT, Bench, item, message, new_rid, receipt

ALL: tuple[RunStatus, ...] = ("completed", "stopped", "failed")


class LifecycleConformance:
    """`prune`, `insert_run`."""

    async def _prune(self, bench: Bench, status: Sequence[RunStatus] = ALL, older_ms: int = -1, limit: int = 100) -> int:
        """A negative age: whatever ended until now."""
        return await bench.store.prune(older_ms=older_ms, status=status, scope=bench.scope, limit=limit)

    async def _ended(self, bench: Bench, status: RunStatus = "completed", **given: Any) -> Head:
        head = await bench.start(**given)
        await bench.applied(head, status=status, due_in_ms=None)
        return await bench.again(head)

    async def test_ended_runs_are_pruned_and_no_others(self, store: RunStore) -> None:
        """Of the given statuses; what is queued, at work, suspended, parked or has work after its end stays."""
        bench = Bench(store)
        ended = {status: await self._ended(bench, status) for status in ALL}
        queued = await bench.start()
        running = await bench.start()
        await bench.applied(running)
        waiting = await bench.suspended(await bench.start(), item("a"))
        parked = await bench.start()
        await store.park(parked.rid, 0, "reconciliation")
        busy = await bench.start()
        await bench.applied(busy, status="completed", due_in_ms=0)
        assert await self._prune(bench, ("completed",)) == 1
        assert await store.head(bench.scope, ended["completed"].run_id) is None
        assert await self._prune(bench) == 2
        for head in (queued, running, waiting, parked, busy):
            assert (await bench.again(head)).run_id == head.run_id
        assert await self._prune(bench) == 0

    async def test_age_counts_from_the_end(self, store: RunStore) -> None:
        """A run that ended a moment ago stays while older ones are meant."""
        bench = Bench(store)
        head = await self._ended(bench)
        assert await self._prune(bench, older_ms=3_600_000) == 0
        assert (await bench.again(head)).status == "completed"

    async def test_a_batch_takes_the_oldest(self, store: RunStore) -> None:
        """So many, and the rest the next time; of other scopes none."""
        bench, other = Bench(store), Bench(store)
        heads = [await self._ended(bench) for _ in range(5)]
        stays = await self._ended(other)
        assert [await self._prune(bench, limit=2) for _ in range(4)] == [2, 2, 1, 0]
        assert [await store.head(bench.scope, head.run_id) for head in heads] == [None] * 5
        assert (await other.again(stays)).status == "completed"

    async def test_a_pruned_run_leaves_nothing(self, store: RunStore) -> None:
        """Neither history nor journal, tags, notes or budget; its name and key are free again."""
        bench = Bench(store)
        run = bench.run(tags={"team": "blue"}, idempotency_key=f"{bench.queue}-key", budget=Budget(tokens=50))
        assert (await store.create(run)).created
        head = await bench.head(run.run_id)
        scope = run_scope_key(run.rid)
        await store.add_note(bench.scope, run.run_id, "message", "{}")
        await bench.applied(head, reserve=Reserve("q", (scope,), 20, None))
        await bench.applied(
            await bench.again(head),
            status="completed",
            due_in_ms=None,
            messages=(message(0),),
            receipts=(receipt(1, "a"),),
            journal=("{}",),
            settle=(Settle("q", (scope,), "unknown"),),
        )
        assert await self._prune(bench) == 1
        assert await store.load(bench.scope, run.run_id) is None
        assert await store.balance(scope) is None
        assert await store.journal(bench.scope, run.run_id, 0, 10) == ()
        assert await store.tags(bench.scope, run.run_id) == {}
        again = replace(run, rid=new_rid(), tags={}, budget=None)
        assert (await store.create(again)).created
        loaded = await store.load(bench.scope, run.run_id)
        assert loaded is not None
        assert (loaded.messages, loaded.receipts, loaded.notes) == ((), (), ())

    async def test_what_a_shared_scope_counts_stays_counted(self, store: RunStore) -> None:
        """Spent, held and unknown of a scope that others use are what they were, also after the next reservation."""
        bench = Bench(store)
        shared = f"{bench.scope}:shared"
        await store.set_budget(shared, Budget(tokens=1_000))
        head = await bench.start()
        for number, outcome in ((1, "settled"), (2, "unknown"), (3, "released")):
            await bench.applied(await bench.again(head), reserve=Reserve(f"q{number}", (shared,), 100, None))
            settle = Settle(f"q{number}", (shared,), outcome, 30 if outcome == "settled" else 0)  # type: ignore[arg-type]
            await bench.applied(await bench.again(head), settle=(settle,))
        await bench.applied(await bench.again(head), status="completed", due_in_ms=None)
        before = await store.balance(shared)
        assert await self._prune(bench) == 1
        assert await store.balance(shared) == before
        other = await bench.start()
        await bench.applied(other, reserve=Reserve("q", (shared,), 10, None))
        after = await store.balance(shared)
        assert after is not None
        assert (after.spent.tokens, after.unknown.tokens, after.held.tokens) == (30, 100, 10)

    async def test_a_swarm_goes_with_its_tasks(self, store: RunStore) -> None:
        """Not before all of them have ended, and none of them alone."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ("a",)})
        await swarm.fill()
        await swarm.end("a")
        assert await self._prune(bench) == 0
        await swarm.fill()
        await swarm.end("b")
        assert await self._prune(bench) == 0
        await bench.applied(await swarm.own_head(), status="completed", due_in_ms=None)
        assert await self._prune(bench) == 1
        assert await store.head(bench.scope, swarm.run_id) is None
        assert [await store.head(bench.scope, run.run_id) for run in swarm.runs.values()] == [None, None]
        assert await store.swarm_snapshot(swarm.rid) is None

    async def test_an_inserted_run_is_what_was_given(self, store: RunStore) -> None:
        """Head, history, receipts, items, journal and tags, with the oddest texts; it is not due unless it says so."""
        bench = Bench(store)
        run = WholeRun(
            new_rid(),
            bench.scope,
            bench.name(),
            "agent",
            "writer",
            ODD_TEXT[1],
            "suspended",
            1,
            (MessageRow(0, ODD_TEXT[0]), MessageRow(1, ODD_TEXT[4])),
            (receipt(1, "a"), ReceiptRow(1, "a", 1, "completed", ODD_TEXT[1])),
            (JournalRow(1, ODD_TEXT[1], 1_700_000_000_000), JournalRow(2, "{}", 1_700_000_000_001)),
            (item("a", answer="{}"), item("b", expires_in_ms=60_000)),
            bench.queue,
            3,
            "finalizing",
            2,
            9,
            4,
            True,
            7,
            None,
            2,
            {"team": "blue"},
            created_at_ms=1_700_000_000_000,
            parked="imported",
        )
        assert (await store.insert_run(run)).created
        loaded = await store.load(bench.scope, run.run_id)
        assert loaded is not None
        head = loaded.head
        assert (loaded.messages, loaded.receipts) == (run.messages, run.receipts)
        for name in (
            "rid",
            "agent",
            "queue",
            "priority",
            "body",
            "status",
            "phase",
            "version",
            "revision",
            "epoch",
            "last_seq",
        ):
            assert getattr(head, name) == getattr(run, name), name
        for name in ("mid_step", "tokens", "cost_micros", "model_step", "created_at_ms", "parked"):
            assert getattr(head, name) == getattr(run, name), name
        assert (head.journal_seq, head.open_items, head.has_work, head.wake_seq) == (2, 1, False, 0)
        assert [(one.item_id, one.answer) for one in loaded.items] == [("a", "{}"), ("b", None)]
        assert await store.journal(bench.scope, run.run_id, 0, 10) == run.journal
        assert await store.tags(bench.scope, run.run_id) == {"team": "blue"}
        await store.add_note(bench.scope, run.run_id, "retry", "{}")
        assert (await bench.head(run.run_id)).has_work

    async def test_an_inserted_run_takes_no_name(self, store: RunStore) -> None:
        """Of any scope; nothing is written then, and sent again the same run is found as created."""
        bench = Bench(store)
        there = await bench.start()
        run = WholeRun(new_rid(), f"{bench.scope}/other", there.run_id, "agent", "writer", "{}", "completed", -1, (), (), ())
        refused = await store.insert_run(run)
        assert (refused.created, refused.rid, refused.status) == (False, there.rid, "queued")
        assert (await bench.again(there)).body == there.body
        mine = replace(run, run_id=bench.name(), scope=bench.scope)
        assert [(await store.insert_run(mine)).created for _ in range(2)] == [True, True]

    async def test_an_inserted_run_that_is_due_is_swept(self, store: RunStore) -> None:
        """And can be written by whoever takes it."""
        bench = Bench(store)
        body, budget = "{}", Budget(tokens=5)
        run = WholeRun(new_rid(), bench.scope, bench.name(), "agent", "writer", body, "queued", -1, (), (), ())
        assert (await store.insert_run(replace(run, queue=bench.queue, is_due=True, budget=budget))).created
        assert await bench.swept() == [run.run_id]
        await bench.applied(await bench.head(run.run_id), messages=(message(0),))
        assert (await bench.head(run.run_id)).status not in FINAL
        balance = await store.balance(run_scope_key(run.rid))
        assert balance is not None
        assert balance.limit.tokens == 5
