"""Concurrency keys over real workers, one of which is killed while it holds the only slot."""

from __future__ import annotations

import pytest

from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes


def test_one_at_a_time_also_when_the_holder_is_killed(pool: Pool) -> None:
    """Four runs and one slot on two workers: at no time do two tools run.

    The killed worker's run keeps its slot until another worker finds that nobody knows what its tool did, and parks it; then
    the next run begins. Freed, it asks for a slot like any other.
    """
    for _ in range(2):
        pool.start(concurrency=4)
    handles = {f"gate{number}": pool.app.enqueue("holder", f"gate{number}", concurrency_key="door") for number in range(4)}
    pool.wait_for_lines("hold", 1)
    victim = int(pool.lines("hold")[0].split()[1])
    running = [gate for gate, handle in handles.items() if handle.status() == "running"]
    assert len(running) == 1
    next(worker for worker in pool.workers if worker.pid == victim).kill()
    assert handles[running[0]].result(60).status == "stopped"
    pool.wait_for_lines("hold", 2)
    for done in range(3):
        assert len(pool.lines("hold")) == 2 + done
        [gate] = [gate for gate, handle in handles.items() if handle.status() == "running" and gate not in running]
        running.append(gate)
        pool.go(gate)
        assert handles[gate].result(60).status == "completed"
        if done < 2:
            wait_until(lambda expected=3 + done: len(pool.lines("hold")) == expected, "the next one has begun")
    pool.go(running[0])
    handles[running[0]].retry()
    wait_until(lambda: handles[running[0]].status() == "completed", "the freed run has ended")
