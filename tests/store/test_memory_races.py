"""Two sessions and one fact on Postgres: the second has to wait for a row of the first."""

from __future__ import annotations

from uuid import uuid4

from deuz_workers.core.memory import MemoryQuery
from deuz_workers.store import SqlStore
from deuz_workers.testing.store_conformance_memory import ANN, EVERYTHING, memory
from tests.store.sessions import Sessions


async def texts(store: SqlStore, scope: str) -> list[tuple[str, str | None]]:
    """Texts and operations of all that is there, and that whatever is found has its ids."""
    found = await store.find_memories(scope, ANN, EVERYTHING)
    return sorted((record.text, record.operation_id) for record in found)


async def test_two_write_the_same_words(postgres: SqlStore, sessions: Sessions) -> None:
    """Whoever comes second finds them, and leaves its own ids on them."""
    scope = f"tenant-{uuid4()}"
    one, two = memory("likes tea", operation="one"), memory("likes tea", operation="two")
    await sessions.race(lambda store: store.write_memories(scope, [one]), lambda store: store.write_memories(scope, [two]))
    assert await texts(postgres, scope) == [("likes tea", "two")]
    [record] = await postgres.find_memories(scope, ANN, MemoryQuery("", now_ms=0))
    assert record.record_id == one.record_id


async def test_words_that_somebody_deletes_meanwhile_are_written(postgres: SqlStore, sessions: Sessions) -> None:
    """The record that says so already is gone when its turn comes; so the fact is stored under the new id."""
    scope = f"tenant-{uuid4()}"
    old, new = memory("likes tea", operation="old"), memory("likes tea", operation="new")
    await postgres.write_memories(scope, [old])
    await sessions.race(
        lambda store: store.delete_memories(scope, [old.record_id]), lambda store: store.write_memories(scope, [new])
    )
    assert await texts(postgres, scope) == [("likes tea", "new")]


async def test_words_that_somebody_changes_meanwhile_are_written(postgres: SqlStore, sessions: Sessions) -> None:
    """The record that said so says something else when its turn comes."""
    scope = f"tenant-{uuid4()}"
    old = memory("likes tea", operation="old")
    await postgres.write_memories(scope, [old])
    changed, new = memory("likes coffee", operation="first", record_id=old.record_id), memory("likes tea", operation="new")
    await sessions.race(lambda store: store.write_memories(scope, [changed]), lambda store: store.write_memories(scope, [new]))
    assert await texts(postgres, scope) == [("likes coffee", "first"), ("likes tea", "new")]


async def test_two_delete_one_record(postgres: SqlStore, sessions: Sessions) -> None:
    """The second finds nothing to do."""
    scope, record = f"tenant-{uuid4()}", memory("likes tea")
    await postgres.write_memories(scope, [record])
    await sessions.race(
        lambda store: store.delete_memories(scope, [record.record_id]),
        lambda store: store.delete_memories(scope, [record.record_id]),
    )
    assert await texts(postgres, scope) == []
    assert await sessions.rows("select count(*) from memory_id where scope = %s", scope) == [(0,)]
