"""Slots of concurrency keys: never more than there are, and never one too few."""

from __future__ import annotations

import asyncio
from typing import Any

from deuz_workers.core.change import Head
from deuz_workers.ports.store import KeyCounters, RunStore, When
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench, item

KEY = "crm"


async def _counters(bench: Bench) -> tuple[int, int]:
    """Used and waiting."""
    counters = await bench.store.slot_counters(bench.scope, KEY)
    assert counters is not None
    assert counters.used <= counters.slots
    return counters.used, counters.waiting


async def _start(bench: Bench, **given: Any) -> Head:
    """A run that names the key, younger than those before it."""
    before_ms = await bench.store.now_ms()
    while await bench.store.now_ms() == before_ms:
        pass
    return await bench.start(concurrency_key=KEY, **given)


async def _take(bench: Bench, head: Head, slots: int = 1) -> str | None:
    now = await bench.again(head)
    return await bench.store.take_slot(now.rid, now.revision, slots)


async def _fill(bench: Bench) -> list[str]:
    return [bell.run_id for bell in await bench.store.fill_key(bench.scope, KEY)]


class SlotConformance:
    """`take_slot`, `fill_key`, `set_slots`, and what gives a slot back."""

    async def test_as_many_runs_get_a_slot_as_there_are(self, store: RunStore) -> None:
        """The others wait, have no work meanwhile, and asking again changes nothing."""
        bench = Bench(store)
        heads = [await _start(bench) for _ in range(3)]
        assert [await _take(bench, head, 2) for head in heads] == ["held", "held", "waiting"]
        assert [await _take(bench, head, 2) for head in heads] == ["held", "held", "waiting"]
        assert await store.slot_counters(bench.scope, KEY) == KeyCounters(2, 2, 1)
        after = [await bench.again(head) for head in heads]
        assert [(head.slot_key, head.slot, head.has_work, head.revision) for head in after] == [
            (KEY, "held", True, 0),
            (KEY, "held", True, 0),
            (KEY, "waiting", False, 0),
        ]
        assert heads[2].run_id not in await bench.swept()

    async def test_a_cancel_that_came_before_the_wait_is_found_by_the_sweep(self, store: RunStore) -> None:
        """It ends the run at once, whoever holds the slots and whatever became of its doorbell."""
        bench = Bench(store)
        holder, waiter = await _start(bench), await _start(bench)
        assert await _take(bench, holder) == "held"
        await store.add_note(waiter.scope, waiter.run_id, "cancel", "{}")
        assert await _take(bench, waiter) == "waiting"
        assert (await bench.again(waiter)).has_work
        assert waiter.run_id in await bench.swept()

    async def test_many_at_once_get_no_more_than_there_are(self, store: RunStore) -> None:
        """Also when the key is named for the first time."""
        bench = Bench(store)
        heads = [await bench.start(concurrency_key=KEY) for _ in range(12)]
        taken = await asyncio.gather(*(store.take_slot(head.rid, 0, 3) for head in heads))
        assert sorted(str(slot) for slot in taken) == ["held"] * 3 + ["waiting"] * 9
        assert await _counters(bench) == (3, 9)

    async def test_a_slot_comes_back_when_a_run_suspends_ends_or_is_parked(self, store: RunStore) -> None:
        """In the same operation; nothing else gives it back."""
        bench = Bench(store)
        for way in ("completed", "failed", "stopped", "suspended", "parked"):
            head = await _start(bench)
            assert await _take(bench, head) == "held"
            await bench.applied(await bench.again(head))
            await store.record_unclean_end(head.rid, 1, 0)
            assert await _counters(bench) == (1, 0)
            now = await bench.again(head)
            if way == "parked":
                assert await store.park(now.rid, now.revision, "reason")
            else:
                items = (item("a"),) if way == "suspended" else ()
                await bench.applied(now, status=way, due_in_ms=None, items=items)
            assert await _counters(bench) == (0, 0)
            assert (await bench.again(head)).slot is None

    async def test_who_waits_is_served_by_priority_and_age(self, store: RunStore) -> None:
        """When slots come free, and is due and rung then; whoever comes meanwhile does not overtake."""
        bench = Bench(store)
        holder = await _start(bench)
        assert await _take(bench, holder) == "held"
        waiting = [await _start(bench), await _start(bench, priority=5), await _start(bench)]
        for head in reversed(waiting):
            assert await _take(bench, head) == "waiting"
        await bench.applied(await bench.again(holder), status="completed", due_in_ms=None)
        late = await _start(bench, priority=9)
        assert await _take(bench, late) == "waiting"
        assert await store.keys_needing_attention(1_000_000) != ()
        assert await _fill(bench) == [late.run_id]
        running = late
        for head in (waiting[1], waiting[0], waiting[2]):
            assert await _fill(bench) == []
            await bench.applied(await bench.again(running), status="completed", due_in_ms=None)
            assert await _fill(bench) == [head.run_id]
            now = await bench.again(head)
            assert (now.slot, now.has_work) == ("held", True)
            running = head
        assert await _counters(bench) == (1, 0)

    async def test_a_run_that_ends_while_it_waits_leaves_the_row(self, store: RunStore) -> None:
        """A cancel and a deadline reach it without a slot; parked it waits no longer."""
        bench = Bench(store)
        assert await _take(bench, await _start(bench)) == "held"
        cancelled, late, parked = await _start(bench), await _start(bench, deadline=When(in_ms=1)), await _start(bench)
        for head in (cancelled, late, parked):
            assert await _take(bench, head) == "waiting"
        assert await _counters(bench) == (1, 3)
        await store.add_note(bench.scope, cancelled.run_id, "message", "{}")
        assert not (await bench.again(cancelled)).has_work
        await store.add_note(bench.scope, cancelled.run_id, "cancel", "{}")
        await store.postpone(bench.scope, cancelled.run_id, 0)
        assert {cancelled.run_id, late.run_id} <= set(await bench.swept())
        for head in (cancelled, late):
            now = await bench.again(head)
            assert now.has_work
            await bench.applied(now, status="stopped", due_in_ms=None, seen_seq=now.wake_seq)
        assert await store.park(parked.rid, 0, "reason")
        assert await _counters(bench) == (1, 0)

    async def test_a_suspended_run_asks_again(self, store: RunStore) -> None:
        """Answered, it stays suspended until it has a slot."""
        bench = Bench(store)
        head = await bench.suspended(await _start(bench), item("a"))
        assert await _take(bench, await _start(bench)) == "held"
        await store.answer_item(bench.scope, head.run_id, "a", "yes")
        assert (await bench.again(head)).has_work
        assert await _take(bench, head) == "waiting"
        now = await bench.again(head)
        assert (now.status, now.has_work, now.has_report) == ("suspended", False, False)

    async def test_a_limit_may_change(self, store: RunStore) -> None:
        """Raised, more are served; lowered, those that hold a slot keep it and nobody gets a new one before they are few."""
        bench = Bench(store)
        await store.set_slots(bench.scope, KEY, 0)
        heads = [await _start(bench) for _ in range(3)]
        assert [await _take(bench, head, 9) for head in heads] == ["waiting"] * 3
        await store.set_slots(bench.scope, KEY, 2)
        assert sorted(await _fill(bench)) == sorted(head.run_id for head in heads[:2])
        await store.set_slots(bench.scope, KEY, 1)
        await bench.applied(await bench.again(heads[0]), status="completed", due_in_ms=None)
        assert await _fill(bench) == []
        await bench.applied(await bench.again(heads[1]), status="completed", due_in_ms=None)
        assert await _fill(bench) == [heads[2].run_id]

    async def test_another_scope_has_slots_of_its_own(self, store: RunStore) -> None:
        """A key means what its scope means by it."""
        one, two = Bench(store), Bench(store)
        assert [await _take(bench, await _start(bench)) for bench in (one, two)] == ["held", "held"]

    async def test_who_may_not_ask_gets_nothing(self, store: RunStore) -> None:
        """A run without a key, of another revision, or parked."""
        bench = Bench(store)
        assert await store.take_slot((await bench.start()).rid, 0, 1) is None
        head = await _start(bench)
        assert await store.take_slot(head.rid, 1, 1) is None
        await store.park(head.rid, 0, "reason")
        assert await store.take_slot(head.rid, 0, 1) is None

    async def test_a_slot_outlives_a_death(self, store: RunStore) -> None:
        """Whoever takes the run over finds that it holds one."""
        bench = Bench(store)
        head = await _start(bench)
        assert await _take(bench, head) == "held"
        await bench.applied(await bench.again(head), mid_step=True)
        await store.postpone(bench.scope, head.run_id, 0)
        assert await bench.swept(ttl_ms=HOUR_MS) == [head.run_id]
        assert await _take(bench, head) == "held"
        assert await _counters(bench) == (1, 0)
