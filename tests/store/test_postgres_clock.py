"""On Postgres it is the database that knows what time it is."""

from __future__ import annotations

import asyncio
import time

import pytest

from deuz_workers.ports.store import When
from deuz_workers.store import SqlStore
from deuz_workers.testing.store_conformance_bench import HOUR_MS, Bench, item


@pytest.mark.spec("DEF-164")
@pytest.mark.parametrize("wrong_s", [1_000_000_000, 4_000_000_000])
async def test_a_worker_whose_clock_is_wrong_expires_nothing_early_or_late(
    postgres: SqlStore, bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong_s: int
) -> None:
    """Years slow or fast: deadlines, starts and items count from the database's time, and what is over there is over."""
    right_ms = await postgres.now_ms()
    monkeypatch.setattr(time, "time", lambda: float(wrong_s))
    monkeypatch.setattr(time, "time_ns", lambda: wrong_s * 1_000_000_000)
    assert right_ms <= await postgres.now_ms() < right_ms + HOUR_MS
    run = await bench.start(deadline=When(in_ms=HOUR_MS), start=When(in_ms=HOUR_MS))
    assert right_ms <= run.created_at_ms < right_ms + HOUR_MS
    assert run.deadline_in_ms is not None
    assert 0 < run.deadline_in_ms <= HOUR_MS
    assert not run.has_work
    waiting, over = await bench.start(), await bench.start()
    for head, in_ms in ((waiting, HOUR_MS), (over, 1)):
        items = (item(f"until {in_ms}", expires_in_ms=in_ms),)
        await bench.applied(head, status="suspended", due_in_ms=in_ms, items=items)
    while not (await bench.again(over)).has_work:  # noqa: ASYNC110 - the database's clock has no event
        await asyncio.sleep(0.002)
    assert [(await bench.again(head)).has_work for head in (run, waiting, over)] == [False, False, True]
    for head, is_over in ((waiting, False), (over, True)):
        [found] = await postgres.open_items(bench.scope, head.run_id)
        assert found.expires_in_ms is not None
        assert (found.expires_in_ms <= 0) is is_over
