"""Delegated runs: created in a commit, answered for by their ends, cancelled after their parent's, pruned with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

from deuz_workers.core.change import Applied, CancelPending, Head, ItemRow, NewChild, ParentAnswer, RevisionConflict
from deuz_workers.core.usage import Budget
from deuz_workers.ports.store import RunStore, When
from deuz_workers.ports.tree import ChildRow, only_waits
from deuz_workers.testing.store_conformance_bench import Bench, change_from, item, message, new_rid

HOUR_MS = 3_600_000


def child_of(head: Head, name: str, **given: Any) -> NewChild:
    child = NewChild(new_rid(), f"{head.run_id}/{name}", f"agent-{name}", f'{{"child":"{name}"}}', (message(0),))
    return replace(child, **given)


def items_of(*names: str) -> tuple[ItemRow, ...]:
    return tuple(item(name, kind="child_run") for name in names)


class ChildrenConformance:
    """`commit` with children and with the answer of a parent, `tree`, `cancel_children`."""

    async def delegating(self, bench: Bench, *names: str, head: Head | None = None) -> Head:
        """A run that waits for a child of each name; the item has the child's name."""
        head = head or await bench.start(queue=bench.queue, priority=7)
        children = tuple(child_of(head, name) for name in names)
        outcome = await bench.applied(head, status="suspended", due_in_ms=None, items=items_of(*names), children=children)
        assert sorted(bell.run_id for bell in outcome.woken) == sorted(child.run_id for child in children)
        return await bench.again(head)

    async def child(self, bench: Bench, parent: Head, name: str) -> Head:
        return await bench.head(f"{parent.run_id}/{name}")

    async def end(self, bench: Bench, parent: Head, name: str) -> Applied:
        """The child completes and says so."""
        answer = ParentAnswer(parent.rid, name, f'"{name} is done"')
        return await bench.applied(await self.child(bench, parent, name), status="completed", due_in_ms=None, answer=answer)

    async def test_children_are_created_by_the_commit_that_waits_for_them(self, store: RunStore) -> None:
        """Queued, due, rung by the outcome, under what the row of their parent says; their messages and budgets are there."""
        bench = Bench(store)
        head = await bench.start(priority=7, deadline=When(in_ms=HOUR_MS))
        limited = child_of(head, "b", budget=Budget(tokens=5), concurrency_key="k")
        children = (child_of(head, "a"), limited)
        await bench.applied(head, status="suspended", due_in_ms=None, items=items_of("a", "b"), children=children)
        parent = await bench.again(head)
        assert (parent.waits_for_children, parent.open_items, parent.has_work, parent.has_report) == (True, 2, False, False)
        loaded = await store.load(bench.scope, limited.run_id)
        assert loaded is not None
        made = loaded.head
        assert (made.status, made.revision, made.parent_rid, made.agent) == ("queued", 0, head.rid, "agent-b")
        assert (made.queue, made.priority, made.shard) == (head.queue, 7, head.shard)
        assert (made.has_work, made.slot_key, made.last_seq) == (True, "k", 0)
        assert made.deadline_in_ms is not None
        assert parent.deadline_in_ms is not None
        assert abs(made.deadline_in_ms - parent.deadline_in_ms) < HOUR_MS / 2
        assert loaded.messages == limited.messages
        balance = await store.balance(f"run:{limited.rid.hex}")
        assert balance is not None
        assert balance.limit.tokens == 5

    async def test_a_refused_commit_creates_nothing(self, store: RunStore) -> None:
        """Neither behind an unseen cancel nor from an old revision is there a child."""
        bench = Bench(store)
        head = await bench.start()
        old = change_from(head, expected=9, status="suspended", items=items_of("a"), children=(child_of(head, "a"),))
        assert isinstance(await store.commit(old), RevisionConflict)
        await store.add_note(bench.scope, head.run_id, "cancel", "{}")
        late = replace(old, expected=0, commit_id=uuid4())
        assert isinstance(await store.commit(late), CancelPending)
        assert await store.head(bench.scope, f"{head.run_id}/a") is None

    async def test_the_last_child_wakes_its_parent(self, store: RunStore) -> None:
        """Each end answers its own item; the parent's revision stays, and it is due once no item is open."""
        bench = Bench(store)
        parent = await self.delegating(bench, "a", "b")
        first = await self.end(bench, parent, "b")
        waiting = await bench.again(parent)
        assert (first.woken, waiting.open_items, waiting.has_work) == ((), 1, False)
        second = await self.end(bench, parent, "a")
        awake = await bench.again(parent)
        assert [bell.run_id for bell in second.woken] == [parent.run_id]
        assert (awake.open_items, awake.has_work, awake.revision) == (0, True, parent.revision)
        loaded = await store.load(bench.scope, parent.run_id)
        assert loaded is not None
        assert [(row.item_id, row.answer) for row in loaded.items] == [("a", '"a is done"'), ("b", '"b is done"')]

    async def test_children_that_end_at_once_wake_it_once(self, store: RunStore) -> None:
        """Of twenty, exactly one commit finds the last open item."""
        bench = Bench(store)
        names = [f"c{number}" for number in range(20)]
        parent = await self.delegating(bench, *names)
        ended = await asyncio.gather(*(self.end(bench, parent, name) for name in names))
        assert sum(len(outcome.woken) for outcome in ended) == 1
        assert (await bench.again(parent)).open_items == 0

    async def test_an_end_without_effect(self, store: RunStore) -> None:
        """A parent that ended before takes no answer, one that is parked is not due, and an item is answered once."""
        bench = Bench(store)
        gone = await self.delegating(bench, "a")
        await bench.applied(gone, status="stopped", due_in_ms=None)
        assert (await self.end(bench, gone, "a")).woken == ()
        assert (await bench.again(gone)).status == "stopped"
        parked = await self.delegating(bench, "a")
        assert await store.park(parked.rid, parked.revision, "quarantine")
        assert (await self.end(bench, parked, "a")).woken == ()
        now = await bench.again(parked)
        assert (now.open_items, now.has_work) == (0, False)
        twice = await self.delegating(bench, "a", "b")
        await self.end(bench, twice, "a")
        again = await bench.applied(
            await self.child(bench, twice, "b"), status="completed", due_in_ms=None, answer=ParentAnswer(twice.rid, "a", '"x"')
        )
        assert (again.woken, (await bench.again(twice)).open_items) == ((), 1)

    async def test_a_refused_end_answers_nothing(self, store: RunStore) -> None:
        """The child's commit and its parent's item are one: a conflict leaves the item open."""
        bench = Bench(store)
        parent = await self.delegating(bench, "a")
        head = await self.child(bench, parent, "a")
        stale = change_from(head, expected=3, status="completed", answer=ParentAnswer(parent.rid, "a", '"x"'))
        assert isinstance(await store.commit(stale), RevisionConflict)
        assert (await bench.again(parent)).open_items == 1

    async def test_a_swarm_task_that_delegates_is_ready_afterwards(self, store: RunStore) -> None:
        """It gives its slot back while it waits; the last end makes it ready, and names the swarm that has to be filled."""
        bench = Bench(store)
        swarm = await bench.swarm({"t": (), "u": ()}, slots=1)
        await swarm.fill()
        head = await swarm.head("t")
        change = await swarm.change("t", "suspended", "suspended", items=items_of("a"), children=(child_of(head, "a"),))
        assert isinstance(await store.commit(change), Applied)
        assert await swarm.fill() == ["u"]
        assert not only_waits(await store.tree(bench.scope, swarm.run_id))
        ended = await self.end(bench, await swarm.head("t"), "a")
        assert (ended.woken, ended.readied_swarm) == ((), swarm.rid)
        assert (await swarm.statuses())["t"] == "ready"
        await swarm.end("u")
        assert await swarm.fill() == ["t"]

    async def test_the_tree_shows_who_goes_on_and_who_waits(self, store: RunStore) -> None:
        """Parents first; runs that have ended are not in it, and an item that a child answers is nobody's outside."""
        bench = Bench(store)
        parent = await self.delegating(bench, "a", "b")
        below = await self.delegating(bench, "c", head=await self.child(bench, parent, "a"))
        tree = await store.tree(bench.scope, parent.run_id)
        assert [run.run_id for run in tree] == [parent.run_id, f"{parent.run_id}/a", f"{parent.run_id}/b", f"{below.run_id}/c"]
        assert [run.goes_on for run in tree] == [False, False, True, True]
        assert not any(run.items for run in tree)
        await self.end(bench, parent, "b")
        leaf = await self.child(bench, below, "c")
        await bench.suspended(leaf, item("x"), item("y"))
        await store.answer_item(bench.scope, leaf.run_id, "y", '"yes"')
        tree = await store.tree(bench.scope, parent.run_id)
        assert [(run.agent, [row.item_id for row in run.items]) for run in tree] == [
            (parent.agent, []),
            ("agent-a", []),
            ("agent-c", ["x"]),
        ]
        assert only_waits(tree)
        assert await store.tree(bench.scope, "nobody") == ()

    async def test_children_are_listed_with_what_they_used(self, store: RunStore) -> None:
        """Ended or not, in order, and none of another run."""
        bench = Bench(store)
        head = await self.delegating(bench, "a", "b")
        other = await self.delegating(bench, "c")
        child = await self.child(bench, head, "a")
        answer = ParentAnswer(head.rid, "a", '"done"')
        used = {"tokens": 15, "cost_micros": None, "model_step": 2}
        await bench.applied(child, status="completed", due_in_ms=None, answer=answer, **used)
        assert await store.children(head.rid, 10) == (
            ChildRow(f"{head.run_id}/a", "agent-a", "completed", 2, 15, None),
            ChildRow(f"{head.run_id}/b", "agent-b", "queued", 0, 0, 0),
        )
        assert len(await store.children(head.rid, 1)) == 1
        assert [row.agent for row in await store.children(other.rid, 10)] == ["agent-c"]

    async def test_an_ended_parent_cancels_its_children_in_batches(self, store: RunStore) -> None:
        """Each that goes on gets one note and keeps its revision; the last batch ends the work after the end."""
        bench = Bench(store)
        parent = await self.delegating(bench, "a", "b", "c")
        await self.end(bench, parent, "b")
        await bench.applied(await bench.again(parent), status="stopped", due_in_ms=0)
        assert (await bench.again(parent)).has_work
        first = await store.cancel_children(parent.rid, 1)
        assert (first.changed, first.more, len(first.bells)) == (1, True, 1)
        assert (await bench.again(parent)).has_work
        second = await store.cancel_children(parent.rid, 5)
        assert (second.changed, second.more) == (1, False)
        assert not (await bench.again(parent)).has_work
        third = await store.cancel_children(parent.rid, 5)
        assert (third.changed, third.bells) == (0, ())
        heads = [await self.child(bench, parent, name) for name in ("a", "b", "c")]
        assert [(head.cancel_seq, head.revision) for head in heads] == [(1, 0), (0, 1), (1, 0)]

    async def test_a_tree_is_pruned_as_a_whole(self, store: RunStore) -> None:
        """Not before its last run has ended, and never a child alone."""
        bench = Bench(store)
        parent = await self.delegating(bench, "a")
        below = await self.delegating(bench, "c", head=await self.child(bench, parent, "a"))
        await bench.applied(await bench.again(parent), status="stopped", due_in_ms=None)
        await bench.applied(await bench.again(below), status="stopped", due_in_ms=None)

        async def pruned() -> int:
            return await store.prune(older_ms=-HOUR_MS, status=("completed", "stopped"), scope=bench.scope, limit=10)

        assert await pruned() == 0
        await self.end(bench, below, "c")
        assert await pruned() == 1
        assert await store.head(bench.scope, f"{below.run_id}/c") is None
        assert await store.head(bench.scope, below.run_id) is None
