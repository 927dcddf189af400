"""Two sessions and one concurrency key on Postgres: the second has to wait for a row lock of the first, in both orders."""

from __future__ import annotations

from deuz_workers.core.change import Applied, Head
from deuz_workers.store import SqlStore
from deuz_workers.testing.store_conformance_bench import Bench, change_from
from tests.store.sessions import Sessions

KEY = "crm"


async def holder(bench: Bench) -> Head:
    """A run that holds the only slot."""
    head = await bench.start(concurrency_key=KEY)
    assert await bench.store.take_slot(head.rid, 0, 1) == "held"
    return await bench.again(head)


async def counters(bench: Bench) -> tuple[int, int]:
    found = await bench.store.slot_counters(bench.scope, KEY)
    assert found is not None
    return found.used, found.waiting


async def test_two_ask_for_the_last_slot(bench: Bench, sessions: Sessions) -> None:
    """The second waits for the first one's decision, and then for a slot."""
    first = await holder(bench)
    await bench.applied(first, status="completed", due_in_ms=None)
    one, two = await bench.start(concurrency_key=KEY), await bench.start(concurrency_key=KEY)
    slots = await sessions.race(lambda store: store.take_slot(one.rid, 0, 1), lambda store: store.take_slot(two.rid, 0, 1))
    assert slots == ("held", "waiting")
    assert await counters(bench) == (1, 1)


async def test_two_name_a_key_for_the_first_time(bench: Bench, sessions: Sessions) -> None:
    """One makes its row, the other one finds it."""
    one, two = await bench.start(concurrency_key=KEY), await bench.start(concurrency_key=KEY)
    slots = await sessions.race(lambda store: store.take_slot(one.rid, 0, 1), lambda store: store.take_slot(two.rid, 0, 1))
    assert slots == ("held", "waiting")
    assert await counters(bench) == (1, 1)


async def test_an_end_and_a_run_that_asks(bench: Bench, sessions: Sessions) -> None:
    """In both orders the free slot is used: by the one who asks after the end, or by the ender's fill, which follows."""
    for end_first in (True, False):
        head, asks = await holder(bench), await bench.start(concurrency_key=KEY)
        end = change_from(head, status="completed", due_in_ms=None)

        async def ends(store: SqlStore) -> object:
            return await store.commit(end)  # noqa: B023

        async def takes(store: SqlStore) -> object:
            return await store.take_slot(asks.rid, 0, 1)  # noqa: B023

        outcomes = await sessions.race(*((ends, takes) if end_first else (takes, ends)))
        taken = next(outcome for outcome in outcomes if not isinstance(outcome, Applied))
        assert taken == ("held" if end_first else "waiting")
        rung = await bench.store.fill_key(bench.scope, KEY)
        assert [bell.run_id for bell in rung] == ([] if end_first else [asks.run_id])
        assert await counters(bench) == (1, 0)
        await bench.applied(await bench.again(asks), status="completed", due_in_ms=None)


async def test_a_fill_and_a_run_that_asks(bench: Bench, sessions: Sessions) -> None:
    """Whoever asks while a fill is under way is served by it or waits for the next one; no slot is given twice."""
    for fill_first in (True, False):
        first, waits = await holder(bench), await bench.start(concurrency_key=KEY)
        assert await bench.store.take_slot(waits.rid, 0, 1) == "waiting"
        await bench.applied(first, status="completed", due_in_ms=None)
        asks = await bench.start(concurrency_key=KEY)

        async def fill(store: SqlStore) -> object:
            return await store.fill_key(bench.scope, KEY)

        async def take(store: SqlStore) -> object:
            return await store.take_slot(asks.rid, 0, 1)  # noqa: B023

        await sessions.race(*((fill, take) if fill_first else (take, fill)))
        await bench.store.fill_key(bench.scope, KEY)
        assert await counters(bench) == (1, 1)
        assert (await bench.again(waits)).slot == "held"
        for head in (waits, asks):
            await bench.applied(await bench.again(head), status="completed", due_in_ms=None)
            await bench.store.fill_key(bench.scope, KEY)
        assert await counters(bench) == (0, 0)


async def test_a_fill_leaves_a_run_that_is_being_written(bench: Bench, sessions: Sessions) -> None:
    """It waits for no head while it holds the key; an end that gives up its place is counted once."""
    first, waits = await holder(bench), await bench.start(concurrency_key=KEY)
    assert await bench.store.take_slot(waits.rid, 0, 1) == "waiting"
    await bench.applied(first, status="completed", due_in_ms=None)
    end = change_from(await bench.again(waits), status="stopped", due_in_ms=None)
    outcome, rung = await sessions.race(lambda store: store.commit(end), lambda store: store.fill_key(bench.scope, KEY))
    assert isinstance(outcome, Applied)
    assert rung == ()
    assert await counters(bench) == (0, 0)


async def test_an_end_waits_for_a_fill_of_another_run(bench: Bench, sessions: Sessions) -> None:
    """Its slot is counted from the row as the fill left it."""
    first, second = await holder(bench), await bench.start(concurrency_key=KEY)
    await bench.store.set_slots(bench.scope, KEY, 2)
    waits = await bench.start(concurrency_key=KEY)
    assert [await bench.store.take_slot(head.rid, 0, 1) for head in (second, waits)] == ["held", "waiting"]
    await bench.store.set_slots(bench.scope, KEY, 3)
    end = change_from(first, status="completed", due_in_ms=None)
    rung, outcome = await sessions.race(lambda store: store.fill_key(bench.scope, KEY), lambda store: store.commit(end))
    assert [bell.run_id for bell in rung] == [waits.run_id]
    assert isinstance(outcome, Applied)
    assert await counters(bench) == (2, 0)
