"""The commit: all or nothing, one winner per revision, and the answer that got lost."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from deuz_workers.core.change import Applied, CancelPending, Reserve, RevisionConflict
from deuz_workers.core.usage import Budget
from deuz_workers.errors import StoreError
from deuz_workers.ports.store import Loaded, RunStore
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench, change_from, item, message, new_rid, receipt


class CommitConformance:
    """`commit` without swarm and ledger."""

    async def test_a_commit_writes_every_part(self, store: RunStore) -> None:
        """One commit moves the envelope and appends messages, receipts and journal rows, and answers the new revision."""
        bench = Bench(store)
        head = await bench.start(messages=(message(0),))
        change = change_from(
            head,
            phase="finalizing",
            body="second",
            version=2,
            mid_step=True,
            tokens=120,
            cost_micros=None,
            messages=(message(1), message(2)),
            receipts=(receipt(0, "b"), receipt(0, "a"), receipt(0, "a", 1)),
            journal=("j1", "j2"),
        )
        outcome = await store.commit(change)
        assert outcome == Applied(revision=1, wake_seq=0, cancel_seq=0, due=True)
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        now = loaded.head
        assert (now.revision, now.commit_id, now.status, now.phase) == (1, change.commit_id, "running", "finalizing")
        assert (now.body, now.version, now.mid_step, now.tokens, now.cost_micros) == ("second", 2, True, 120, None)
        assert (now.last_seq, now.journal_seq) == (2, 2)
        assert loaded.messages == (message(0), message(1), message(2))
        assert [(row.call_id, row.seq, row.stage) for row in loaded.receipts] == [
            ("a", 0, "executing"),
            ("a", 1, "completed"),
            ("b", 0, "executing"),
        ]
        assert [(row.seq, row.body) for row in await store.journal(bench.scope, head.run_id, 0, 10)] == [(1, "j1"), (2, "j2")]

    async def test_a_stale_revision_writes_nothing(self, store: RunStore) -> None:
        """A commit made from an older revision is told the stored one and leaves no trace."""
        bench = Bench(store)
        head = await bench.start()
        await bench.applied(head, body="first")
        before = await self._everything(bench, head.run_id)
        late = await bench.commit(head, body="late", messages=(message(0),), receipts=(receipt(0, "a"),), journal=("late",))
        assert late == RevisionConflict(1)
        assert await self._everything(bench, head.run_id) == before

    async def test_a_revision_from_the_future_is_a_conflict(self, store: RunStore) -> None:
        """A store that went backwards refuses a commit made from a revision that it does not know yet."""
        bench = Bench(store)
        head = await bench.start()
        assert await bench.commit(head, expected=5) == RevisionConflict(0)

    async def test_a_run_that_is_gone_is_a_conflict(self, store: RunStore) -> None:
        """A commit of a run that nobody has is a conflict without a revision."""
        bench = Bench(store)
        head = await bench.start()
        assert await bench.commit(head, rid=new_rid()) == RevisionConflict(None)

    async def test_one_of_many_commits_from_a_revision_wins(self, store: RunStore) -> None:
        """Of eight simultaneous commits from one revision exactly one is applied; the others are conflicts."""
        bench = Bench(store)
        head = await bench.start()
        for revision in range(5):
            outcomes = await asyncio.gather(*(bench.commit(head, messages=(message(revision, str(n)),)) for n in range(8)))
            assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 1
            assert all(isinstance(outcome, Applied | RevisionConflict) for outcome in outcomes)
            head = await bench.again(head)
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert (loaded.head.revision, len(loaded.messages)) == (5, 5)

    async def test_the_same_change_offered_again_is_applied_once(self, store: RunStore) -> None:
        """Whoever lost the answer may offer the change again: it is told `Applied`, and nothing is written twice."""
        bench = Bench(store)
        head = await bench.start()
        change = change_from(head, messages=(message(0),), receipts=(receipt(0, "a"),), journal=("once",))
        first = await store.commit(change)
        again = await store.commit(change)
        assert isinstance(first, Applied)
        assert isinstance(again, Applied)
        assert again.revision == first.revision == 1
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert loaded.messages == (message(0),)
        assert len(await store.journal(bench.scope, head.run_id, 0, 10)) == 1
        await bench.applied(loaded.head)
        assert await store.commit(change) == RevisionConflict(2)

    @pytest.mark.parametrize("broken", ["message", "receipt", "journal"])
    async def test_a_part_that_fails_takes_the_others_with_it(self, store: RunStore, broken: str) -> None:
        """A commit one of whose rows cannot be written raises a StoreError and changes nothing, head and wakes included."""
        bench = Bench(store)
        other = await bench.start()
        head = await bench.start(messages=(message(0),))
        await bench.applied(head, receipts=(receipt(0, "a"),), journal=("j1",))
        head = await bench.again(head)
        before = await self._everything(bench, head.run_id)
        parts: dict[str, Any] = {
            "messages": (message(1), message(2)),
            "receipts": (receipt(1, "a"), receipt(1, "b")),
            "journal": ("j2", "j3"),
        }
        twice = {
            "message": {"messages": (message(1), message(0)), "last_seq": 1},
            "receipt": {"receipts": (receipt(1, "a"), receipt(0, "a"))},
            "journal": {"journal_seq": 0},
        }
        with pytest.raises(StoreError):
            await bench.commit(head, status="suspended", items=(item("i1"),), wakes=(other.rid,), **{**parts, **twice[broken]})
        assert await self._everything(bench, head.run_id) == before
        assert (await bench.again(other)).wake_seq == 0
        await bench.applied(head, **parts)

    async def test_a_refused_reservation_writes_nothing(self, store: RunStore) -> None:
        """A commit whose reservation is refused leaves history, items and other runs as they were."""
        bench = Bench(store)
        key = f"{bench.scope}:poor"
        await store.set_budget(key, Budget(tokens=10))
        head, other = await bench.start(), await bench.start()
        before = await self._everything(bench, head.run_id)
        outcome = await bench.commit(
            head, messages=(message(0),), journal=("j",), wakes=(other.rid,), reserve=Reserve("r1", (key,), 11, None)
        )
        assert getattr(outcome, "scope", None) == key
        assert await self._everything(bench, head.run_id) == before
        assert (await bench.again(other)).wake_seq == 0

    async def test_progress_forgets_unclean_ends(self, store: RunStore) -> None:
        """`attempts` survives commits without progress and goes to zero with the first that made some."""
        bench = Bench(store)
        head = await bench.start()
        assert await store.record_unclean_end(head.rid, 0, 0) == 1
        await bench.applied(head)
        head = await bench.again(head)
        assert head.attempts == 1
        await bench.applied(head, progress=True)
        assert (await bench.again(head)).attempts == 0

    async def test_due_follows_the_commit(self, store: RunStore) -> None:
        """A later `due_in_ms` is no work yet, None waits for an input, 0 is work at once."""
        bench = Bench(store)
        head = await bench.start()
        assert not (await bench.applied(head, due_in_ms=HOUR_MS)).due
        head = await bench.again(head)
        assert head.due_in_ms is not None
        assert HOUR_MS / 2 < head.due_in_ms <= HOUR_MS
        assert not (await bench.applied(head, due_in_ms=None)).due
        head = await bench.again(head)
        assert head.due_in_ms is None
        assert not head.has_work
        assert (await bench.applied(head, due_in_ms=0)).due
        assert (await bench.again(head)).has_work

    async def test_work_after_the_end_keeps_a_final_run_due(self, store: RunStore) -> None:
        """A run that completed with work left is due; a commit that does it leaves the final status and ends it."""
        bench = Bench(store)
        head = await bench.start()
        assert (await bench.applied(head, status="completed", due_in_ms=0)).due
        head = await bench.again(head)
        assert (head.status, head.has_work) == ("completed", True)
        assert not (await bench.applied(head, due_in_ms=None)).due
        assert (await bench.again(head)).status == "completed"

    async def test_an_input_before_a_suspension_is_not_lost(self, store: RunStore) -> None:
        """A run that suspends while an input is unseen is due at once, whatever the commit asked for."""
        bench = Bench(store)
        head = await bench.start()
        await store.add_note(bench.scope, head.run_id, "message", "hello")
        outcome = await bench.applied(head, status="suspended", due_in_ms=None, items=(item("i1"),))
        assert (outcome.due, outcome.wake_seq) == (True, 1)
        head = await bench.again(head)
        assert (head.status, head.has_work) == ("suspended", True)

    @pytest.mark.parametrize("status", ["suspended", "completed", "stopped", "failed"])
    async def test_an_unseen_cancel_forbids_leaving(self, store: RunStore, status: str) -> None:
        """Suspending or ending is refused while a cancel is unseen and writes nothing; a commit that has seen it may."""
        bench = Bench(store)
        head = await bench.start()
        await store.add_note(bench.scope, head.run_id, "cancel", "{}")
        before = await self._everything(bench, head.run_id)
        refused = await bench.commit(head, status=status, due_in_ms=None, messages=(message(0),), journal=("j",))
        assert refused == CancelPending(1)
        assert await self._everything(bench, head.run_id) == before
        at_work = await bench.applied(head)
        assert at_work.cancel_seq == 1
        seen = await bench.applied(await bench.again(head), status=status, due_in_ms=None, seen_seq=1)
        assert not seen.due

    async def test_a_completion_that_hears_is_refused_while_any_input_is_unseen(self, store: RunStore) -> None:
        """Whatever kind it is; once it is seen the same change is applied. One that does not hear counts it as seen."""
        bench = Bench(store)
        for kind in ("message", "policy"):
            head = await bench.start()
            await store.add_note(bench.scope, head.run_id, kind, "{}")
            over = {"status": "completed", "due_in_ms": None}
            assert isinstance(await bench.commit(head, hears=True, **over), CancelPending)
            assert (await bench.again(head)).revision == head.revision
            assert isinstance(await bench.commit(head, hears=True, seen_seq=1, **over), Applied)
            deaf = await bench.start()
            await store.add_note(bench.scope, deaf.run_id, kind, "{}")
            await bench.applied(deaf, **over)
            assert (await bench.again(deaf)).seen_seq == 1

    @pytest.mark.parametrize("budgeted", [False, True])
    async def test_an_unseen_cancel_forbids_starting(self, store: RunStore, budgeted: bool) -> None:
        """A commit by which an effect begins is refused like one that leaves, with its reservation; one that saw it may."""
        bench = Bench(store)
        head = await bench.start()
        await store.add_note(bench.scope, head.run_id, "cancel", "{}")
        before = await self._everything(bench, head.run_id)
        reserve = Reserve("r1", (f"run:{head.rid.hex}",), 10, 10) if budgeted else None
        refused = await bench.commit(head, starts=True, mid_step=True, reserve=reserve, receipts=(receipt(1, "c1"),))
        assert refused == CancelPending(1)
        assert await self._everything(bench, head.run_id) == before
        await bench.applied(head, starts=True, mid_step=True, reserve=reserve, receipts=(receipt(1, "c1"),), seen_seq=1)

    async def test_a_start_and_a_cancel_come_one_after_the_other(self, store: RunStore) -> None:
        """Racing with a cancel, a start is refused or reports none: nothing begins behind a cancel."""
        bench = Bench(store)
        for _ in range(10):
            head = await bench.start()
            outcome, noted = await asyncio.gather(
                bench.commit(head, starts=True, mid_step=True), store.add_note(bench.scope, head.run_id, "cancel", "{}")
            )
            assert noted is not None
            assert outcome == CancelPending(1) or (isinstance(outcome, Applied) and outcome.cancel_seq == 0)

    async def test_a_suspension_and_a_cancel_come_one_after_the_other(self, store: RunStore) -> None:
        """Racing with a cancel, a suspension is refused or the suspended run has work: never neither."""
        bench = Bench(store)
        for _ in range(10):
            head = await bench.start()
            outcome, noted = await asyncio.gather(
                bench.commit(head, status="suspended", due_in_ms=None), store.add_note(bench.scope, head.run_id, "cancel", "{}")
            )
            assert noted is not None
            assert isinstance(outcome, Applied | CancelPending)
            assert (await bench.again(head)).has_work

    async def test_a_commit_wakes_other_runs(self, store: RunStore) -> None:
        """Every run in `wakes` gets a `child` note and work, and its bell comes back; its revision stays."""
        bench = Bench(store)
        parents = [await bench.suspended(await bench.start(), item("i1")) for _ in range(3)]
        child = await bench.start()
        outcome = await bench.applied(child, status="completed", due_in_ms=None, wakes=tuple(parent.rid for parent in parents))
        assert {bell.run_id for bell in outcome.woken} == {parent.run_id for parent in parents}
        assert {(bell.scope, bell.queue) for bell in outcome.woken} == {(bench.scope, bench.queue)}
        for parent in parents:
            loaded = await store.load(bench.scope, parent.run_id)
            assert loaded is not None
            assert (loaded.head.revision, loaded.head.wake_seq, loaded.head.has_work) == (1, 1, True)
            assert [(note.seq, note.kind) for note in loaded.notes] == [(1, "child")]

    async def test_a_wake_of_a_run_that_is_gone_is_ignored(self, store: RunStore) -> None:
        """A parent that no longer exists does not keep its child from ending."""
        bench = Bench(store)
        outcome = await bench.applied(await bench.start(), status="completed", due_in_ms=None, wakes=(new_rid(),))
        assert outcome.woken == ()

    async def test_runs_that_wake_each_other_do_not_block(self, store: RunStore) -> None:
        """Two runs that commit with a wake of the other, many times at once, all get through."""
        bench = Bench(store)
        one, two = await bench.start(), await bench.start()
        for _ in range(15):
            outcomes = await asyncio.gather(bench.commit(one, wakes=(two.rid,)), bench.commit(two, wakes=(one.rid,)))
            assert all(isinstance(outcome, Applied) for outcome in outcomes)
            one, two = await bench.again(one), await bench.again(two)
        assert (one.wake_seq, two.wake_seq) == (15, 15)

    async def test_commit_ids_are_kept_as_given(self, store: RunStore) -> None:
        """The head carries the id of the commit that made its revision, and no other."""
        bench = Bench(store)
        head = await bench.start()
        for _ in range(3):
            commit_id = uuid4()
            await bench.applied(head, commit_id=commit_id)
            head = await bench.again(head)
            assert head.commit_id == commit_id

    async def test_the_journal_is_dense_and_read_by_cursor(self, store: RunStore) -> None:
        """Journal places are 1, 2, 3 ... over all commits; a reader continues after the last place it saw."""
        bench = Bench(store)
        head = await bench.start()
        for count in (2, 0, 3, 1):
            await bench.applied(head, journal=tuple(f"event {head.journal_seq + n + 1}" for n in range(count)))
            head = await bench.again(head)
        seen: list[tuple[int, str]] = []
        while rows := await store.journal(bench.scope, head.run_id, seen[-1][0] if seen else 0, 4):
            assert all(row.at_ms > 0 for row in rows)
            seen += [(row.seq, row.body) for row in rows]
        assert seen == [(n, f"event {n}") for n in range(1, 7)]

    async def _everything(self, bench: Bench, run_id: str) -> tuple[object, ...]:
        """All that is stored of a run, without what moves with the clock."""
        loaded: Loaded | None = await bench.store.load(bench.scope, run_id)
        assert loaded is not None
        head = loaded.head
        return (
            (head.revision, head.commit_id, head.status, head.phase, head.body, head.last_seq, head.journal_seq, head.seen_seq),
            (head.wake_seq, head.cancel_seq, head.open_items, head.parked, head.attempts, head.tokens),
            (loaded.messages, loaded.receipts, loaded.notes, loaded.items),
            await bench.store.journal(bench.scope, run_id, 0, 1_000),
        )
