"""Cascades of a swarm: blocking what cannot run any more, cancelling what is open, in batches."""

from __future__ import annotations

from deuz_workers.core.change import Applied, RevisionConflict
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import Bench, SwarmBench, change_from, item


class CascadeConformance:
    """`block_downstream`, `cancel_tasks`."""

    async def _blocked(self, swarm: SwarmBench, limit: int) -> int:
        """Run the block cascade to its end; number of tasks changed."""
        changed = 0
        for _ in range(100):
            cascade = await swarm.store.block_downstream(swarm.rid, limit)
            assert cascade.changed <= limit
            changed += cascade.changed
            if not cascade.more:
                return changed
        raise AssertionError("the cascade never ended")

    async def test_a_failure_blocks_all_that_depends_on_it(self, store: RunStore) -> None:
        """Batch by batch everything downstream of a failed task becomes blocked and its run stopped; the rest goes on."""
        bench = Bench(store)
        chain = {
            "bad": (),
            "good": (),
            **{f"d{n}": ("bad" if n == 0 else f"d{n - 1}",) for n in range(7)},
            "mixed": ("good", "d3"),
        }
        swarm = await bench.swarm(chain)
        await swarm.fill()
        await swarm.end("bad", "failed")
        assert await self._blocked(swarm, 3) == 8
        statuses = await swarm.statuses()
        assert {task for task, status in statuses.items() if status == "blocked"} == {*(f"d{n}" for n in range(7)), "mixed"}
        assert statuses["good"] == "running"
        head = await swarm.head("d6")
        assert (head.status, head.has_work) == ("stopped", False)
        assert (await swarm.end("good")).swarm_open == 0
        assert (await swarm.statuses())["mixed"] == "blocked"
        assert await swarm.fill() == []

    async def test_nothing_to_block_changes_nothing(self, store: RunStore) -> None:
        """While no task has failed, the cascade finds nothing and says that there is no more."""
        swarm = await Bench(store).swarm({"a": (), "b": ("a",)})
        cascade = await store.block_downstream(swarm.rid, 10)
        assert (cascade.changed, cascade.bells, cascade.more) == (0, (), False)

    async def test_a_blocked_run_takes_no_commit_and_no_note(self, store: RunStore) -> None:
        """Whoever still holds the old revision of a blocked run is refused; its inbox is closed."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ("a",)})
        before = await swarm.head("b")
        await swarm.fill()
        await swarm.end("a", "failed")
        await self._blocked(swarm, 10)
        assert isinstance(await store.commit(change_from(before)), RevisionConflict)
        assert await store.add_note(bench.scope, before.run_id, "message", "{}") is None

    async def test_a_cancel_reaches_every_open_task(self, store: RunStore) -> None:
        """Pending and ready tasks are cancelled and their runs stopped; running and suspended ones get one cancel note."""
        bench = Bench(store)
        swarm = await bench.swarm({"done": (), "run": (), "wait": (), "ready": (), "later": ("run",)}, slots=3)
        await swarm.fill()
        await swarm.end("done")
        await swarm.suspend("wait", item("i1"))
        bells: set[str] = set()
        for _ in range(20):
            cascade = await store.cancel_tasks(swarm.rid, 2)
            assert cascade.changed <= 2
            bells |= {bell.run_id for bell in cascade.bells}
            if not cascade.more:
                break
        assert await swarm.statuses() == {
            "done": "completed",
            "run": "running",
            "wait": "suspended",
            "ready": "cancelled",
            "later": "cancelled",
        }
        assert bells == {swarm.runs["run"].run_id, swarm.runs["wait"].run_id}
        for task_id in ("run", "wait"):
            head = await swarm.head(task_id)
            assert (head.wake_seq, head.cancel_seq, head.has_work) == (1, 1, True)
        for task_id in ("ready", "later"):
            assert (await swarm.head(task_id)).status == "stopped"
        again = await store.cancel_tasks(swarm.rid, 100)
        assert (again.changed, again.bells, again.more) == (0, (), False)
        assert (await swarm.head("run")).wake_seq == 1

    async def test_a_cancelled_swarm_ends_with_its_last_task(self, store: RunStore) -> None:
        """After the cascade the running task ends as cancelled, and the swarm can be settled."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ("a",), "c": ()}, slots=1)
        await bench.applied(await swarm.own_head(), due_in_ms=None)
        await swarm.fill()
        while (await store.cancel_tasks(swarm.rid, 100)).more:
            pass
        outcome = await store.commit(await swarm.change("a", "stopped", "cancelled", seen_seq=1))
        assert isinstance(outcome, Applied)
        assert outcome.swarm_open == 0
        assert await store.settle_swarm(swarm.rid) is not None
