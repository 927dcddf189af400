"""What two sessions do to one row when the second has to wait for its lock, in both orders.

After the wait Postgres re-reads the locked row, and nothing else. A statement that decided from anything else would pass every
other test and lose a wake-up here.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from deuz_workers.core.change import (
    Applied,
    BudgetExceeded,
    CancelPending,
    ItemAnswer,
    Reserve,
    RevisionConflict,
    Settle,
    TaskEnding,
)
from deuz_workers.core.usage import Budget
from deuz_workers.store import SqlStore
from deuz_workers.store.parameters import commit_parameters
from deuz_workers.testing.store_conformance_bench import Bench, change_from, item, message
from tests.store.sessions import OneSession, Sessions


async def test_an_input_before_a_suspension_makes_it_due(bench: Bench, sessions: Sessions) -> None:
    """A suspension that waited for a message's writer is applied, and the run is due at once."""
    head = await bench.start()
    suspend = change_from(head, status="suspended", due_in_ms=None, items=(item("i"),))
    _, outcome = await sessions.race(
        lambda store: store.add_note(head.scope, head.run_id, "message", "{}"), lambda store: store.commit(suspend)
    )
    assert isinstance(outcome, Applied)
    assert (outcome.due, outcome.wake_seq) == (True, 1)
    assert (await bench.again(head)).has_work


async def test_an_input_after_a_suspension_wakes_it(bench: Bench, sessions: Sessions) -> None:
    """A message that waited for the suspension finds a suspended run, and makes it work."""
    head = await bench.start()
    suspend = change_from(head, status="suspended", due_in_ms=None, items=(item("i"),))
    outcome, noted = await sessions.race(
        lambda store: store.commit(suspend), lambda store: store.add_note(head.scope, head.run_id, "message", "{}")
    )
    assert isinstance(outcome, Applied)
    assert not outcome.due
    assert noted is not None
    assert (noted.seq, noted.bell.revision) == (1, 1)
    assert (await bench.again(head)).has_work


async def test_a_cancel_before_an_ending_forbids_it(bench: Bench, sessions: Sessions) -> None:
    """An ending that waited for a cancel's writer is refused, and nothing of it is written."""
    head = await bench.start()
    end = change_from(head, status="completed", due_in_ms=None, messages=(message(0),))
    _, outcome = await sessions.race(
        lambda store: store.add_note(head.scope, head.run_id, "cancel", "{}"), lambda store: store.commit(end)
    )
    assert outcome == CancelPending(1)
    loaded = await bench.store.load(head.scope, head.run_id)
    assert loaded is not None
    assert (loaded.head.revision, loaded.messages) == (0, ())


async def test_a_cancel_after_an_ending_comes_too_late(bench: Bench, sessions: Sessions) -> None:
    """A cancel that waited for the ending is told that there is nothing to cancel."""
    head = await bench.start()
    end = change_from(head, status="completed", due_in_ms=None)
    outcome, noted = await sessions.race(
        lambda store: store.commit(end), lambda store: store.add_note(head.scope, head.run_id, "cancel", "{}")
    )
    assert isinstance(outcome, Applied)
    assert noted is None


@pytest.mark.spec("SST-007")
async def test_one_of_two_holders_of_a_revision_writes(bench: Bench, sessions: Sessions) -> None:
    """Two commits from one revision: the second meets the first one's revision and writes nothing."""
    head = await bench.start()
    one, two = (change_from(head, messages=(message(0, text),)) for text in ("one", "two"))
    first, second = await sessions.race(lambda store: store.commit(one), lambda store: store.commit(two))
    assert isinstance(first, Applied)
    assert second == RevisionConflict(1)
    loaded = await bench.store.load(head.scope, head.run_id)
    assert loaded is not None
    assert [row.body for row in loaded.messages] == ["one"]


async def test_one_change_offered_twice_at_once_is_applied_once(bench: Bench, sessions: Sessions) -> None:
    """The second offer of a change waits for the first, recognises itself and reports it as applied."""
    head = await bench.start()
    change = change_from(head, messages=(message(0),))
    first, second = await sessions.race(lambda store: store.commit(change), lambda store: store.commit(change))
    assert isinstance(first, Applied)
    assert second == first


async def test_two_children_end_at_once(bench: Bench, sessions: Sessions) -> None:
    """Both endings leave a note at their parent, at places of their own."""
    parent = await bench.suspended(await bench.start(), item("a", kind="child_run"), item("b", kind="child_run"))
    one, two = await bench.start(), await bench.start()
    ends = [change_from(child, status="completed", due_in_ms=None, wakes=(parent.rid,)) for child in (one, two)]
    outcomes = await sessions.race(lambda store: store.commit(ends[0]), lambda store: store.commit(ends[1]))
    assert all(isinstance(outcome, Applied) and outcome.woken for outcome in outcomes)
    loaded = await bench.store.load(parent.scope, parent.run_id)
    assert loaded is not None
    assert [(note.seq, note.kind) for note in loaded.notes] == [(1, "child"), (2, "child")]


async def test_a_child_ends_while_its_parent_suspends(bench: Bench, sessions: Sessions) -> None:
    """In both orders the parent ends up suspended and with work."""
    for parent_first in (True, False):
        parent, child = await bench.start(), await bench.start()
        suspend = change_from(parent, status="suspended", due_in_ms=None, items=(item("c", kind="child_run"),))
        end = change_from(child, status="completed", due_in_ms=None, wakes=(parent.rid,))
        order = (suspend, end) if parent_first else (end, suspend)
        outcomes = await sessions.race(lambda store: store.commit(order[0]), lambda store: store.commit(order[1]))  # noqa: B023
        assert all(isinstance(outcome, Applied) for outcome in outcomes)
        after = await bench.again(parent)
        assert (after.status, after.wake_seq, after.has_work) == ("suspended", 1, True)


async def test_two_answers_to_one_item(bench: Bench, sessions: Sessions) -> None:
    """One is stored; the other reads the winner. Only the answer to the last item makes the run due."""
    head = await bench.suspended(await bench.start(), item("a"), item("b"))
    for name, left in (("a", 1), ("b", 0)):
        first, second = await sessions.race(
            lambda store: store.answer_item(head.scope, head.run_id, name, "yes"),  # noqa: B023
            lambda store: store.answer_item(head.scope, head.run_id, name, "no"),  # noqa: B023
        )
        assert first is not None
        assert second is not None
        assert (first.stored, first.open_items, first.bell is not None) == (True, left, left == 0)
        assert (second.stored, second.open_items, second.winner, second.bell) == (False, left, "yes", None)
        assert (await bench.again(head)).has_work is (left == 0)


async def test_answers_to_two_items_at_once(bench: Bench, sessions: Sessions) -> None:
    """Both are stored, and the second one closes the suspension."""
    head = await bench.suspended(await bench.start(), item("a"), item("b"))
    first, second = await sessions.race(
        lambda store: store.answer_item(head.scope, head.run_id, "a", "yes"),
        lambda store: store.answer_item(head.scope, head.run_id, "b", "yes"),
    )
    assert first is not None
    assert second is not None
    assert (first.open_items, first.bell) == (1, None)
    assert second.open_items == 0
    assert second.bell is not None


async def test_two_sets_of_answers_that_share_an_item(bench: Bench, sessions: Sessions) -> None:
    """The second waited for the first: it finds the shared item answered, and leaves nothing of its own behind."""
    head = await bench.suspended(await bench.start(), item("a"), item("b"), item("c"))
    first, second = await sessions.race(
        lambda store: store.answer_items(head.scope, head.run_id, [ItemAnswer("a", "1"), ItemAnswer("b", "1")]),
        lambda store: store.answer_items(head.scope, head.run_id, [ItemAnswer("b", "2"), ItemAnswer("c", "2")]),
    )
    assert first is not None
    assert second is not None
    assert (first.stored, first.open_items) == (True, 1)
    assert (second.stored, second.open_items, second.winner, second.item_id) == (False, 1, "1", "b")
    [left] = await bench.store.open_items(head.scope, head.run_id)
    assert (left.item_id, left.answer) == ("c", None)
    assert (await bench.again(head)).open_items == 1


async def test_two_votes_at_once(bench: Bench, sessions: Sessions) -> None:
    """Both saw none before them: the second waited, is refused with the first one's vote, and neither is lost."""
    head = await bench.suspended(await bench.start(), item("a"))
    first, second = await sessions.race(
        lambda store: store.answer_items(head.scope, head.run_id, [ItemAnswer("a", None, votes="ann")]),
        lambda store: store.answer_items(head.scope, head.run_id, [ItemAnswer("a", None, votes="bob")]),
    )
    assert first is not None
    assert second is not None
    assert (first.stored, second.stored, second.winner, second.votes) == (True, False, None, "ann")
    assert [row.votes for row in await bench.store.open_items(head.scope, head.run_id)] == ["ann"]


async def test_the_last_answer_meets_a_commit_that_stays_suspended(bench: Bench, sessions: Sessions) -> None:
    """A holder that folded a message and suspends again does not lose the answer that came meanwhile, in both orders.

    Whether it keeps its items or lists them anew.
    """
    for listed in ((), (item("a"),)):
        for answer_first in (True, False):
            head = await bench.suspended(await bench.start(), item("a"))
            stay = change_from(head, due_in_ms=None, items=listed)

            async def answer(store: SqlStore) -> object:
                return await store.answer_item(head.scope, head.run_id, "a", "yes")  # noqa: B023

            async def commit(store: SqlStore) -> object:
                return await store.commit(stay)  # noqa: B023

            order = (answer, commit) if answer_first else (commit, answer)
            await sessions.race(*order)
            after = await bench.again(head)
            if answer_first or not listed:
                assert (after.open_items, after.has_work) == (0, True)
                loaded = await bench.store.load(head.scope, head.run_id)
                assert loaded is not None
                assert [row.answer for row in loaded.items] == ["yes"]
            else:  # it asked for an item of the suspension before; asking again finds the new one
                assert after.open_items == 1
                again = await bench.store.answer_item(head.scope, head.run_id, "a", "yes")
                assert again is not None
                assert again.bell is not None


async def test_two_runs_wake_each_other_without_a_deadlock(bench: Bench, postgres: SqlStore) -> None:
    """Heads are locked by id whoever commits, so opposing wakes wait and never fail."""
    one, two = await bench.start(), await bench.start()
    failed: list[str] = []

    async def commits(mine_id: str, other_id: str) -> None:
        mine, other = await bench.head(mine_id), await bench.head(other_id)
        for revision in range(150):
            change = change_from(replace(mine, revision=revision), wakes=(other.rid,))
            params = {**commit_parameters(change, "commit", postgres.ttl_ms), "now_ms": None}
            [row] = await postgres.dialect.fetch("commit", params)  # past the store, which would try again
            if row["outcome"] != "applied":
                failed.append(row["outcome"])

    await asyncio.gather(commits(one.run_id, two.run_id), commits(two.run_id, one.run_id))
    assert not failed
    for head in (one, two):
        after = await bench.again(head)
        assert (after.revision, after.wake_seq) == (150, 150)


async def test_an_edge_added_while_its_upstream_ends_is_not_missed(bench: Bench, sessions: Sessions) -> None:
    """An ending that finds fewer dependents than its row counts writes nothing, is sent again and readies the new one."""
    swarm = await bench.swarm({"up": (), "down": ()}, slots=1)
    await bench.store.fill_slots(swarm.rid)
    up = await swarm.head("up")
    end = change_from(up, status="completed", due_in_ms=None, task=TaskEnding(swarm.rid, "up", "completed"))

    async def add_edge(store: SqlStore) -> None:
        assert isinstance(store.dialect, OneSession)
        for statement in (
            "update swarm_task set downstream = downstream + 1 where swarm_rid = %s and task_id = 'up'",
            "update swarm_task set status = 'pending', waiting = 1 where swarm_rid = %s and task_id = 'down'",
            "update swarm set ready = ready - 1 where rid = %s",
            "insert into swarm_edge values (%s, 'up', 'down')",
        ):
            await store.dialect.session.execute(statement, [swarm.rid])

    _, outcome = await sessions.race(add_edge, lambda store: store.commit(end))
    assert isinstance(outcome, Applied)
    snapshot = await bench.store.swarm_snapshot(swarm.rid)
    assert snapshot is not None
    assert {task.task_id: task.status for task in snapshot.tasks} == {"up": "completed", "down": "ready"}
    assert (snapshot.open, snapshot.ready, snapshot.running) == (1, 1, 0)


async def test_two_endings_before_one_join(bench: Bench, sessions: Sessions) -> None:
    """Two upstream tasks end at once: their common dependent becomes ready exactly once."""
    swarm = await bench.swarm({"a": (), "b": (), "join": ("a", "b")}, slots=2)
    await bench.store.fill_slots(swarm.rid)
    ends = [
        change_from(await swarm.head(name), status="completed", due_in_ms=None, task=TaskEnding(swarm.rid, name, "completed"))
        for name in ("a", "b")
    ]
    first, second = await sessions.race(lambda store: store.commit(ends[0]), lambda store: store.commit(ends[1]))
    assert isinstance(first, Applied)
    assert isinstance(second, Applied)
    assert (first.swarm_open, second.swarm_open) == (2, 1)
    snapshot = await bench.store.swarm_snapshot(swarm.rid)
    assert snapshot is not None
    assert (snapshot.open, snapshot.ready, snapshot.running) == (1, 1, 0)
    assert len(await bench.store.fill_slots(swarm.rid)) == 1


async def test_a_fill_waits_for_an_ending_and_starts_what_it_readied(bench: Bench, sessions: Sessions) -> None:
    """A fill that waited for the swarm row of an ending leaves no slot idle for good.

    The waiting fill may miss the new ready task (its snapshot is older); the ender's own fill, which follows, takes it.
    """
    swarm = await bench.swarm({"a": (), "x": (), "b": ("a",), "y": ("x",)}, slots=2)
    await bench.store.fill_slots(swarm.rid)
    ends = [
        change_from(await swarm.head(name), status="completed", due_in_ms=None, task=TaskEnding(swarm.rid, name, "completed"))
        for name in ("a", "x")
    ]
    await bench.store.commit(ends[1])
    _, started = await sessions.race(lambda store: store.commit(ends[0]), lambda store: store.fill_slots(swarm.rid))
    started += await bench.store.fill_slots(swarm.rid)
    assert sorted(bell.agent for bell in started) == ["agent-b", "agent-y"]
    snapshot = await bench.store.swarm_snapshot(swarm.rid)
    assert snapshot is not None
    assert (snapshot.open, snapshot.ready, snapshot.running) == (2, 0, 2)


async def test_an_ending_waits_for_a_fill(bench: Bench, sessions: Sessions) -> None:
    """Counters follow both, whoever came first."""
    swarm = await bench.swarm({"a": (), "b": (), "c": ("a",)}, slots=1)
    await bench.store.fill_slots(swarm.rid)
    head = await swarm.head("a")
    await bench.applied(head, status="completed", due_in_ms=None, task=TaskEnding(swarm.rid, "a", "completed"))
    # now b and c are ready, one slot is free; the fill holds the swarm row while b's head ends through a door
    end = change_from(await swarm.head("c"), status="stopped", due_in_ms=None, task=TaskEnding(swarm.rid, "c", "cancelled"))
    started, outcome = await sessions.race(lambda store: store.fill_slots(swarm.rid), lambda store: store.commit(end))
    assert [bell.agent for bell in started] == ["agent-b"]
    assert isinstance(outcome, Applied)
    snapshot = await bench.store.swarm_snapshot(swarm.rid)
    assert snapshot is not None
    assert (snapshot.open, snapshot.ready, snapshot.running) == (1, 0, 1)


async def test_a_slot_given_meanwhile_is_given_back(bench: Bench, sessions: Sessions) -> None:
    """A cancelled ending that waited for a fill gives back the slot that this fill gave, and the other way round."""
    for fill_first in (True, False):
        swarm = await bench.swarm({"a": (), "b": (), "c": ()}, slots=1)
        assert await swarm.fill() == ["a"]
        await swarm.suspend("a", item("q"))
        head = await swarm.head("a")
        assert await bench.store.answer_item(head.scope, head.run_id, "q", '"yes"')  # a is ready, and first in line
        end = await swarm.change("a", "stopped", "cancelled")

        async def fill(store: SqlStore) -> int:
            return len(await store.fill_slots(swarm.rid))  # noqa: B023

        async def commit(store: SqlStore) -> int:
            assert isinstance(await store.commit(end), Applied)  # noqa: B023
            return 0

        started = sum(await sessions.race(*((fill, commit) if fill_first else (commit, fill))))
        assert (await swarm.statuses())["a"] == "cancelled"
        assert started + len(await swarm.fill()) >= 1
        assert sorted((await swarm.statuses()).values()) == ["cancelled", "ready", "running"]


async def test_a_cascade_meets_a_fill(bench: Bench, sessions: Sessions) -> None:
    """What got its slot first is asked to end, what was cancelled first gets no slot; the counters follow."""
    for fill_first in (True, False):
        swarm = await bench.swarm({"a": (), "b": (), "c": ("a",)}, slots=1)

        async def fill(store: SqlStore) -> object:
            return await store.fill_slots(swarm.rid)  # noqa: B023

        async def cancel(store: SqlStore) -> object:
            return await store.cancel_tasks(swarm.rid, 10)  # noqa: B023

        await sessions.race(*((fill, cancel) if fill_first else (cancel, fill)))
        statuses = await swarm.statuses()
        assert statuses == {"a": "running" if fill_first else "cancelled", "b": "cancelled", "c": "cancelled"}
        assert (await swarm.head("a")).cancel_seq == (1 if fill_first else 0)


async def test_a_cascade_meets_an_ending(bench: Bench, sessions: Sessions) -> None:
    """A task that became ready while the cascade waited is cancelled as a ready one; an ending that comes second finds its
    dependent cancelled and lets it be."""
    for end_first in (True, False):
        swarm = await bench.swarm({"a": (), "b": ("a",)}, slots=1)
        await swarm.fill()
        end = await swarm.change("a", "completed", "completed")

        async def commit(store: SqlStore) -> object:
            return await store.commit(end)  # noqa: B023

        async def cancel(store: SqlStore) -> object:
            return await store.cancel_tasks(swarm.rid, 10)  # noqa: B023

        _, second = await sessions.race(*((commit, cancel) if end_first else (cancel, commit)))
        if not end_first:  # the cascade left a's run a cancel note
            assert second == CancelPending(1)
        assert await swarm.statuses() == {"a": "completed" if end_first else "running", "b": "cancelled"}


async def test_a_parking_meets_a_fill(bench: Bench, sessions: Sessions) -> None:
    """A parked task gives back the slot that it was given while the parking waited."""
    swarm = await bench.swarm({"a": (), "b": ()}, slots=1)
    head = await swarm.head("a")
    _, parked = await sessions.race(
        lambda store: store.fill_slots(swarm.rid), lambda store: store.park(head.rid, 0, "quarantine")
    )
    assert parked
    assert await swarm.statuses() == {"a": "needs_reconciliation", "b": "ready"}


async def test_an_answer_meets_the_end_of_a_parking(bench: Bench, sessions: Sessions) -> None:
    """The last answer waits for a retry note that unparks the run: it is stored and the run is due."""
    head = await bench.suspended(await bench.start(), item("a"))
    assert await bench.store.park(head.rid, 1, "quarantine")
    _, answered = await sessions.race(
        lambda store: store.add_note(head.scope, head.run_id, "retry", "{}"),
        lambda store: store.answer_item(head.scope, head.run_id, "a", '"yes"'),
    )
    assert answered is not None
    assert answered.bell is not None
    assert (await bench.again(head)).has_work


async def test_two_reservations_on_one_scope(bench: Bench, sessions: Sessions) -> None:
    """The second waits for the scope row and is judged by what the first one holds."""
    await bench.store.set_budget("org", Budget(tokens=100))
    one, two = await bench.start(), await bench.start()
    reserves = [change_from(run, reserve=Reserve(str(run.rid), ("org",), 60, None)) for run in (one, two)]
    first, second = await sessions.race(lambda store: store.commit(reserves[0]), lambda store: store.commit(reserves[1]))
    assert isinstance(first, Applied)
    assert second == BudgetExceeded("org", "budget_exceeded")
    assert (await bench.again(two)).revision == 0


async def test_a_settlement_meanwhile_makes_room(bench: Bench, sessions: Sessions) -> None:
    """A reservation that waited folds what was settled during the wait before it is refused; nothing is folded twice."""
    store = bench.store
    await store.set_budget("org", Budget(tokens=100))
    one, two = await bench.start(), await bench.start()
    await bench.applied(one, reserve=Reserve("r1", ("org",), 90, None))
    one = await bench.again(one)
    again = change_from(one, settle=(Settle("r1", ("org",), "settled", 10),), reserve=Reserve("r2", ("org",), 30, None))
    reserve = change_from(two, reserve=Reserve("r3", ("org",), 60, None))
    first, second = await sessions.race(lambda store: store.commit(again), lambda store: store.commit(reserve))
    assert isinstance(first, Applied)
    assert isinstance(second, Applied)
    balance = await store.balance("org")
    assert balance is not None
    assert (balance.spent.tokens, balance.held.tokens, balance.unknown.tokens) == (10, 90, 0)
