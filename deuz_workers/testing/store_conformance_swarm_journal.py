"""The journal of a swarm, its drain, and what is said where nothing can run."""

from __future__ import annotations

import asyncio

from deuz_workers.core.change import Applied
from deuz_workers.core.dynamic_limits import DynamicLimits
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import Bench, item


class SwarmJournalConformance:
    """`swarm_events`, `drain_swarm`, and `settle_swarm` of a swarm that stands still."""

    async def test_every_change_of_a_task_is_an_event(self, store: RunStore) -> None:
        """Each in the order of the commits, and none for a change that does not happen."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ("a",), "c": ("b",), "w": (), "p": ()}, slots=3, dynamic=DynamicLimits(10, 2))
        await bench.applied(await swarm.own_head(), due_in_ms=None)
        await swarm.fill()
        await swarm.end("a", spawning=swarm.spawning({"a/x": ()}))
        await swarm.suspend("w", item("i1"))
        parked = await swarm.head("p")
        assert await store.park(parked.rid, parked.revision, "why")
        assert not await store.park(parked.rid, parked.revision + 1, "why")
        await swarm.fill()
        await swarm.end("b", "failed")
        await store.block_downstream(swarm.rid, 10)
        await store.add_note(bench.scope, swarm.run_id, "cancel", "{}")
        await store.add_note(bench.scope, swarm.run_id, "cancel", "{}")
        assert await swarm.told() == [
            "task.started a",
            "task.started w",
            "task.started p",
            "task.completed a",
            "task.spawned a/x",
            "task.suspended w",
            "task.needs_reconciliation p",
            "task.started a/x",
            "task.started b",
            "task.failed b",
            "task.blocked c",
            "run.cancelled",
        ]
        assert await swarm.told(10) == ["task.blocked c", "run.cancelled"]
        page = await store.swarm_events(bench.scope, swarm.run_id, 3, 2)
        assert [(row.seq, row.type, row.task_id, row.detail and row.detail.replace(" ", "")) for row in page] == [
            (4, "task.completed", "a", None),
            (5, "task.spawned", "a/x", '{"parent":"a"}'),
        ]
        assert await store.swarm_events("nobody's", swarm.run_id, 0, 10) == ()

    async def test_events_of_many_commits_at_once_have_no_gap(self, store: RunStore) -> None:
        """Forty tasks that end at once: forty numbers in a row, and none twice."""
        swarm = await Bench(store).swarm({str(n): () for n in range(40)}, slots=40)
        await swarm.fill()
        outcomes = await asyncio.gather(*(swarm.end(str(n)) for n in range(40)))
        assert all(isinstance(outcome, Applied) for outcome in outcomes)
        assert sorted(await swarm.told(40)) == sorted(f"task.completed {n}" for n in range(40))

    async def test_a_refused_ending_is_no_event(self, store: RunStore) -> None:
        """Neither the result nor the event of an ending that lost its revision is there."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": ()})
        await swarm.fill()
        change = await swarm.change("a", "completed", "completed")
        await bench.applied(await swarm.head("a"))
        assert not isinstance(await store.commit(change), Applied)
        assert await swarm.told() == ["task.started a"]

    async def test_a_swarm_that_stands_still_says_so_once(self, store: RunStore) -> None:
        """Its last task waits for a person: `run.settled`, once; when tasks have run again, once more."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ("a",)})
        await swarm.fill()
        outcome = await swarm.suspend("a", item("i1"))
        assert outcome.swarm_still
        assert await store.settle_swarm(swarm.rid) is None
        assert await swarm.told() == ["task.started a", "task.suspended a"], "its own head has work to do first"
        await bench.applied(await swarm.own_head(), due_in_ms=None)
        assert swarm.rid in await store.swarms_needing_attention(100_000)
        for _ in range(2):
            assert await store.settle_swarm(swarm.rid) is None
        assert (await swarm.told())[2:] == ["run.settled"]
        assert swarm.rid not in await store.swarms_needing_attention(100_000)
        counters = await store.swarm_counters(swarm.rid)
        assert counters is not None
        assert counters.is_still
        await store.answer_item(bench.scope, swarm.runs["a"].run_id, "i1", "yes")
        await swarm.fill()
        counters = await store.swarm_counters(swarm.rid)
        assert counters is not None
        assert not counters.is_still
        await swarm.suspend("a", item("i2"))
        await store.settle_swarm(swarm.rid)
        assert (await swarm.told(3)) == ["task.started a", "task.suspended a", "run.settled"]

    async def test_a_drained_swarm_begins_nothing(self, store: RunStore) -> None:
        """What runs may end; then the journal has `run.drained` before `run.settled`, and undrained it goes on."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": (), "c": ("a",)}, slots=1)
        await bench.applied(await swarm.own_head(), due_in_ms=None)
        await swarm.fill()
        assert await store.drain_swarm(bench.scope, swarm.run_id) == swarm.rid
        await store.settle_swarm(swarm.rid)
        assert await swarm.told() == ["task.started a"]
        assert (await swarm.end("a")).swarm_still
        assert await swarm.fill() == []
        assert swarm.rid in await store.swarms_needing_attention(100_000)
        await store.settle_swarm(swarm.rid)
        assert await swarm.told() == ["task.started a", "task.completed a", "run.drained", "run.settled"]
        assert await swarm.statuses() == {"a": "completed", "b": "ready", "c": "ready"}
        snapshot = await store.swarm_snapshot(swarm.rid)
        assert snapshot is not None
        assert (snapshot.is_draining, snapshot.only_waits) == (True, True)
        assert await store.resume_swarm(bench.scope, swarm.run_id, 3) is None, "it has another event by now"
        assert (await swarm.fill(), await swarm.told(4)) == ([], [])
        resumed = await asyncio.gather(*(store.resume_swarm(bench.scope, swarm.run_id, 4) for _ in range(3)))
        assert sorted(resumed, key=str) == sorted([swarm.rid, None, None], key=str)
        assert await swarm.fill() == ["b"]
        assert await swarm.told(4) == ["run.resumed", "task.started b"]
        assert await store.drain_swarm("nobody's", swarm.run_id) is None
        assert await store.resume_swarm("nobody's", swarm.run_id) is None

    async def test_nothing_begins_once_the_end_was_asked_for(self, store: RunStore) -> None:
        """From the cancel of the swarm on no slot is filled, before any step of its head has looked."""
        bench = Bench(store)
        swarm = await bench.swarm({"a": (), "b": ()}, slots=1)
        await swarm.fill()
        await store.add_note(bench.scope, swarm.run_id, "cancel", "{}")
        await swarm.end("a")
        assert await swarm.fill() == []
        assert (await swarm.statuses())["b"] == "ready"

    async def test_the_end_of_a_swarm_says_how_it_stands(self, store: RunStore) -> None:
        """`run.settled` is the last event, with the status, in the commit that ends the head; a second end adds none."""
        for ending, status, said in (
            ("completed", "completed", "completed"),
            ("failed", "completed", "partial"),
            ("completed", "stopped", "cancelled"),
        ):
            bench = Bench(store)
            swarm = await bench.swarm({"a": ()})
            await swarm.fill()
            await swarm.end("a", ending)
            head = await swarm.own_head()
            await bench.applied(head, status=status, seen_seq=head.wake_seq, due_in_ms=0)
            [last] = await store.swarm_events(bench.scope, swarm.run_id, 2, 10)
            assert (last.type, (last.detail or "").replace(" ", "")) == ("run.settled", f'{{"status":"{said}"}}')
            await bench.applied(await swarm.own_head(), status=status, due_in_ms=None)
            assert len(await swarm.told()) == 3
