"""Memories: `MemoryStore`, for stores that keep them; they are no part of `RunStore`."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from deuz_workers.core.memory import MemoryQuery, MemoryRecord, MemoryScope
from deuz_workers.ports.memory import MemoryStore
from deuz_workers.testing.store_conformance_bench import ODD_TEXT

ANN, BOB = MemoryScope(user_id="ann"), MemoryScope(user_id="bob")
EVERYTHING = MemoryQuery("", 1_000, now_ms=10)


def memory(text: str, within: MemoryScope = ANN, *, operation: str = "op", at_ms: int = 1, **given: Any) -> MemoryRecord:
    metadata = {"deuz": {"run_id": "r", "operation_id": operation}}
    record_id = given.pop("record_id", None) or uuid4().hex
    return MemoryRecord(record_id, text, within, at_ms, at_ms, metadata, **given)


class MemoryConformance:
    """Needs a fixture named `memories`, a `MemoryStore`."""

    async def test_a_memory_is_read_back_as_it_was_written(self, memories: MemoryStore) -> None:
        """Whatever its text says, with ids, metadata, times and vector."""
        scope = f"tenant-{uuid4()}"
        for text in ODD_TEXT:
            within = MemoryScope(user_id="ann", agent_id="a", run_id="r", actor_id="x", chat_id="c")
            given = memory(text, within, at_ms=7, vector=(0.5, -1.0), embedded_by="e", expires_at_ms=99)
            await memories.write_memories(scope, [given])
            assert await memories.find_memories(scope, MemoryScope(run_id="r"), EVERYTHING) == (given,)
            await memories.delete_memories(scope, [given.record_id])
            assert await memories.find_memories(scope, within, EVERYTHING) == ()

    async def test_a_scope_reaches_what_has_all_its_ids(self, memories: MemoryStore) -> None:
        """Exactly these, whatever other ids a record has; other values, other fields and other tenants are others."""
        scope = f"tenant-{uuid4()}"
        given = {
            "user": memory("user", ANN),
            "chat": memory("chat", MemoryScope(user_id="ann", chat_id="c")),
            "bob": memory("bob", BOB),
            "agent": memory("agent", MemoryScope(agent_id="ann")),
        }
        await memories.write_memories(scope, list(given.values()))
        await memories.write_memories(f"{scope}/other", [memory("elsewhere", ANN)])

        async def reached(**ids: str) -> set[str]:
            return {record.text for record in await memories.find_memories(scope, MemoryScope(**ids), EVERYTHING)}

        assert await reached(user_id="ann") == {"user", "chat"}
        assert await reached(user_id="ann", chat_id="c") == {"chat"}
        assert await reached(chat_id="c") == {"chat"}
        assert await reached(agent_id="ann") == {"agent"}
        assert await reached(user_id="ann", chat_id="d") == set()
        assert await reached(user_id="Ann") == set()

    async def test_the_most_fitting_come_first_and_no_more_than_asked_for(self, memories: MemoryStore) -> None:
        """By what their words or vectors have in common with the question, then the newest."""
        scope = f"tenant-{uuid4()}"
        tea, dog, old = memory("drinks green tea", at_ms=1), memory("has a dog", at_ms=3), memory("lives in Rome", at_ms=2)
        await memories.write_memories(scope, [tea, dog, old])
        found = await memories.find_memories(scope, ANN, MemoryQuery("which TEA?", 2, now_ms=10))
        assert [record.text for record in found] == [tea.text, dog.text]

    async def test_equal_words_are_stored_once(self, memories: MemoryStore) -> None:
        """A second record of them, in the same scope, leaves the first one with its own metadata and time."""
        scope = f"tenant-{uuid4()}"
        first, second = memory("likes tea", operation="one"), memory(" likes tea\n", operation="two", at_ms=5)
        await memories.write_memories(scope, [first])
        await memories.write_memories(scope, [second, memory("likes tea", BOB, operation="two")])
        [found] = await memories.find_memories(scope, ANN, EVERYTHING)
        assert (found.record_id, found.created_at_ms, found.updated_at_ms) == (first.record_id, 1, 5)
        assert found.operation_id == "two"
        assert (await memories.count_memories(scope, "one"), await memories.count_memories(scope, "two")) == (0, 2)

    async def test_an_update_to_words_that_are_there_leaves_one(self, memories: MemoryStore) -> None:
        """The record that was updated is gone with its ids, the other one stays."""
        scope = f"tenant-{uuid4()}"
        tea, coffee = memory("likes tea"), memory("likes coffee")
        await memories.write_memories(scope, [tea, coffee])
        await memories.write_memories(scope, [memory("likes tea", record_id=coffee.record_id, operation="later")])
        [found] = await memories.find_memories(scope, ANN, EVERYTHING)
        assert (found.record_id, found.operation_id) == (tea.record_id, "later")

    async def test_words_move_from_one_record_to_another(self, memories: MemoryStore) -> None:
        """In one write a record takes other words, and what it said is said by a new one; in whatever order they are given."""
        tea = memory("likes tea")
        moved = [memory("likes coffee", record_id=tea.record_id), memory("likes tea")]
        for given in (moved, moved[::-1]):
            scope = f"tenant-{uuid4()}"
            await memories.write_memories(scope, [tea])
            await memories.write_memories(scope, given)
            found = await memories.find_memories(scope, ANN, EVERYTHING)
            assert {record.text for record in found} == {"likes tea", "likes coffee"}

    async def test_records_take_each_others_words(self, memories: MemoryStore) -> None:
        """In one write one takes what another one says, which takes others; nothing that was given is missing afterwards."""
        tea, rain = memory("likes tea"), memory("likes rain")
        for second in ("likes snow", "likes tea"):
            given = [memory("likes rain", record_id=tea.record_id), memory(second, record_id=rain.record_id)]
            for ordered in (given, given[::-1]):
                scope = f"tenant-{uuid4()}"
                await memories.write_memories(scope, [tea, rain])
                await memories.write_memories(scope, ordered)
                found = await memories.find_memories(scope, ANN, EVERYTHING)
                assert {record.record_id: record.text for record in found} == {one.record_id: one.text for one in given}

    async def test_many_writers_of_the_same_words_leave_one(self, memories: MemoryStore) -> None:
        """None of them fails."""
        scope = f"tenant-{uuid4()}"
        await asyncio.gather(*(memories.write_memories(scope, [memory("likes tea"), memory(f"n {n}")]) for n in range(8)))
        found = [record.text for record in await memories.find_memories(scope, ANN, EVERYTHING)]
        assert sorted(found) == sorted(["likes tea", *(f"n {n}" for n in range(8))])

    async def test_what_has_expired_is_not_found_and_can_be_removed(self, memories: MemoryStore) -> None:
        """From its moment on, in the scope that is named."""
        scope = f"tenant-{uuid4()}"
        await memories.write_memories(
            scope, [memory("short", expires_at_ms=10), memory("long", expires_at_ms=11), memory("bob's", BOB, expires_at_ms=1)]
        )
        found = await memories.find_memories(scope, ANN, EVERYTHING)
        assert [record.text for record in found] == ["long"]
        assert await memories.delete_expired_memories(scope, ANN, 10) == 1
        before = MemoryQuery("", 10, now_ms=0)
        assert {record.text for record in await memories.find_memories(scope, ANN, before)} == {"long"}
        assert {record.text for record in await memories.find_memories(scope, BOB, before)} == {"bob's"}
        assert await memories.delete_expired_memories(scope, ANN) == 1

    async def test_nothing_to_write_or_delete_is_nothing(self, memories: MemoryStore) -> None:
        """Also of ids that are not there."""
        scope = f"tenant-{uuid4()}"
        await memories.write_memories(scope, [])
        await memories.delete_memories(scope, [])
        await memories.delete_memories(scope, ["nobody"])
        assert await memories.count_memories(scope, "op") == 0
