"""What outsiders do to a run: notes in its inbox, answers to its pending items."""

from __future__ import annotations

import asyncio
from typing import get_args

from deuz_workers.core.change import ItemAnswer, ItemRow, NoteKind
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import HOUR_MS, ODD_TEXT, Bench, item


class InputConformance:
    """`add_note`, `answer_items`, `open_items`."""

    async def test_a_note_raises_the_wake_and_not_the_revision(self, store: RunStore) -> None:
        """A note gets the next place, makes the run have work and leaves envelope and revision alone."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(agent="editor", priority=3))
        noted = await store.add_note(bench.scope, head.run_id, "message", "hello")
        assert noted is not None
        assert (noted.rid, noted.seq) == (head.rid, 1)
        bell = noted.bell
        assert (bell.scope, bell.run_id, bell.queue, bell.priority) == (bench.scope, head.run_id, bench.queue, 3)
        assert (bell.revision, bell.agent) == (1, "editor")
        now = await bench.again(head)
        assert (now.revision, now.status, now.wake_seq, now.cancel_seq, now.seen_seq) == (1, "suspended", 1, 0, 0)
        assert now.has_work
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert [(note.seq, note.kind, note.body) for note in loaded.notes] == [(1, "message", "hello")]

    async def test_every_kind_of_note_has_its_place(self, store: RunStore) -> None:
        """A note of each kind is stored and loaded as it is, in order, and a parked run is freed by three of them."""
        bench = Bench(store)
        head = await bench.start()
        kinds: tuple[NoteKind, ...] = get_args(NoteKind)
        for kind in kinds:
            await store.add_note(bench.scope, head.run_id, kind, f'"{kind}"')
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert [(note.kind, note.body) for note in loaded.notes] == [(kind, f'"{kind}"') for kind in kinds]
        frees: set[str] = set()
        for kind in kinds:
            parked = await bench.start()
            assert await store.park(parked.rid, parked.revision, "imported")
            await store.add_note(bench.scope, parked.run_id, kind, "{}")
            if (await bench.again(parked)).parked is None:
                frees.add(kind)
        assert frees == {"retry", "reconcile", "cancel"}

    async def test_notes_are_loaded_until_they_are_seen(self, store: RunStore) -> None:
        """A load returns the notes above `seen_seq`, in order; a commit that has seen them ends the work."""
        bench = Bench(store)
        head = await bench.start()
        for kind in ("message", "retry", "message"):
            await store.add_note(bench.scope, head.run_id, kind, kind)
        await bench.applied(head, seen_seq=2, due_in_ms=None)
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert [note.seq for note in loaded.notes] == [3]
        assert loaded.head.has_work
        await bench.applied(loaded.head, seen_seq=3, due_in_ms=None)
        assert not (await bench.again(head)).has_work

    async def test_places_of_notes_are_dense(self, store: RunStore) -> None:
        """Twenty notes at once, beside commits of the holder, get the places 1 to 20, and none is lost."""
        bench = Bench(store)
        head = await bench.start()
        notes = (store.add_note(bench.scope, head.run_id, "message", str(n)) for n in range(20))
        noted, _, _ = await asyncio.gather(asyncio.gather(*notes), bench.commit(head), bench.commit(head))
        assert sorted(note.seq for note in noted if note is not None) == list(range(1, 21))
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert [note.seq for note in loaded.notes] == list(range(1, 21))
        assert sorted(int(note.body) for note in loaded.notes) == list(range(20))
        assert (loaded.head.revision, loaded.head.wake_seq) == (1, 20)

    async def test_a_cancel_note_is_remembered_by_its_place(self, store: RunStore) -> None:
        """`cancel_seq` is the place of the newest cancel note; other notes do not move it."""
        bench = Bench(store)
        head = await bench.start()
        for kind in ("message", "cancel", "message"):
            await store.add_note(bench.scope, head.run_id, kind, "{}")
        assert (await bench.again(head)).cancel_seq == 2
        await store.add_note(bench.scope, head.run_id, "cancel", "{}")
        assert (await bench.again(head)).cancel_seq == 4

    async def test_no_note_for_a_run_that_is_not_there_or_over(self, store: RunStore) -> None:
        """An unknown run, another scope's run and a run that has ended, in whatever way, take no note, not even a retry."""
        bench, other = Bench(store), Bench(store)
        head = await bench.start()
        assert await store.add_note(bench.scope, "nobody", "message", "{}") is None
        assert await store.add_note(other.scope, head.run_id, "message", "{}") is None
        for status in ("completed", "stopped", "failed"):
            over = await bench.start()
            await bench.applied(over, status=status, due_in_ms=None)
            for kind in ("cancel", "retry"):
                assert await store.add_note(bench.scope, over.run_id, kind, "{}") is None
            assert (await bench.again(over)).wake_seq == 0

    async def test_a_suspension_lists_its_items(self, store: RunStore) -> None:
        """The items of a suspension are stored as given, counted in the head, and listed while they are open."""
        bench = Bench(store)
        items = (
            ItemRow("a", "approval", "{}", digest="00ff", expires_in_ms=HOUR_MS),
            ItemRow("b", "deferral", ODD_TEXT[0]),
            ItemRow("c", "child_run", "{}"),
        )
        head = await bench.suspended(await bench.start(), *items)
        assert (head.open_items, head.due_in_ms, head.has_work) == (3, None, False)
        rows = {row.item_id: row for row in await store.open_items(bench.scope, head.run_id)}
        assert sorted(rows) == ["a", "b", "c"]
        assert (rows["a"].kind, rows["a"].digest, rows["a"].answer) == ("approval", "00ff", None)
        assert rows["a"].expires_in_ms is not None
        assert HOUR_MS / 2 < rows["a"].expires_in_ms <= HOUR_MS
        assert (rows["b"].body, rows["b"].digest, rows["b"].expires_in_ms) == (ODD_TEXT[0], None, None)
        await store.answer_item(bench.scope, head.run_id, "b", ODD_TEXT[1])
        assert sorted(row.item_id for row in await store.open_items(bench.scope, head.run_id)) == ["a", "c"]
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert {row.item_id: row.answer for row in loaded.items} == {"a": None, "b": ODD_TEXT[1], "c": None}

    async def test_the_last_answer_wakes_the_run(self, store: RunStore) -> None:
        """Answers are counted down; only the one that closes the last item rings, and the run has work then."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"), item("b"))
        first = await store.answer_item(bench.scope, head.run_id, "b", "yes")
        assert first is not None
        assert (first.stored, first.open_items, first.bell, first.swarm_rid) == (True, 1, None, None)
        assert not (await bench.again(head)).has_work
        last = await store.answer_item(bench.scope, head.run_id, "a", "no")
        assert last is not None
        assert (last.stored, last.open_items) == (True, 0)
        assert last.bell is not None
        assert (last.bell.scope, last.bell.run_id, last.bell.queue) == (bench.scope, head.run_id, bench.queue)
        now = await bench.again(head)
        assert (now.revision, now.open_items, now.has_work) == (1, 0, True)

    async def test_an_item_is_answered_once(self, store: RunStore) -> None:
        """The second answer is not stored and learns the first one; the count stays."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"), item("b"))
        await store.answer_item(bench.scope, head.run_id, "a", "yes")
        second = await store.answer_item(bench.scope, head.run_id, "a", "no")
        assert second is not None
        assert (second.stored, second.open_items, second.winner, second.bell) == (False, 1, "yes", None)
        assert (await bench.again(head)).open_items == 1

    async def test_of_simultaneous_answers_one_is_stored(self, store: RunStore) -> None:
        """Eight people answer one item at once: one answer is stored, the others are told which."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"))
        answers = await asyncio.gather(*(store.answer_item(bench.scope, head.run_id, "a", str(n)) for n in range(8)))
        stored = [n for n, answer in enumerate(answers) if answer is not None and answer.stored]
        assert len(stored) == 1
        assert {answer.winner for answer in answers if answer is not None and not answer.stored} == {str(stored[0])}
        assert sum(answer is not None and answer.bell is not None for answer in answers) == 1

    async def test_of_simultaneous_last_answers_one_rings(self, store: RunStore) -> None:
        """Eight items answered at once are all stored, and exactly one answer closes the suspension."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), *(item(str(n)) for n in range(8)))
        answers = await asyncio.gather(*(store.answer_item(bench.scope, head.run_id, str(n), "yes") for n in range(8)))
        assert all(answer is not None and answer.stored for answer in answers)
        assert sum(answer is not None and answer.bell is not None for answer in answers) == 1
        now = await bench.again(head)
        assert (now.open_items, now.has_work) == (0, True)

    async def test_an_expired_item_takes_no_answer(self, store: RunStore) -> None:
        """By the store's clock an item past its expiry cannot be answered; it stays open for the run to settle."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a", expires_in_ms=0), item("b", expires_in_ms=HOUR_MS))
        late = await store.answer_item(bench.scope, head.run_id, "a", "yes")
        assert late is not None
        assert (late.stored, late.open_items, late.winner) == (False, 2, None)
        in_time = await store.answer_item(bench.scope, head.run_id, "b", "yes")
        assert in_time is not None
        assert (in_time.stored, in_time.open_items, in_time.bell) == (True, 1, None)

    async def test_an_item_that_is_not_there_takes_no_answer(self, store: RunStore) -> None:
        """An unknown item is refused without a winner; an unknown run, or another scope's, is None."""
        bench, other = Bench(store), Bench(store)
        head = await bench.suspended(await bench.start(), item("a"))
        unknown = await store.answer_item(bench.scope, head.run_id, "b", "yes")
        assert unknown is not None
        assert (unknown.stored, unknown.open_items, unknown.winner) == (False, 1, None)
        assert await store.answer_item(bench.scope, "nobody", "a", "yes") is None
        assert await store.answer_item(other.scope, head.run_id, "a", "yes") is None

    async def test_going_on_closes_a_suspension(self, store: RunStore) -> None:
        """A commit without items leaves none open: they are neither listed nor loaded, and take no answer."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"), item("b"))
        await store.answer_item(bench.scope, head.run_id, "a", "yes")
        await bench.applied(await bench.again(head), status="running")
        now = await bench.again(head)
        assert now.open_items == 0
        assert await store.open_items(bench.scope, head.run_id) == ()
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert loaded.items == ()
        late = await store.answer_item(bench.scope, head.run_id, "b", "yes")
        assert late is not None
        assert (late.stored, late.open_items, late.bell) == (False, 0, None)

    async def test_a_later_suspension_may_use_an_item_id_again(self, store: RunStore) -> None:
        """Items belong to one suspension: the same id opens anew in the next one, without the old answer."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"), item("b"))
        await store.answer_item(bench.scope, head.run_id, "a", "old")
        await bench.applied(await bench.again(head), status="running")
        head = await bench.suspended(await bench.again(head), item("a", body="new"))
        assert [(row.item_id, row.body, row.answer) for row in await store.open_items(bench.scope, head.run_id)] == [
            ("a", "new", None)
        ]
        answer = await store.answer_item(bench.scope, head.run_id, "a", "new answer")
        assert answer is not None
        assert (answer.stored, answer.open_items) == (True, 0)
        assert answer.bell is not None

    async def test_an_answer_and_a_suspension_race_without_loss(self, store: RunStore) -> None:
        """Answers that come while the holder commits are either refused or counted; the open count equals the open rows."""
        bench = Bench(store)
        for _ in range(5):
            head = await bench.suspended(await bench.start(), *(item(str(n)) for n in range(4)))
            await asyncio.gather(
                *(store.answer_item(bench.scope, head.run_id, str(n), "yes") for n in range(4)),
                bench.commit(head, status="suspended", due_in_ms=None, items=(item("x"), item("y"))),
            )
            now = await bench.again(head)
            assert now.open_items == len(await store.open_items(bench.scope, head.run_id))

    async def test_a_set_of_answers_is_stored_whole_or_not_at_all(self, store: RunStore) -> None:
        """With one required item answered before, nothing of the set is stored; what is not required is left out instead."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"), item("b"), item("c"))
        await store.answer_item(bench.scope, head.run_id, "b", "first")
        refused = await store.answer_items(bench.scope, head.run_id, [ItemAnswer("a", "yes"), ItemAnswer("b", "second")])
        assert refused is not None
        assert (refused.stored, refused.open_items, refused.winner, refused.item_id) == (False, 2, "first", "b")
        assert [row.item_id for row in await store.open_items(bench.scope, head.run_id)] == ["a", "c"]
        some = [ItemAnswer("a", "yes"), ItemAnswer("b", "second", required=False), ItemAnswer("c", "no", required=False)]
        stored = await store.answer_items(bench.scope, head.run_id, some)
        assert stored is not None
        assert (stored.stored, stored.open_items) == (True, 0)
        assert stored.bell is not None
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert {row.item_id: row.answer for row in loaded.items} == {"a": "yes", "b": "first", "c": "no"}

    async def test_of_overlapping_sets_one_is_stored(self, store: RunStore) -> None:
        """Six sets that share an item, given at once: one is stored whole, the others leave nothing behind."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("shared"), *(item(str(n)) for n in range(6)))
        sets = [[ItemAnswer("shared", str(n)), ItemAnswer(str(n), "yes")] for n in range(6)]
        answers = await asyncio.gather(*(store.answer_items(bench.scope, head.run_id, one) for one in sets))
        [won] = [n for n, answer in enumerate(answers) if answer is not None and answer.stored]
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        answered = {row.item_id: row.answer for row in loaded.items if row.answer is not None}
        assert answered == {"shared": str(won), str(won): "yes"}
        assert loaded.head.open_items == 5

    async def test_votes_are_counted_one_after_the_other(self, store: RunStore) -> None:
        """A vote keeps its item open, one that has not seen the votes before it is refused with them, the last answers."""
        bench = Bench(store)
        head = await bench.suspended(await bench.start(), item("a"))
        first = await store.answer_items(bench.scope, head.run_id, [ItemAnswer("a", None, votes="ann")])
        assert first is not None
        assert (first.stored, first.open_items, first.bell) == (True, 1, None)
        blind = await store.answer_items(bench.scope, head.run_id, [ItemAnswer("a", None, votes="bob")])
        assert blind is not None
        assert (blind.stored, blind.winner, blind.votes) == (False, None, "ann")
        assert [row.votes for row in await store.open_items(bench.scope, head.run_id)] == ["ann"]
        seen = ItemAnswer("a", "yes", votes="ann, bob", votes_before="ann")
        last = await store.answer_items(bench.scope, head.run_id, [seen])
        assert last is not None
        assert (last.stored, last.open_items) == (True, 0)
        assert last.bell is not None
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert [(row.answer, row.votes) for row in loaded.items] == [("yes", "ann, bob")]

    async def test_only_an_expired_item_is_closed_as_expired(self, store: RunStore) -> None:
        """The answer that it expired closes an item whose time has passed, and no other."""
        bench = Bench(store)
        head = await bench.suspended(
            await bench.start(), item("a", expires_in_ms=0), item("b", expires_in_ms=HOUR_MS), item("c")
        )
        for alive in ("b", "c"):
            refused = await store.answer_items(bench.scope, head.run_id, [ItemAnswer(alive, "late", expired=True)])
            assert refused is not None
            assert (refused.stored, refused.open_items) == (False, 3)
        closed = await store.answer_items(bench.scope, head.run_id, [ItemAnswer("a", "late", expired=True)])
        assert closed is not None
        assert (closed.stored, closed.open_items, closed.bell) == (True, 2, None)

    async def test_moments_of_an_item_are_kept(self, store: RunStore) -> None:
        """When somebody is reminded and when it goes to somebody else, by the store's clock, listed and loaded."""
        bench = Bench(store)
        given = item("a", expires_in_ms=3 * HOUR_MS, remind_in_ms=HOUR_MS, escalate_in_ms=2 * HOUR_MS)
        head = await bench.suspended(await bench.start(), given, item("b"))
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        for timed, plain in (await store.open_items(bench.scope, head.run_id), loaded.items):
            assert timed.remind_in_ms is not None
            assert timed.escalate_in_ms is not None
            assert HOUR_MS / 2 < timed.remind_in_ms <= HOUR_MS < timed.escalate_in_ms <= 2 * HOUR_MS
            assert (plain.remind_in_ms, plain.escalate_in_ms) == (None, None)
