"""SIGTERM on every pool: what runs is saved, leases go back, the exit code is 0."""

from __future__ import annotations

import signal
import time

import pytest

from deuz_workers.app.handle import Handle
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes
POOLS = ["threads", "prefork", "solo"]


@pytest.mark.parametrize("kind", POOLS)
def test_a_tool_in_flight_is_waited_for(pool: Pool, kind: str) -> None:
    """Its outcome is saved before the worker ends with 0, and another worker goes on at once."""
    worker = pool.start(kind)
    handle = pool.app.enqueue("holder", "gate")
    pool.wait_for_lines("hold")
    worker.signal(signal.SIGTERM)
    worker.wait_for("worker_draining")
    pool.go("gate")
    assert worker.ended() == 0
    pool.start()
    assert handle.result(30).status == "completed"
    assert len(pool.lines("hold")) == 1


@pytest.mark.parametrize("kind", POOLS)
def test_a_model_call_may_end_within_the_grace_period(pool: Pool, kind: str) -> None:
    """The reply that was paid for is saved: the next worker does not ask again."""
    worker = pool.start(kind)
    handle = pool.app.enqueue("thinker", "gate")
    pool.wait_for_lines("asked")
    worker.signal(signal.SIGTERM)
    worker.wait_for("worker_draining")
    pool.go("gate")
    assert worker.ended() == 0
    pool.start()
    assert handle.result(30).status == "completed"
    assert len(pool.lines("asked")) == 1


@pytest.mark.parametrize("kind", POOLS)
def test_the_grace_period_ends_model_calls(pool: Pool, kind: str) -> None:
    """Then the lease goes back, the worker ends with 0, and another one asks again."""
    worker = pool.start(kind, drain_grace_ms=100)
    handle = pool.app.enqueue("thinker", "gate")
    pool.wait_for_lines("asked")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    pool.go("gate")
    pool.start()
    assert handle.result(30).status == "completed"
    assert len(pool.lines("asked")) == 2


@pytest.mark.parametrize(
    ("kind", "second"),
    [("threads", signal.SIGTERM), ("threads", signal.SIGQUIT), ("prefork", signal.SIGQUIT), ("solo", signal.SIGTERM)],
)
def test_a_second_signal_is_quicker(pool: Pool, kind: str, second: signal.Signals) -> None:
    """Model calls end at once instead of at the end of the grace period of two minutes."""
    worker = pool.start(kind)
    handle = pool.app.enqueue("thinker", "gate")
    pool.wait_for_lines("asked")
    worker.signal(signal.SIGTERM)
    worker.wait_for("worker_draining")
    worker.signal(second)
    worker.ended()
    pool.go("gate")
    pool.start()
    assert handle.result(30).status == "completed"


@pytest.mark.parametrize("kind", POOLS)
def test_what_is_rung_while_a_worker_ends_reaches_another(pool: Pool, kind: str) -> None:
    """Runs enqueued from the signal to the exit complete on the next worker."""
    worker = pool.start(kind, concurrency=4 if kind != "solo" else 1)
    worker.signal(signal.SIGTERM)
    handles: list[Handle] = []
    while worker.process.poll() is None:
        handles.append(pool.app.enqueue("worker", "1 turn"))
        time.sleep(0.03)
    assert worker.ended() == 0
    pool.start(concurrency=4)
    assert {handle.result(30).status for handle in handles} == {"completed"}


def test_an_idle_worker_ends_at_once(pool: Pool) -> None:
    """With nothing to do, every process of a prefork worker is gone after one signal."""
    worker = pool.start("prefork")
    children = worker.children
    assert len(children) == 2
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    wait_until(lambda: not worker.children, "its children are gone")
