"""Listings: filters, pages, sums by tag."""

from __future__ import annotations

from dataclasses import replace

from deuz_workers.ports.store import RunQuery, RunStore, TagCost
from deuz_workers.testing.store_conformance_bench import Bench, item


class ListingConformance:
    """`list_runs`, `cost_by_tag`."""

    async def _listed(self, bench: Bench, **query: object) -> set[str]:
        page = await bench.store.list_runs(replace(RunQuery(scope=bench.scope), **query))
        assert page.cursor is None
        return {head.run_id for head in page.heads}

    async def test_every_filter_must_hold(self, store: RunStore) -> None:
        """Scope, status, kind, agent, queue, tags and parking narrow the list, alone and together."""
        bench = Bench(store)
        blue = await bench.start(tags={"team": "blue", "env": "test"})
        red = await bench.start(tags={"team": "red", "env": "test"}, agent="editor")
        assert await bench.store.tags(blue.scope, blue.run_id) == {"team": "blue", "env": "test"}
        assert await bench.store.tags("another", blue.run_id) == {}
        other_queue = await bench.start(queue=f"{bench.queue}-b")
        waiting = await bench.suspended(await bench.start(), item("a"))
        done = await bench.start()
        await bench.applied(done, status="completed", due_in_ms=None)
        parked = await bench.start()
        await store.park(parked.rid, 0, "reconciliation")
        swarm = await bench.swarm({"a": ()})
        task = swarm.runs["a"].run_id
        everyone = {head.run_id for head in (blue, red, other_queue, waiting, done, parked)} | {swarm.run_id, task}
        assert await self._listed(bench) == everyone
        assert await self._listed(bench, scope=f"{bench.scope}/nobody") == set()
        assert await self._listed(bench, status=("completed",)) == {done.run_id}
        assert await self._listed(bench, status=("suspended",)) == {waiting.run_id, parked.run_id}
        assert await self._listed(bench, status=("suspended", "completed")) == {waiting.run_id, parked.run_id, done.run_id}
        assert parked.run_id not in await self._listed(bench, status=("queued",))
        assert await self._listed(bench, kind=("swarm",)) == {swarm.run_id}
        assert await self._listed(bench, agent="editor") == {red.run_id}
        assert await self._listed(bench, queue=f"{bench.queue}-b") == {other_queue.run_id}
        assert await self._listed(bench, tags={"env": "test"}) == {blue.run_id, red.run_id}
        assert await self._listed(bench, tags={"env": "test", "team": "blue"}) == {blue.run_id}
        assert await self._listed(bench, tags={"team": "green"}) == set()
        assert await self._listed(bench, parked=True) == {parked.run_id}
        assert await self._listed(bench, parked=False) == everyone - {parked.run_id}
        assert await self._listed(bench, tags={"env": "test"}, agent="editor", status=("queued",)) == {red.run_id}

    async def test_a_listed_head_is_the_stored_one(self, store: RunStore) -> None:
        """A page carries whole heads, those of a read by name."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"))
        page = await store.list_runs(RunQuery(scope=bench.scope))
        assert page.heads == (head,)

    async def test_pages_return_each_run_once(self, store: RunStore) -> None:
        """Followed by cursor, pages of any size list every run once, newest change of status first."""
        bench = Bench(store)
        heads = [await bench.start() for _ in range(11)]
        await bench.applied(heads[0])
        for limit in (1, 3, 11, 50):
            seen: list[str] = []
            cursor: str | None = None
            while True:
                page = await store.list_runs(RunQuery(scope=bench.scope, limit=limit, cursor=cursor))
                assert len(page.heads) <= limit
                seen += [head.run_id for head in page.heads]
                cursor = page.cursor
                if cursor is None:
                    break
            assert sorted(seen) == sorted(head.run_id for head in heads)

    async def test_the_newest_change_of_status_comes_first(self, store: RunStore) -> None:
        """A run moves to the front when its status changes."""
        bench = Bench(store)
        old = await bench.start()
        for _ in range(3):
            await bench.start()
        before = await store.now_ms()
        while await store.now_ms() <= before:
            pass  # the clock of the store counts milliseconds
        await bench.applied(old, status="completed", due_in_ms=None)
        page = await store.list_runs(RunQuery(scope=bench.scope, limit=1))
        assert [head.run_id for head in page.heads] == [old.run_id]
        assert page.cursor is not None

    async def test_costs_are_summed_by_tag(self, store: RunStore) -> None:
        """Tokens and cost of the runs with a tag, by its value; an unknown cost makes the sum unknown."""
        bench = Bench(store)
        for value, tokens, cost in (("blue", 10, 1), ("blue", 20, 2), ("red", 5, None), ("red", 1, 7)):
            head = await bench.start(tags={"team": value})
            await bench.applied(head, tokens=tokens, cost_micros=cost)
        await bench.start(tags={"other": "x"})
        costs = {cost.value: cost for cost in await store.cost_by_tag(bench.scope, "team")}
        assert costs == {"blue": TagCost("blue", 2, 30, 3), "red": TagCost("red", 2, 6, None)}
        assert await store.cost_by_tag(bench.scope, "nothing") == ()
        assert {"blue", "red"} <= {cost.value for cost in await store.cost_by_tag(None, "team")}
