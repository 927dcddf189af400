"""Chats, and how far runs have come in writing theirs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from deuz_workers.core.chat import ChatRecord, ChatState
from deuz_workers.core.messages import Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart, user
from deuz_workers.errors import RevisionConflictError
from deuz_workers.ports.store import RunStore, When
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench, change_from, item, message

ODD = "naïve \x00 \ud800 🐘"


def chat(chat_id: str | None = None, scope: str = "a", *texts: str) -> ChatRecord:
    messages = tuple(map(user, texts or ("hello",)))
    ids = tuple(f"m{place}" for place in range(len(messages)))
    return ChatRecord(chat_id or f"chat-{uuid4()}", scope, messages, ids)


class ChatConformance:
    """Needs a fixture named `store`, a `RunStore`."""

    async def test_a_chat_comes_back_as_it_was_saved(self, store: RunStore) -> None:
        """Every kind of part, whatever its text; each save raises the revision."""
        said = Message(
            "assistant",
            (
                ReasoningPart(ODD, {"signature": "s"}),
                TextPart(ODD),
                ToolUsePart("c", "look", {"n": 10**30, ODD: None}, None, "tool_0"),
            ),
        )
        answered = Message("tool", (ToolResultPart("c", "look", ODD, True, None, "tool_0", "error"),))
        saved = replace(chat(), messages=(user(ODD), said, answered), message_ids=("x", "y", ODD))
        assert await store.load_chat(saved.chat_id) is None
        assert await store.save_chat(saved) == 1
        assert await store.load_chat(saved.chat_id) == replace(saved, revision=1)
        assert await store.save_chat(replace(saved, messages=(), message_ids=())) == 2
        assert await store.load_chat(saved.chat_id) == replace(saved, messages=(), message_ids=(), revision=2)

    async def test_a_chat_is_written_over_the_revision_that_was_read(self, store: RunStore) -> None:
        """And over no other, nor where one is or is not there unlike what was read."""
        first = chat()
        with pytest.raises(RevisionConflictError):
            await store.write_chat(first, 1)
        assert await store.write_chat(first, None) == 1
        other = chat(first.chat_id, "a", "hello", "again")
        for expected in (None, 0, 2):
            with pytest.raises(RevisionConflictError):
                await store.write_chat(other, expected)
        assert await store.load_chat(first.chat_id) == replace(first, revision=1)
        assert await store.write_chat(other, 1) == 2
        assert await store.load_chat(first.chat_id) == replace(other, revision=2)

    async def test_of_many_writers_of_one_revision_one_wins(self, store: RunStore) -> None:
        """Of a new chat, and then of each revision; the others are told."""
        chat_id, expected = f"chat-{uuid4()}", None
        for turn in range(4):
            records = [chat(chat_id, "a", f"{turn}", f"writer {writer}") for writer in range(8)]
            outcomes = await asyncio.gather(*(store.write_chat(record, expected) for record in records), return_exceptions=True)
            won = [record for record, outcome in zip(records, outcomes, strict=True) if outcome == turn + 1]
            assert len(won) == 1, outcomes
            assert sum(isinstance(outcome, RevisionConflictError) for outcome in outcomes) == 7
            assert await store.load_chat(chat_id) == replace(won[0], revision=turn + 1)
            expected = turn + 1

    async def test_a_chat_of_another_scope_is_not_written_over(self, store: RunStore) -> None:
        """Neither conditionally nor plainly, and it cannot be deleted from there."""
        mine = chat(None, "mine")
        await store.save_chat(mine)
        theirs = chat(mine.chat_id, "theirs", "other")
        for writing in (store.save_chat(theirs), store.write_chat(theirs, 1)):
            with pytest.raises(RevisionConflictError):
                await writing
        assert not await store.delete_chat(mine.chat_id, "theirs")
        assert await store.load_chat(mine.chat_id) == replace(mine, revision=1)

    async def test_a_deleted_chat_stays_deleted(self, store: RunStore) -> None:
        """Nothing of it is left but that it was there, and nothing is written under its id again."""
        gone = chat()
        assert not await store.delete_chat(gone.chat_id, "a")
        await store.save_chat(gone)
        assert await store.delete_chat(gone.chat_id, "a")
        assert await store.load_chat(gone.chat_id) == ChatRecord(gone.chat_id, "a", (), (), 2, deleted=True)
        for writing in (store.save_chat(gone), store.write_chat(gone, 2), store.write_chat(gone, None)):
            with pytest.raises(RevisionConflictError):
                await writing
        assert not await store.delete_chat(gone.chat_id, "a")

    async def test_the_state_of_a_run_s_chat_is_written_behind_the_one_that_was_read(self, store: RunStore) -> None:
        """Of two writers the second writes nothing, not even when the run is due; no revision of the run moves."""
        bench = Bench(store)
        head = await bench.start()
        await bench.applied(head, status="completed", due_in_ms=0)
        head = await bench.again(head)
        read = {"revision": head.revision, "open_items": 0, "wake_seq": head.wake_seq}
        assert await store.chat_state(head.rid) == ChatState()
        state = ChatState("failed", 2, ("a", "b"), "digest", {"name": "E", "message": ODD})
        kept = await store.keep_chat_state(head.rid, state, **read, due_in_ms=0)
        assert (kept.kept, kept.due) == (True, True)
        assert await store.chat_state(head.rid) == replace(state, seq=1)
        late = await store.keep_chat_state(head.rid, ChatState("saved", 9), **read, due_in_ms=None)
        assert (late.kept, late.due) == (False, True)
        assert await store.chat_state(head.rid) == replace(state, seq=1)
        kept = await store.keep_chat_state(head.rid, ChatState("saved", 3, seq=1), **read, due_in_ms=None)
        assert (kept.kept, kept.due) == (True, False)
        after = await bench.again(head)
        assert (after.revision, after.commit_id, after.due_in_ms) == (head.revision, head.commit_id, None)

    async def test_a_run_whose_chat_is_owed_is_swept_until_its_state_is_kept(self, store: RunStore) -> None:
        """Ended or suspended, it is due by its commit and by nothing else."""
        bench = Bench(store)
        for given in ({"status": "completed"}, {"status": "suspended", "items": (item("i"),)}):
            head = await bench.start()
            await bench.applied(head, due_in_ms=0, **given)
            head = await bench.again(head)
            assert head.has_work
            read = {"revision": head.revision, "open_items": head.open_items, "wake_seq": head.wake_seq}
            assert not (await store.keep_chat_state(head.rid, ChatState("saved"), **read, due_in_ms=None)).due
            after = await bench.again(head)
            assert (after.due_in_ms, after.has_work) == (None, False)
            assert head.run_id not in await bench.swept()

    async def test_what_made_a_run_due_meanwhile_stays(self, store: RunStore) -> None:
        """An answer, an input, a further commit: the state is kept, and the run is due as it was."""
        bench = Bench(store)
        for happens in ("answer", "note", "commit"):
            head = await bench.suspended(await bench.start(), item("i"))
            read = {"revision": head.revision, "open_items": head.open_items, "wake_seq": head.wake_seq}
            match happens:
                case "answer":
                    assert await store.answer_item(bench.scope, head.run_id, "i", "{}")
                case "note":
                    assert await store.add_note(bench.scope, head.run_id, "message", "{}")
                case _:
                    await bench.applied(head, status="running", due_in_ms=0)
            kept = await store.keep_chat_state(head.rid, ChatState("saved"), **read, due_in_ms=None)
            assert (kept.kept, kept.due) == (True, True), happens
            assert (await bench.again(head)).has_work, happens

    async def test_a_suspended_run_is_due_at_its_next_moment(self, store: RunStore) -> None:
        """Not later than its deadline."""
        bench = Bench(store)
        for deadline, due_in_ms, most in ((None, HOUR_MS, HOUR_MS), (HOUR_MS, None, HOUR_MS), (HOUR_MS, 2 * HOUR_MS, HOUR_MS)):
            start = await bench.start(deadline=None if deadline is None else When(in_ms=deadline))
            await bench.applied(start, status="suspended", due_in_ms=0, items=(item("i"),))
            head = await bench.again(start)
            read = {"revision": head.revision, "open_items": 1, "wake_seq": head.wake_seq}
            assert not (await store.keep_chat_state(head.rid, ChatState("saved"), **read, due_in_ms=due_in_ms)).due
            left_ms = (await bench.again(head)).due_in_ms
            assert left_ms is not None
            assert most - 600_000 < left_ms <= most

    async def test_a_parked_run_stays_as_it_is(self, store: RunStore) -> None:
        """Its state is kept, and it has no work."""
        bench = Bench(store)
        head = await bench.start()
        await bench.applied(head, due_in_ms=0)
        head = await bench.again(head)
        assert await store.park(head.rid, head.revision, "tool-reconciliation-required")
        read = {"revision": head.revision, "open_items": 0, "wake_seq": head.wake_seq}
        kept = await store.keep_chat_state(head.rid, ChatState("saved"), **read, due_in_ms=0)
        assert (kept.kept, kept.due) == (True, False)
        assert (await bench.again(head)).due_in_ms is None

    async def test_messages_of_all_epochs_are_there(self, store: RunStore) -> None:
        """In order, without records of compactions."""
        bench = Bench(store)
        head = await bench.start(messages=(message(0), message(1)))
        await bench.applied(head, messages=(message(-1), message(2)), last_seq=2, compactions=1)
        head = await bench.again(head)
        change = change_from(head, epoch=1, messages=(message(0, "new"),), last_seq=0, compactions=0)
        await store.commit(change)
        found = [(epoch, row.seq, row.body) for epoch, row in await store.all_messages(head.rid)]
        assert found == [*((0, seq, message(seq).body) for seq in range(3)), (1, 0, "new")]

    async def test_the_state_goes_with_its_run_and_the_chat_stays(self, store: RunStore) -> None:
        """A pruned run takes nobody's conversation away."""
        bench, record = Bench(store), chat()
        await store.save_chat(record)
        head = await bench.start()
        await bench.applied(head, status="completed", due_in_ms=None)
        read = {"revision": 1, "open_items": 0, "wake_seq": 0}
        await store.keep_chat_state(head.rid, ChatState("saved", 1), **read, due_in_ms=None)
        assert await store.prune(older_ms=-1, status=("completed",), scope=bench.scope, limit=10) == 1
        assert await store.chat_state(head.rid) == ChatState()
        assert await store.load_chat(record.chat_id) is not None
