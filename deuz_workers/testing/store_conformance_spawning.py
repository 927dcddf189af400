"""Tasks that only wait for an end, tasks that tasks create, and the time of an attempt."""

from __future__ import annotations

import asyncio

from deuz_workers.core.change import Applied, TooManyTasks
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import Bench, item

DYNAMIC = DynamicLimits(max_tasks=5, max_spawn_depth=2)


class SpawnConformance:
    """`Change.spawning`, `NewTask.after`, `NewTask.timeout_ms`, `spawn_ground`."""

    async def test_a_soft_dependent_waits_for_any_end(self, store: RunStore) -> None:
        """A task that failed, one that was blocked by that, and one that completed: who only waits for their ends is ready."""
        swarm = await Bench(store).swarm(
            {"bad": (), "good": (), "behind": ("bad",), "join": ("?bad", "?good", "?behind"), "hard": ("good", "?bad")},
            slots=5,
        )
        await swarm.fill()
        await swarm.end("bad", "failed")
        assert (await swarm.statuses())["join"] == "pending"
        cascade = await store.block_downstream(swarm.rid, 100)
        assert (cascade.changed, cascade.more) == (1, False)
        assert (await swarm.statuses())["behind"] == "blocked"
        assert (await swarm.statuses())["join"] == "pending"
        await swarm.end("good")
        statuses = await swarm.statuses()
        assert (statuses["join"], statuses["hard"]) == ("ready", "ready")
        snapshot = await store.swarm_snapshot(swarm.rid)
        assert snapshot is not None
        by_name = {task.task_id: task for task in snapshot.tasks}
        assert (by_name["hard"].depends_on, by_name["hard"].after) == (("good",), ("bad",))
        results = await store.task_results(swarm.rid, "join")
        assert [(result.task_id, result.status, result.soft) for result in results] == [
            ("bad", "failed", True),
            ("behind", "blocked", True),
            ("good", "completed", True),
        ]

    async def test_a_cascade_frees_who_waits_for_a_blocked_task(self, store: RunStore) -> None:
        """The last end that a soft dependent waits for may be a blocking: it is ready then, and the counters say so."""
        swarm = await Bench(store).swarm({"bad": (), "a": ("bad",), "b": ("a",), "join": ("?a", "?b")})
        await swarm.fill()
        await swarm.end("bad", "failed")
        assert (await store.block_downstream(swarm.rid, 1)).more
        assert (await swarm.statuses())["join"] == "pending"
        while (await store.block_downstream(swarm.rid, 1)).more:
            pass
        assert await swarm.statuses() == {"bad": "failed", "a": "blocked", "b": "blocked", "join": "ready"}
        assert await swarm.fill() == ["join"]

    async def test_an_ending_creates_tasks_with_what_they_wait_for(self, store: RunStore) -> None:
        """They wait for each other, for the task that ended, and for others of the swarm, each as it needs it."""
        bench = Bench(store)
        swarm = await bench.swarm({"plan": (), "other": (), "gone": ()}, slots=3, dynamic=DynamicLimits(10, 2))
        await swarm.fill()
        await swarm.end("gone", "failed")
        new = {
            "north": ("plan",),
            "total": ("north", "other", "?gone"),
            "alone": (),
            "never": ("gone",),
        }
        outcome = await swarm.end("plan", spawning=swarm.spawning(new))
        assert outcome.swarm_open == 5
        assert await swarm.statuses() == {
            "plan": "completed",
            "other": "running",
            "gone": "failed",
            "north": "ready",
            "total": "pending",
            "alone": "ready",
            "never": "pending",
        }
        assert list(await swarm.statuses()) == ["plan", "other", "gone", "north", "total", "alone", "never"]
        assert swarm.run_id in {bell.run_id for bell in outcome.woken}, "somebody blocks what waits for the failed one"
        await store.block_downstream(swarm.rid, 10)
        assert (await swarm.statuses())["never"] == "blocked"
        assert set(await swarm.fill()) == {"north", "alone"}
        head = await swarm.head("north")
        assert (head.scope, head.swarm_rid, head.task_id, head.has_work) == (bench.scope, swarm.rid, "north", True)
        await swarm.end("other")
        await swarm.end("north")
        assert (await swarm.statuses())["total"] == "ready"
        snapshot = await store.swarm_snapshot(swarm.rid)
        assert snapshot is not None
        assert [task.depth for task in snapshot.tasks] == [0, 0, 0, 1, 1, 1, 1]
        assert snapshot.total == 7

    async def test_a_spawn_that_is_offered_again_creates_once(self, store: RunStore) -> None:
        """An ending whose answer got lost may be offered again; its tasks are there once."""
        swarm = await Bench(store).swarm({"a": ()}, dynamic=DYNAMIC)
        await swarm.fill()
        change = await swarm.change("a", "completed", "completed", spawning=swarm.spawning({"a/x": ("a",)}))
        for _ in range(2):
            outcome = await store.commit(change)
            assert isinstance(outcome, Applied)
            assert outcome.swarm_open == 1
        assert await swarm.statuses() == {"a": "completed", "a/x": "ready"}

    async def test_a_swarm_takes_no_more_tasks_than_it_may_have(self, store: RunStore) -> None:
        """What does not fit is refused whole: the task stays as it was, and so does the swarm; a fixed one takes none."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ()}, dynamic=DYNAMIC)
        await swarm.fill()
        many = swarm.spawning({f"a/{n}": () for n in range(4)})
        assert isinstance(await store.commit(await swarm.change("a", "completed", "completed", spawning=many)), TooManyTasks)
        assert await swarm.statuses() == {"a": "running", "b": "running"}
        assert (await swarm.head("a")).status == "queued"
        await swarm.end("a", spawning=swarm.spawning({f"a/{n}": () for n in range(3)}))
        fixed = await bench.swarm({"a": ()})
        await fixed.fill()
        one = fixed.spawning({"a/x": ()})
        assert isinstance(await store.commit(await fixed.change("a", "completed", "completed", spawning=one)), TooManyTasks)

    async def test_many_endings_at_once_never_exceed_the_limit(self, store: RunStore) -> None:
        """Ten tasks that each create one at once in a swarm with room for three: three do, seven are refused."""
        swarm = await Bench(store).swarm(
            {str(n): () for n in range(10)}, slots=10, dynamic=DynamicLimits(max_tasks=13, max_spawn_depth=1)
        )
        await swarm.fill()
        changes = [
            await swarm.change(str(n), "completed", "completed", spawning=swarm.spawning({f"{n}/x": ()})) for n in range(10)
        ]
        outcomes = await asyncio.gather(*(store.commit(change) for change in changes))
        assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 3
        assert sum(isinstance(outcome, TooManyTasks) for outcome in outcomes) == 7
        statuses = await swarm.statuses()
        assert list(statuses.values()).count("ready") == 3

    async def test_an_end_that_meets_a_spawn_frees_the_new_task(self, store: RunStore) -> None:
        """A task ends while another one creates a dependent of it: whichever comes first, the new one waits for nothing."""
        for _ in range(10):
            swarm = await Bench(store).swarm({"a": (), "b": ()}, dynamic=DYNAMIC)
            await swarm.fill()
            spawning = swarm.spawning({"a/x": ("b",), "a/y": ("?b",)})
            first = await swarm.change("a", "completed", "completed", spawning=spawning)
            second = await swarm.change("b", "completed", "completed")
            outcomes = await asyncio.gather(store.commit(first), store.commit(second))
            assert all(isinstance(outcome, Applied) for outcome in outcomes)
            assert await swarm.statuses() == {"a": "completed", "b": "completed", "a/x": "ready", "a/y": "ready"}

    async def test_a_failing_task_may_create_others(self, store: RunStore) -> None:
        """Its failure and they are one commit; one that only waits for its end is ready."""
        swarm = await Bench(store).swarm({"a": ()}, dynamic=DYNAMIC)
        await swarm.fill()
        await swarm.end("a", "failed", spawning=swarm.spawning({"a/undo": ("?a",), "a/tell": ()}))
        assert await swarm.statuses() == {"a": "failed", "a/undo": "ready", "a/tell": "ready"}

    async def test_what_a_creator_has_to_know(self, store: RunStore) -> None:
        """Limits as stored, tasks so far, its depth, the swarm's body, which of the named tasks exist."""
        bench = Bench(store)
        limits = DynamicLimits(9, 3, 2)
        swarm = await bench.swarm({"a": (), "b": ()}, dynamic=limits, body='{"of":"swarm"}')
        ground = await store.spawn_ground(swarm.rid, "a", ["b", "c", "a"])
        assert ground is not None
        assert (ground.limits, ground.total, ground.depth, ground.body) == (limits, 2, 0, '{"of":"swarm"}')
        assert (ground.queue, ground.existing) == (bench.queue, {"a", "b"})
        await swarm.fill()
        await swarm.end("a", spawning=swarm.spawning({"a/x": ()}))
        below = await store.spawn_ground(swarm.rid, "a/x", [])
        assert below is not None
        assert (below.total, below.depth, below.existing) == (3, 1, frozenset())
        fixed = await bench.swarm({"a": ()})
        ground = await store.spawn_ground(fixed.rid, "a", [])
        assert ground is not None
        assert ground.limits is None
        assert await store.spawn_ground(fixed.rid, "z", []) is None

    async def test_an_attempt_has_its_time_from_its_slot_on(self, store: RunStore) -> None:
        """Waiting for a slot does not count; past it the run is due to end, whoever looks; an answer begins another attempt."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ()}, slots=1, timeout_ms=60_000)
        assert (await swarm.head("a")).until_in_ms is None
        await swarm.fill()
        head = await swarm.head("a")
        assert head.until_in_ms is not None
        assert 0 < head.until_in_ms <= 60_000
        assert (await swarm.head("b")).until_in_ms is None
        await bench.applied(head, due_in_ms=10_000_000)
        due_in_ms = (await swarm.head("a")).due_in_ms
        assert due_in_ms is not None
        assert due_in_ms <= 60_000, "nothing is put behind the end of the attempt"
        await swarm.suspend("a", item("i1"))
        waiting = await swarm.head("a")
        assert (waiting.until_in_ms, waiting.due_in_ms) == (None, None)
        await store.answer_item(bench.scope, head.run_id, "i1", "yes")
        assert (await swarm.head("a")).until_in_ms is None
        assert await swarm.fill() == ["a"]
        again = (await swarm.head("a")).until_in_ms
        assert again is not None
        assert 0 < again <= 60_000
