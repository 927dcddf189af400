"""The schedule of runs: sweep, postponing, unclean ends, parking."""

from __future__ import annotations

import asyncio

from deuz_workers.core.change import Bell, RevisionConflict
from deuz_workers.ports.store import RunStore, When
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench, item, message


class ScheduleConformance:
    """`sweep`, `postpone`, `record_unclean_end`, `park`."""

    async def test_the_sweep_finds_a_due_run_once(self, store: RunStore) -> None:
        """A due run is taken by one pass and moved on; its bell says all that a doorbell needs."""
        bench = Bench(store)
        head = await bench.start(agent="editor", priority=5)
        bells = await store.sweep(limit=10, ttl_ms=HOUR_MS, queues=[bench.queue])
        assert bells == (Bell(bench.scope, head.run_id, bench.queue, 0, 5, "editor"),)
        assert await bench.swept() == []
        assert (await bench.again(head)).has_work

    async def test_a_row_comes_back_after_its_time(self, store: RunStore) -> None:
        """Moved on by nothing, a due run is found by the next pass again: a lost doorbell costs latency, never a run."""
        bench = Bench(store)
        head = await bench.start()
        for _ in range(3):
            assert await bench.swept(ttl_ms=0) == [head.run_id]

    async def test_simultaneous_sweeps_share_the_rows(self, store: RunStore) -> None:
        """Four passes at once over twenty due runs take each run exactly once."""
        bench = Bench(store)
        heads = [await bench.start() for _ in range(20)]
        taken: list[str] = []
        while batches := [batch for batch in await asyncio.gather(*(bench.swept(limit=3) for _ in range(4))) if batch]:
            assert all(len(batch) <= 3 for batch in batches)
            taken += [run_id for batch in batches for run_id in batch]
        assert sorted(taken) == sorted(head.run_id for head in heads)

    async def test_the_sweep_keeps_to_its_queues(self, store: RunStore) -> None:
        """Only rows of the given queues are taken; the others stay for their own pool."""
        bench, other = Bench(store), Bench(store)
        head, elsewhere = await bench.start(), await other.start()
        assert await bench.swept() == [head.run_id]
        bells = await store.sweep(limit=10, ttl_ms=HOUR_MS, queues=[bench.queue, other.queue])
        assert [bell.run_id for bell in bells] == [elsewhere.run_id]

    async def test_what_has_no_work_is_not_swept(self, store: RunStore) -> None:
        """A future start, a later due, a suspension, a parked and a finished run are not found."""
        bench = Bench(store)
        await bench.start(start=When(in_ms=HOUR_MS))
        await bench.applied(await bench.start(), due_in_ms=HOUR_MS)
        await bench.suspended(await bench.start(), item("a"))
        assert await store.park((await bench.start()).rid, 0, "reconciliation")
        await bench.applied(await bench.start(), status="completed", due_in_ms=None)
        assert await bench.swept() == []

    async def test_a_passed_deadline_is_swept(self, store: RunStore) -> None:
        """A run whose deadline or `start_before` has passed is found although nothing else wakes it."""
        bench = Bench(store)
        queued = await bench.start(start=When(in_ms=HOUR_MS), start_before=When(at_ms=1))
        assert await bench.swept() == [queued.run_id]

    async def test_postponing_keeps_the_work(self, store: RunStore) -> None:
        """A postponed run is not found before its time, although it is as due as before."""
        bench = Bench(store)
        head = await bench.start()
        await store.postpone(bench.scope, head.run_id, HOUR_MS)
        assert await bench.swept() == []
        assert (await bench.again(head)).has_work
        await store.postpone(bench.scope, head.run_id, 0)
        assert await bench.swept() == [head.run_id]

    async def test_runs_that_were_put_off_are_looked_at_when_somebody_can_execute_them(self, store: RunStore) -> None:
        """Those of the named agents and queues that have work; nothing about due times changes."""
        bench = Bench(store)
        mine = await bench.start(agent="mine")
        other, later = await bench.start(agent="other"), await bench.start(agent="mine", start=When(in_ms=HOUR_MS))
        parked = await bench.start(agent="mine")
        await store.park(parked.rid, 0, "quarantine")
        for head in (mine, other, later):
            await store.put_off(bench.scope, head.run_id, HOUR_MS, HOUR_MS)
        assert await store.hasten(["elsewhere"], ["mine"], 100) == 0
        assert await bench.swept() == []
        assert await store.hasten([bench.queue], ["mine", "nobody"], 100) == 1
        assert await store.hasten([bench.queue], ["mine", "nobody"], 100) == 0
        assert await bench.swept() == [mine.run_id]

    async def test_an_unclean_end_is_counted_and_backs_off(self, store: RunStore) -> None:
        """Every unclean end raises `attempts` and moves the due time on; revision and envelope stay."""
        bench = Bench(store)
        head = await bench.start()
        assert await store.record_unclean_end(head.rid, 0, HOUR_MS) == 1
        assert await store.record_unclean_end(head.rid, 0, HOUR_MS) == 2
        now = await bench.again(head)
        assert (now.revision, now.status, now.attempts, now.has_work) == (0, "queued", 2, False)
        assert now.due_in_ms is not None
        assert HOUR_MS / 2 < now.due_in_ms <= HOUR_MS
        assert await bench.swept() == []

    async def test_an_unclean_end_of_a_moved_run_is_not_counted(self, store: RunStore) -> None:
        """If the revision moved, the run is somebody's at work: nothing is counted and nothing delayed."""
        bench = Bench(store)
        head = await bench.start()
        await bench.applied(head)
        assert await store.record_unclean_end(head.rid, 0, HOUR_MS) is None
        now = await bench.again(head)
        assert (now.attempts, now.has_work) == (0, True)

    async def test_a_parked_run_has_no_work(self, store: RunStore) -> None:
        """Parking takes a due run out of the schedule and keeps status and revision as stored."""
        bench = Bench(store)
        head = await bench.start()
        assert await store.park(head.rid, 0, "store went backwards")
        now = await bench.again(head)
        assert (now.parked, now.status, now.revision, now.has_work) == ("store went backwards", "queued", 0, False)
        assert await bench.swept() == []

    async def test_a_parked_run_is_not_written(self, store: RunStore) -> None:
        """A frozen executor that wakes after the parking gets a conflict; after a retry the run goes on."""
        bench = Bench(store)
        head = await bench.start()
        assert await store.park(head.rid, 0, "reconciliation")
        late = await bench.commit(head, messages=(message(0),), last_seq=0)
        assert late == RevisionConflict(0)
        await store.add_note(bench.scope, head.run_id, "retry", "{}")
        await bench.applied(await bench.again(head))

    async def test_parking_needs_the_revision_and_no_unseen_input(self, store: RunStore) -> None:
        """A run that moved on, or that has an input to look at, is not parked."""
        bench = Bench(store)
        head = await bench.start()
        await bench.applied(head)
        assert not await store.park(head.rid, 0, "late")
        await store.add_note(bench.scope, head.run_id, "message", "{}")
        assert not await store.park(head.rid, 1, "unseen")
        assert (await bench.again(head)).parked is None

    async def test_a_run_parked_as_another_revision_fits_no_earlier_commit(self, store: RunStore) -> None:
        """Nobody who has the old revision, or the commit that made it, can write; an ended run is refused."""
        bench = Bench(store)
        head = await bench.start()
        await bench.applied(head)
        stored = await bench.again(head)
        assert await store.park(head.rid, 1, "reconciliation")
        assert not await store.park(head.rid, 1, "store went backwards", as_revision=1)
        assert await store.park(head.rid, 1, "store went backwards", as_revision=500)
        now = await bench.again(head)
        assert (now.parked, now.status, now.revision, now.commit_id) == ("store went backwards", "running", 500, None)
        assert now.body == stored.body
        await store.add_note(bench.scope, head.run_id, "retry", "{}")
        assert await bench.commit(stored, messages=(message(0),), last_seq=0) == RevisionConflict(500)
        ended = await bench.applied(await bench.again(head), status="completed", due_in_ms=None)
        assert ended.revision == 501
        assert not await store.park(head.rid, 501, "store went backwards", as_revision=9_000)

    async def test_retry_reconcile_and_cancel_clear_the_parking(self, store: RunStore) -> None:
        """The three notes a person sends about a parked run give it work again."""
        bench = Bench(store)
        for kind in ("retry", "reconcile", "cancel"):
            head = await bench.start()
            await store.park(head.rid, 0, "reconciliation")
            assert await store.add_note(bench.scope, head.run_id, kind, "{}") is not None
            now = await bench.again(head)
            assert (now.parked, now.has_work) == (None, True)

    async def test_an_ordinary_input_waits_beside_the_parking(self, store: RunStore) -> None:
        """A message to a parked run is kept, and looked at when somebody cleared the parking."""
        bench = Bench(store)
        head = await bench.start()
        await store.park(head.rid, 0, "reconciliation")
        await store.add_note(bench.scope, head.run_id, "message", "{}")
        now = await bench.again(head)
        assert (now.parked, now.has_work, now.wake_seq) == ("reconciliation", False, 1)
        assert await bench.swept() == []
        await store.add_note(bench.scope, head.run_id, "retry", "{}")
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert loaded.head.has_work
        assert [note.kind for note in loaded.notes] == ["message", "retry"]

    async def test_a_parked_run_is_not_woken_by_its_items(self, store: RunStore) -> None:
        """Answering the last item of a parked run stores the answer and rings nobody."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"))
        assert await store.park(head.rid, 1, "quarantine")
        answer = await store.answer_item(bench.scope, head.run_id, "a", "yes")
        assert answer is not None
        assert (answer.stored, answer.bell) == (True, None)
        assert not (await bench.again(head)).has_work
