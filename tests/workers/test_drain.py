"""SIGTERM on every pool: what runs is saved, leases go back, the exit code is 0."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from deuz_workers.app.handle import Handle
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.core.names import run_lease_key
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes
POOLS = ["threads", "prefork", "solo"]


@pytest.mark.spec("DST-008")
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


@pytest.mark.spec("DST-008")
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
    wait_until(lambda: len(worker.children) == 2, "both children are there")  # the first reports before the second is forked
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    wait_until(lambda: not worker.children, "its children are gone")


@pytest.mark.spec("DST-008")
@pytest.mark.parametrize("kind", POOLS)
def test_a_tool_that_outlives_the_grace_period_keeps_its_lease(pool: Pool, kind: str) -> None:
    """Nobody follows while it may still have its effect; when its worker was killed, the next one does within the TTL."""
    worker = pool.start(kind, drain_grace_ms=100)
    handle = pool.app.enqueue("again", "gate")
    pid = int(pool.wait_for_lines("hold")[0].split()[1])
    worker.signal(signal.SIGTERM)
    worker.wait_for("worker_hurrying")
    pool.start(concurrency=4)
    time.sleep(3)  # one and a half times the TTL
    assert LOOP.run(pool.app.leases.peek(run_lease_key("default", handle.run_id))).ms_left is not None
    assert len(pool.lines("hold")) == 1
    worker.kill()
    first, second = pool.wait_for_lines("hold", 2)
    assert first.split()[0] == second.split()[0], "an idempotent tool runs again under its key"
    assert int(second.split()[1]) != pid
    pool.go("gate")
    assert handle.result(30).status == "completed"


@pytest.mark.parametrize("kind", ["threads", "solo"])
def test_a_worker_that_is_told_to_quit_keeps_the_lease_of_a_tool_that_runs(pool: Pool, kind: str) -> None:
    """SIGQUIT ends model calls at once; a tool in a thread cannot be ended, so it is waited for, and nobody follows."""
    worker = pool.start(kind)
    handle = pool.app.enqueue("again", "gate")
    pool.wait_for_lines("hold")
    pool.start(concurrency=4)
    worker.signal(signal.SIGQUIT)
    time.sleep(3)  # one and a half times the TTL
    assert LOOP.run(pool.app.leases.peek(run_lease_key("default", handle.run_id))).ms_left is not None
    pool.go("gate")
    worker.ended()
    assert handle.result(30).status == "completed"
    assert len(pool.lines("hold")) == 1


def test_a_child_that_is_told_to_quit_is_followed_when_it_has_gone(pool: Pool) -> None:
    """SIGQUIT at a prefork worker kills the child with its tool; another worker begins the call again, and not before."""
    worker = pool.start("prefork")
    handle = pool.app.enqueue("again", "gate")
    pid = int(pool.wait_for_lines("hold")[0].split()[1])
    pool.start(concurrency=4)
    worker.signal(signal.SIGQUIT)
    pool.wait_for_lines("hold", 2)
    assert not is_alive(pid)
    pool.go("gate")
    assert handle.result(30).status == "completed"
    worker.ended()


def is_alive(pid: int) -> bool:
    """It is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
