"""In which order a sweep takes what waits (architecture D13), and how rows that nobody can run are put off."""

from __future__ import annotations

from deuz_workers.core.change import Head
from deuz_workers.core.unclean_ends import SUSPICIOUS_ENDS, quarantine_queue
from deuz_workers.ports.store import RunStore, When
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench, change_from, item


async def _start(bench: Bench, scope: str, **given: object) -> str:
    """A run of another scope in the queue of `bench`, younger than all before it; its run id."""
    before_ms = await bench.store.now_ms()
    while await bench.store.now_ms() == before_ms:
        pass
    run = bench.run(scope=f"{bench.scope}-{scope}", **given)
    assert (await bench.create(run)).created
    return run.run_id


async def _running(bench: Bench, scope: str) -> Head:
    """A run of that scope that has begun and is at work."""
    run_id = await _start(bench, scope)
    head = await bench.store.head(f"{bench.scope}-{scope}", run_id)
    assert head is not None
    await bench.store.commit(change_from(head))
    return head


async def _taken(bench: Bench, limit: int, *, spare: int = 0, from_shard: int = 0) -> list[str]:
    """Run ids in the order in which a pass takes them."""
    store = bench.store
    bells = await store.sweep(limit=limit, spare=spare, ttl_ms=HOUR_MS, queues=[bench.queue], from_shard=from_shard)
    return [bell.run_id for bell in bells]


class FeedingConformance:
    """`sweep`, `ripen`, `put_off`."""

    async def test_the_oldest_waits_no_longer_than_the_newer(self, store: RunStore) -> None:
        """Runs of one scope are taken by age."""
        bench = Bench(store)
        runs = [await _start(bench, "a") for _ in range(3)]
        assert await _taken(bench, 2) == runs[:2]
        assert await _taken(bench, 2) == runs[2:]

    async def test_a_higher_priority_goes_first(self, store: RunStore) -> None:
        """Over all scopes, and before anything is shared out."""
        bench = Bench(store)
        low = [await _start(bench, "a", priority=-5), await _start(bench, "b")]
        high = [await _start(bench, "a", priority=7), await _start(bench, "a", priority=7)]
        assert sorted(await _taken(bench, 2)) == sorted(high)
        assert await _taken(bench, 5) == low[::-1]

    async def test_scopes_take_turns(self, store: RunStore) -> None:
        """A scope that came later and asks for little gets its share of the places beside one with a backlog."""
        bench = Bench(store)
        for _ in range(30):
            await _start(bench, "a")
        late = [await _start(bench, "b"), await _start(bench, "c")]
        assert set(late) < set(await _taken(bench, 3))

    async def test_the_scope_of_which_least_runs_goes_first(self, store: RunStore) -> None:
        """Who has two at work waits until the other has as many."""
        bench = Bench(store)
        for _ in range(2):
            await _running(bench, "a")
        busy = [await _start(bench, "a") for _ in range(2)]
        other = [await _start(bench, "b") for _ in range(3)]
        assert await _taken(bench, 2) == other[:2]
        assert sorted(await _taken(bench, 9)) == sorted([*busy, other[2]])

    async def test_a_full_queue_lets_the_first_of_a_scope_in(self, store: RunStore) -> None:
        """Spare places are for scopes of which nothing runs, one each, whatever the priority of others."""
        bench = Bench(store)
        await _running(bench, "busy")
        await _start(bench, "busy", priority=9)
        fresh = [await _start(bench, "b"), await _start(bench, "c")]
        assert await _taken(bench, 0) == []
        assert sorted(await _taken(bench, 0, spare=5)) == sorted(fresh)
        for scope in "de":
            await _start(bench, scope)
            await _start(bench, scope)
        assert len(await _taken(bench, 0, spare=1)) == 1
        assert len(await _taken(bench, 0, spare=9)) == 1  # of the other one: somebody was rung for the first

    async def test_what_has_begun_goes_before_what_has_not(self, store: RunStore) -> None:
        """A lost doorbell of a run at work is rung again first, whatever waits."""
        bench = Bench(store)
        for _ in range(3):
            await bench.start(priority=9)
        begun = await bench.start()
        await bench.applied(begun)
        await store.postpone(bench.scope, begun.run_id, 0)
        assert (await _taken(bench, 2))[0] == begun.run_id

    async def test_a_pass_begins_at_any_shard_and_goes_around(self, store: RunStore) -> None:
        """Wherever it begins, all scopes are looked through if they are few."""
        bench = Bench(store)
        for from_shard in (0, 100, 255):
            runs = [await _start(bench, f"{from_shard}-{scope}") for scope in range(6)]
            assert sorted(await _taken(bench, 10, from_shard=from_shard)) == sorted(runs)

    async def test_what_gets_no_place_is_found_by_the_next_pass(self, store: RunStore) -> None:
        """Starts that come due together, more than there is room for: each is taken once, by whichever pass has room."""
        bench = Bench(store)
        runs = [await _start(bench, "a", start=When(in_ms=1)) for _ in range(5)]  # each has come due when the next one is made
        runs += [await _start(bench, "a") for _ in range(5)]
        taken = [run_id for _ in range(5) for run_id in await _taken(bench, 2)]
        assert sorted(taken) == sorted(runs)
        assert await _taken(bench, 10) == []

    async def test_a_run_that_its_creator_rings_for_is_looked_at_later(self, store: RunStore) -> None:
        """`ring_in_ms` on, in case that the ringer dies."""
        bench = Bench(store)
        run = bench.run()
        await store.create(run, ring_in_ms=HOUR_MS)
        assert await _taken(bench, 10) == []
        assert (await bench.head(run.run_id)).has_work
        await store.postpone(bench.scope, run.run_id, 0)
        assert await _taken(bench, 10) == [run.run_id]

    async def test_what_nobody_rang_for_may_be_fed_at_once(self, store: RunStore) -> None:
        """Whoever found the queue full leaves the ringing to the sweep, also for runs that have begun."""
        bench = Bench(store)
        await store.create(bench.run(run_id="x" + bench.queue), ring_in_ms=HOUR_MS)
        begun = await bench.start()
        await bench.applied(begun)
        ended = await bench.start()
        await bench.applied(ended, status="completed", due_in_ms=None)
        await store.ripen([(bench.scope, "x" + bench.queue), (bench.scope, begun.run_id), (bench.scope, ended.run_id)])
        assert sorted(await _taken(bench, 10)) == sorted(["x" + bench.queue, begun.run_id])
        assert await _taken(bench, 10) == []

    async def test_what_became_idle_is_not_rung(self, store: RunStore) -> None:
        """A run that suspended after somebody left its ringing to the sweep only gets its own time back."""
        bench = Bench(store)
        head = await bench.start()
        await bench.suspended(head, item("a", expires_in_ms=HOUR_MS))
        await store.ripen([(bench.scope, head.run_id)])
        assert await _taken(bench, 10, spare=10) == []

    async def test_a_suspicious_run_that_waits_belongs_to_the_quarantine_queue(self, store: RunStore) -> None:
        """It is not fed to the others, not even when somebody asks for it, and found by who takes from that queue."""
        bench = Bench(store)
        head = await bench.start()
        for _ in range(SUSPICIOUS_ENDS):
            await store.record_unclean_end(head.rid, 0, 0)
        await store.ripen([(bench.scope, head.run_id)])
        assert await _taken(bench, 10, spare=10) == []
        alone = quarantine_queue(bench.queue)
        bells = await store.sweep(limit=1, ttl_ms=HOUR_MS, queues=[bench.queue, alone])
        assert [(bell.run_id, bell.queue) for bell in bells] == [(head.run_id, alone)]

    async def test_what_nobody_can_run_is_put_off_ever_longer(self, store: RunStore) -> None:
        """The first look is soon, each further one in a row twice as far, up to the bound; it stays due."""
        bench = Bench(store)
        head = await bench.start()
        await store.put_off(bench.scope, head.run_id, 0, HOUR_MS)
        assert await _taken(bench, 10) == [head.run_id]
        await store.put_off(bench.scope, head.run_id, 1_000, HOUR_MS)
        assert await _taken(bench, 10) == []
        for _ in range(40):  # far beyond any overflow
            await store.put_off(bench.scope, head.run_id, HOUR_MS, HOUR_MS)
        assert (await bench.again(head)).has_work
        await store.put_off(bench.scope, head.run_id, 1, 0)
        assert await _taken(bench, 10) == [head.run_id]
