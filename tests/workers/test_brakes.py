"""A brake reaches workers that nobody told."""

from __future__ import annotations

import pytest

from deuz_workers.app.loop_thread import LOOP
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_runs_at_work_stop_at_a_brake_and_go_on_behind_it(pool: Pool, kind: str) -> None:
    """On two workers; from the moment that each of them has met it no turn is taken, and lifted it holds nobody."""
    workers = [pool.start(kind) for _ in range(2)]
    handles = [pool.app.enqueue("empty", "100000 turns") for _ in range(4)]

    def turns() -> list[int]:
        heads = [LOOP.run(pool.app.store.head("default", handle.run_id)) for handle in handles]
        return [0 if head is None else head.model_step for head in heads]

    wait_until(lambda: min(turns()) > 2, "all runs are at work")
    pool.app.operator.set_brake("agent", "empty", reason="a test", actor="ann")
    logs = [worker.log for worker in workers]
    held = [f"run_held_back run={handle.run_id} by=agent:empty" for handle in handles]
    wait_until(lambda: all(any(line in log.read_text() for log in logs) for line in held), "all runs met the brake")
    before = turns()
    again = [log.read_text().count("run_held_back") for log in logs]
    wait_until(lambda: sum(log.read_text().count("run_held_back") for log in logs) > sum(again) + 3, "they are looked at again")
    assert turns() == before
    assert pool.app.operator.lift_brake("agent", "empty", actor="ann")
    wait_until(lambda: all(now > then for now, then in zip(turns(), before, strict=True)), "all runs go on")
    for handle in handles:
        handle.cancel()
    assert {handle.result(30).status for handle in handles} == {"stopped"}
