"""Swarms: creation as a whole, slots, endings, and counters that equal counts at every moment."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from deuz_workers.core.change import Applied
from deuz_workers.errors import StoreError
from deuz_workers.ports.store import NewSwarm, RunStore
from deuz_workers.ports.swarm_rows import SwarmCounters
from deuz_workers.testing.store_conformance_bench import Bench, SwarmBench, change_from, item

DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
EVERY = 100_000


class SwarmConformance:
    """`create` of a swarm, `fill_slots`, task endings, `settle_swarm`, `task_results`, `swarm_snapshot`."""

    async def test_a_swarm_is_created_with_all_its_tasks(self, store: RunStore) -> None:
        """Tasks without predecessors are ready, the others pending; every task's run exists and none is due."""
        bench = Bench(store)
        swarm = await bench.swarm(DIAMOND, slots=3)
        snapshot = await store.swarm_snapshot(swarm.rid)
        assert snapshot is not None
        assert (snapshot.rid, snapshot.slots, snapshot.open, snapshot.ready, snapshot.running) == (swarm.rid, 3, 4, 1, 0)
        assert {task.task_id: (task.status, task.waiting, task.depends_on) for task in snapshot.tasks} == {
            "a": ("ready", 0, ()),
            "b": ("pending", 1, ("a",)),
            "c": ("pending", 1, ("a",)),
            "d": ("pending", 2, ("b", "c")),
        }
        for task in snapshot.tasks:
            assert (task.run_id, task.kind, task.agent) == (
                swarm.runs[task.task_id].run_id,
                "agent",
                f"agent-{task.task_id}",
            )
            assert (task.tokens, task.cost_micros, task.started_at_ms, task.ended_at_ms) == (0, 0, None, None)
            head = await swarm.head(task.task_id)
            assert (head.swarm_rid, head.task_id, head.status, head.has_work) == (swarm.rid, task.task_id, "queued", False)
        assert [run_id for run_id in await bench.swept() if run_id != swarm.run_id] == []

    async def test_a_swarm_is_created_whole_or_not_at_all(self, store: RunStore) -> None:
        """If one task's run id is taken, neither the swarm nor any other task is written."""
        bench = Bench(store)
        taken = await bench.start()
        run = bench.run(kind="swarm")
        swarm = bench.new_swarm(DIAMOND, 2)
        last = swarm.tasks[-1]
        broken = NewSwarm(2, (*swarm.tasks[:-1], replace(last, run=replace(last.run, run_id=taken.run_id))))
        with suppress(StoreError):  # refused or not created: what matters is below
            assert not (await store.create(run, broken)).created
        assert await store.head(bench.scope, run.run_id) is None
        assert await store.swarm_snapshot(run.rid) is None
        assert await store.head(bench.scope, swarm.tasks[0].run.run_id) is None
        assert (await store.create(run, swarm)).created

    async def test_the_same_swarm_again_writes_nothing(self, store: RunStore) -> None:
        """A second create under the same run id answers the first, and the tasks stay as they are."""
        bench = Bench(store)
        swarm = await bench.swarm(DIAMOND)
        await swarm.fill()
        again = await store.create(bench.run(kind="swarm", run_id=swarm.run_id), bench.new_swarm(DIAMOND, 9))
        assert (again.created, again.rid) == (False, swarm.rid)
        assert (await swarm.statuses())["a"] == "running"

    async def test_an_unknown_swarm_is_nothing(self, store: RunStore) -> None:
        """A run that is no swarm has no snapshot, no slots, no cascade and no results."""
        head = await Bench(store).start()
        assert await store.swarm_snapshot(head.rid) is None
        assert await store.fill_slots(head.rid) == ()
        assert await store.settle_swarm(head.rid) is None
        assert await store.task_results(head.rid, "a") == ()

    async def test_slots_are_filled_in_rank_order(self, store: RunStore) -> None:
        """As many ready tasks start as there are free slots, lowest rank first; their runs are due and rung."""
        bench = Bench(store)
        swarm = await bench.swarm({"e": (), "d": (), "c": (), "b": ()}, slots=2)
        assert await swarm.fill() == ["e", "d"]
        assert await swarm.fill() == []
        assert await swarm.statuses() == {"e": "running", "d": "running", "c": "ready", "b": "ready"}
        assert (await swarm.head("e")).has_work
        assert not (await swarm.head("c")).has_work
        await swarm.end("d")
        assert await swarm.fill() == ["c"]

    async def test_a_filled_task_is_found_by_the_sweep(self, store: RunStore) -> None:
        """A started task whose doorbell got lost is work like any other run's."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": ()})
        await swarm.fill()
        await store.postpone(bench.scope, swarm.runs["a"].run_id, 0)
        assert swarm.runs["a"].run_id in await bench.swept()

    async def test_an_ending_makes_dependents_ready(self, store: RunStore) -> None:
        """`completed` lowers `waiting` of the direct dependents; one that waits for nothing more becomes ready."""
        swarm = await Bench(store).swarm(DIAMOND)
        await swarm.fill()
        outcome = await swarm.end("a")
        assert outcome.swarm_open == 3
        assert await swarm.statuses() == {"a": "completed", "b": "ready", "c": "ready", "d": "pending"}
        assert await swarm.fill() == ["b", "c"]
        await swarm.end("b")
        assert (await swarm.statuses())["d"] == "pending"
        assert (await swarm.end("c")).swarm_open == 1
        assert (await swarm.statuses())["d"] == "ready"

    async def test_simultaneous_endings_free_a_common_dependent(self, store: RunStore) -> None:
        """Ten predecessors that end at once make their dependent ready, and each slot is given back once."""
        swarm = await Bench(store).swarm(
            {**{str(n): () for n in range(10)}, "join": tuple(str(n) for n in range(10))}, slots=10
        )
        await swarm.fill()
        outcomes = await asyncio.gather(*(swarm.end(str(n)) for n in range(10)))
        assert sorted(outcome.swarm_open or 0 for outcome in outcomes) == list(range(1, 11))
        assert (await swarm.statuses())["join"] == "ready"
        assert await swarm.fill() == ["join"]

    async def test_simultaneous_fills_start_a_task_once(self, store: RunStore) -> None:
        """Fills that run at once never start a task twice and never exceed the slots."""
        swarm = await Bench(store).swarm({str(n): () for n in range(12)}, slots=5)
        started = [task for filled in await asyncio.gather(*(swarm.fill() for _ in range(6))) for task in filled]
        started += await swarm.fill()
        assert sorted(started, key=int) == ["0", "1", "2", "3", "4"]
        assert list((await swarm.statuses()).values()).count("running") == 5

    async def test_a_lost_revision_ends_no_task(self, store: RunStore) -> None:
        """An ending whose commit is refused leaves task, dependents and counters as they were."""
        bench = Bench(store)
        swarm = await bench.swarm(DIAMOND)
        await swarm.fill()
        change = await swarm.change("a", "completed", "completed")
        await bench.applied(await swarm.head("a"))
        assert not isinstance(await store.commit(change), Applied)
        assert (await swarm.statuses())["a"] == "running"

    async def test_the_same_ending_offered_again_counts_once(self, store: RunStore) -> None:
        """An ending whose answer got lost may be offered again; slot and dependents are counted once."""
        swarm = await Bench(store).swarm(DIAMOND)
        await swarm.fill()
        change = await swarm.change("a", "completed", "completed")
        for _ in range(2):
            outcome = await store.commit(change)
            assert isinstance(outcome, Applied)
            assert outcome.swarm_open == 3
        assert await swarm.statuses() == {"a": "completed", "b": "ready", "c": "ready", "d": "pending"}

    async def test_a_task_that_ended_is_left_alone(self, store: RunStore) -> None:
        """Work after the end may name the task again: neither its status nor a counter changes."""
        swarm = await Bench(store).swarm(DIAMOND)
        await swarm.fill()
        await swarm.end("a", due_in_ms=0)
        before = await swarm.statuses()
        await store.commit(await swarm.change("a", "completed", "failed"))
        assert await swarm.statuses() == before

    @pytest.mark.parametrize("ending", ["failed", "cancelled"])
    async def test_a_bad_ending_wakes_the_swarm(self, store: RunStore, ending: str) -> None:
        """A failed or cancelled task leaves its dependents pending, and the swarm's own run has work: the cascade."""
        bench = Bench(store)
        swarm = await bench.swarm(DIAMOND)
        await bench.applied(await swarm.own_head(), due_in_ms=None)
        await swarm.fill()
        outcome = await swarm.end("a", ending)
        assert outcome.swarm_open == 3
        assert swarm.run_id in {bell.run_id for bell in outcome.woken}
        assert await swarm.statuses() == {"a": ending, "b": "pending", "c": "pending", "d": "pending"}
        assert (await swarm.own_head()).has_work

    async def test_a_suspended_task_gives_its_slot_back(self, store: RunStore) -> None:
        """While a task waits for a person another one runs; its answer makes it ready, ahead of unstarted ones."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": (), "c": ()}, slots=1)
        assert await swarm.fill() == ["a"]
        await swarm.suspend("a", item("i1"))
        assert (await swarm.statuses())["a"] == "suspended"
        assert await swarm.fill() == ["b"]
        answer = await store.answer_item(bench.scope, swarm.runs["a"].run_id, "i1", "yes")
        assert answer is not None
        assert (answer.stored, answer.bell, answer.swarm_rid) == (True, None, swarm.rid)
        assert (await swarm.statuses())["a"] == "ready"
        assert not (await swarm.head("a")).due_in_ms
        await swarm.end("b")
        assert await swarm.fill() == ["a"]
        assert (await swarm.head("a")).has_work
        await swarm.end("a")
        assert await swarm.fill() == ["c"]

    async def test_an_unreconciled_task_gives_its_slot_back(self, store: RunStore) -> None:
        """Parking a running task's run makes the task `needs_reconciliation` and frees its slot in the same statement."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ()}, slots=1)
        await swarm.fill()
        head = await swarm.head("a")
        assert await store.park(head.rid, head.revision, "reconciliation")
        assert await swarm.statuses() == {"a": "needs_reconciliation", "b": "ready"}
        assert await swarm.fill() == ["b"]

    async def test_a_reconciled_task_has_no_work_before_it_has_a_slot(self, store: RunStore) -> None:
        """Its note makes the task ready; a doorbell that comes before the slot finds nothing to do, and one after it does."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ()}, slots=1)
        await swarm.fill()
        head = await swarm.head("a")
        assert await store.park(head.rid, head.revision, "reconciliation")
        assert await swarm.fill() == ["b"]
        assert await store.add_note(bench.scope, head.run_id, "retry", "{}")
        waiting = await swarm.head("a")
        assert (waiting.parked, waiting.waits_for_slot, waiting.has_work) == (None, True, False)
        await swarm.end("b")
        assert await swarm.fill() == ["a"]
        started = await swarm.head("a")
        assert (started.waits_for_slot, started.has_work) == (False, True)

    async def test_a_task_without_a_slot_has_work_only_to_end(self, store: RunStore) -> None:
        """A message to a pending task waits for its turn; a cancel does not."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ("a",)})
        run_id = swarm.runs["b"].run_id
        await store.add_note(bench.scope, run_id, "message", "{}")
        assert not (await swarm.head("b")).has_work
        await store.add_note(bench.scope, run_id, "cancel", "{}")
        assert (await swarm.head("b")).has_work

    async def test_counters_are_those_of_the_snapshot(self, store: RunStore) -> None:
        """Slots, open, ready and running tasks, without the tasks; nothing for a run that is no swarm."""
        bench = Bench(store)
        swarm = await bench.swarm(DIAMOND, slots=3)
        await swarm.fill()
        await swarm.end("a")
        assert await store.swarm_counters(swarm.rid) == SwarmCounters(
            slots=3, open=3, ready=2, running=0, total=4, journal_seq=2
        )
        await swarm.fill()
        assert await store.swarm_counters(swarm.rid) == SwarmCounters(
            slots=3, open=3, ready=0, running=2, total=4, journal_seq=4
        )
        assert await store.swarm_counters((await bench.start()).rid) is None

    async def test_the_last_ending_settles_the_swarm(self, store: RunStore) -> None:
        """While a task is open the swarm's own run sleeps; when none is, settling makes it due."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ()})
        await bench.applied(await swarm.own_head(), due_in_ms=None)
        await swarm.fill()
        await swarm.end("a")
        assert await store.settle_swarm(swarm.rid) is None
        assert not (await swarm.own_head()).has_work
        assert (await swarm.end("b")).swarm_open == 0
        bell = await store.settle_swarm(swarm.rid)
        assert bell is not None
        assert (bell.scope, bell.run_id, bell.queue) == (bench.scope, swarm.run_id, bench.queue)
        assert (await swarm.own_head()).has_work

    async def test_settling_is_not_lost_on_a_head_at_work(self, store: RunStore) -> None:
        """A step of the swarm's own run that began before the last ending finds the run due when it goes to sleep."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": ()})
        await swarm.fill()
        at_work = await swarm.own_head()
        assert at_work.has_work
        await swarm.end("a")
        assert await store.settle_swarm(swarm.rid) is not None
        outcome = await bench.applied(at_work, status="suspended", due_in_ms=None)
        assert outcome.due

    async def test_what_a_crash_left_needs_attention(self, store: RunStore) -> None:
        """A ready task beside a free slot, and a swarm at its end whose run is not due, are listed until they are served."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ("a",)})
        await bench.applied(await swarm.own_head(), due_in_ms=None)

        async def listed() -> bool:
            return swarm.rid in await store.swarms_needing_attention(EVERY)

        assert await listed()
        await swarm.fill()
        assert not await listed()
        await swarm.end("a")
        assert await listed()
        await swarm.fill()
        await swarm.end("b")
        assert await listed()
        await store.settle_swarm(swarm.rid)
        assert not await listed()
        await bench.applied(await swarm.own_head(), status="completed", due_in_ms=None)
        assert not await listed()
        assert len(await store.swarms_needing_attention(0)) == 0

    async def test_results_of_predecessors_are_their_final_bodies(self, store: RunStore) -> None:
        """A task reads what its direct predecessors left, by task id."""
        swarm = await Bench(store).swarm(DIAMOND)
        await swarm.fill()
        await swarm.end("a", body="from a")
        await swarm.fill()
        await swarm.end("c", body="from c")
        await swarm.end("b", body="from b")
        results = await store.task_results(swarm.rid, "d")
        assert [(result.task_id, result.status, result.body) for result in results] == [
            ("b", "completed", "from b"),
            ("c", "completed", "from c"),
        ]
        assert await store.task_results(swarm.rid, "a") == ()

    async def test_a_snapshot_shows_what_tasks_cost(self, store: RunStore) -> None:
        """Tokens and cost come from the tasks' runs; starts and ends carry the store's time."""
        swarm = await Bench(store).swarm({"a": (), "b": ()}, slots=1)
        await swarm.fill()
        await swarm.end("a", tokens=77, cost_micros=None)
        snapshot = await store.swarm_snapshot(swarm.rid)
        assert snapshot is not None
        a, b = sorted(snapshot.tasks, key=lambda task: task.task_id)
        assert (a.tokens, a.cost_micros) == (77, None)
        assert a.started_at_ms is not None
        assert a.ended_at_ms is not None
        assert a.started_at_ms <= a.ended_at_ms
        assert (b.started_at_ms, b.ended_at_ms) == (None, None)

    async def test_a_swarm_of_two_thousand_tasks_is_created_at_once(self, store: RunStore) -> None:
        """A wide swarm is one create; its first slots fill and its counters are right."""
        bench = Bench(store)
        wide = {str(n): () for n in range(1_999)}
        swarm = await bench.swarm({**wide, "join": tuple(wide)}, slots=64)
        assert await swarm.fill() == [str(n) for n in range(64)]
        await swarm.end("0")
        statuses = await swarm.statuses()
        assert (len(statuses), statuses["join"]) == (2_000, "pending")

    @pytest.mark.parametrize("seed", range(6))
    async def test_a_random_graph_never_stands_still(self, store: RunStore, seed: int) -> None:
        """Workers that end tasks at once bring any graph to its end, each task run once, counters right throughout."""
        chance = random.Random(seed)  # noqa: S311
        size = chance.randint(8, 20)
        edges = {str(n): tuple(str(m) for m in range(n) if chance.random() < 0.25) for n in range(size)}
        swarm = await Bench(store).swarm(edges, slots=chance.randint(1, 5))
        started = await swarm.fill()
        ended: list[str] = []
        while started:
            assert len(started) <= swarm.slots
            batch = await asyncio.gather(*(self._end_and_fill(swarm, task_id) for task_id in started))
            ended += started
            started = [task_id for filled in batch for task_id in filled]
            for task_id in started:
                assert set(edges[task_id]) <= set(ended)
            await swarm.statuses()
        assert sorted(ended) == sorted(edges)
        assert set((await swarm.statuses()).values()) == {"completed"}

    async def _end_and_fill(self, swarm: SwarmBench, task_id: str) -> list[str]:
        await swarm.end(task_id)
        return await swarm.fill()

    async def test_only_the_swarms_own_tasks_are_counted(self, store: RunStore) -> None:
        """Two swarms with equal task names do not touch each other."""
        bench = Bench(store)
        one, two = await bench.swarm(DIAMOND), await bench.swarm(DIAMOND)
        await one.fill()
        await one.end("a")
        assert (await two.statuses())["a"] == "ready"
        assert change_from(await two.head("a")).rid == two.runs["a"].rid
