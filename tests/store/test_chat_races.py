"""Writing a chat, and keeping how far it has come, beside somebody who has the same row."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from deuz_workers.core.change import Applied, Head
from deuz_workers.core.chat import ChatRecord, ChatState
from deuz_workers.core.messages import user
from deuz_workers.errors import RevisionConflictError
from deuz_workers.ports.chat import ChatKept
from deuz_workers.store import SqlStore
from deuz_workers.testing.store_conformance_bench import Bench, change_from, item
from tests.store.sessions import Sessions


def said(text: str, chat_id: str) -> ChatRecord:
    return ChatRecord(chat_id, "s", (user(text),), ("m",))


async def write(store: SqlStore, record: ChatRecord, expected: int | None) -> int | str:
    try:
        return await store.write_chat(record, expected)
    except RevisionConflictError:
        return "conflict"


async def waiting(bench: Bench) -> Head:
    """A run that waits for one answer and is due for its chat."""
    head = await bench.start()
    await bench.applied(head, status="suspended", due_in_ms=0, items=(item("i"),))
    return await bench.again(head)


async def keep(store: SqlStore, head: Head, seq: int = 0) -> ChatKept:
    read = {"revision": head.revision, "open_items": head.open_items, "wake_seq": head.wake_seq}
    return await store.keep_chat_state(head.rid, ChatState("saved", 1, seq=seq), **read, due_in_ms=None)


@pytest.mark.spec("CHT-022")
@pytest.mark.parametrize("is_new", [True, False])
async def test_a_writer_that_waited_for_another_writes_nothing(sessions: Sessions, is_new: bool) -> None:
    """Of a new chat and of one that both had read: the second is told, and the first one's stays."""
    first, second = said("first", chat_id := f"chat-{uuid4()}"), said("second", chat_id)
    expected = None if is_new else await sessions.store.write_chat(said("before", chat_id), None)
    one, other = await sessions.race(lambda store: write(store, first, expected), lambda store: write(store, second, expected))
    assert (one, other) == ((expected or 0) + 1, "conflict")
    assert await sessions.store.load_chat(chat_id) == replace(first, revision=one)


async def test_a_writer_that_waited_for_a_deletion_writes_nothing(sessions: Sessions) -> None:
    """A deleted chat stays deleted, for plain saves too."""
    for plain in (True, False):
        record = said("mine", f"chat-{uuid4()}")
        assert await sessions.store.save_chat(record) == 1

        async def again(store: SqlStore, record: ChatRecord = record, plain: bool = plain) -> int | str:
            if not plain:
                return await write(store, record, 1)
            try:
                return await store.save_chat(record)
            except RevisionConflictError:
                return "conflict"

        gone, written = await sessions.race(lambda store, record=record: store.delete_chat(record.chat_id, "s"), again)
        assert (gone, written) == (True, "conflict")


async def test_an_answer_that_was_under_way_keeps_the_run_due(bench: Bench, sessions: Sessions) -> None:
    """The state waits for the head, and is decided from what stands there then."""
    head = await waiting(bench)
    answered, kept = await sessions.race(
        lambda store: store.answer_item(bench.scope, head.run_id, "i", "{}"), lambda store: keep(store, head)
    )
    assert answered is not None
    assert answered.stored
    assert (kept.kept, kept.due) == (True, True)
    after = await bench.again(head)
    assert (after.open_items, after.has_work) == (0, True)


async def test_an_answer_that_waited_for_the_state_makes_the_run_due(bench: Bench, sessions: Sessions) -> None:
    """The other order: the run waits again, and then goes on."""
    head = await waiting(bench)
    kept, answered = await sessions.race(
        lambda store: keep(store, head), lambda store: store.answer_item(bench.scope, head.run_id, "i", "{}")
    )
    assert (kept.kept, kept.due) == (True, False)
    assert answered is not None
    assert answered.bell is not None
    assert (await bench.again(head)).has_work


async def test_a_commit_that_was_under_way_decides_when_the_run_is_due(bench: Bench, sessions: Sessions) -> None:
    """The state of an older revision is kept, and the run is due as its newer one says."""
    head = await waiting(bench)
    change = change_from(head, status="running", due_in_ms=0)
    outcome, kept = await sessions.race(lambda store: store.commit(change), lambda store: keep(store, head))
    assert isinstance(outcome, Applied)
    assert (kept.kept, kept.due) == (True, True)
    assert (await bench.again(head)).has_work


async def test_of_two_that_keep_a_state_one_does(bench: Bench, sessions: Sessions) -> None:
    """The second waits, finds another number and writes nothing; when the run is due stays as the first one said."""
    head = await waiting(bench)
    one, other = await sessions.race(lambda store: keep(store, head), lambda store: keep(store, head))
    assert (one.kept, one.due, other.kept, other.due) == (True, False, False, False)
    assert (await sessions.store.chat_state(head.rid)).seq == 1
    assert (await bench.again(head)).due_in_ms is None
    assert (await keep(sessions.store, head, seq=1)).kept
