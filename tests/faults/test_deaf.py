"""Workers that are alive and consume nothing: they repair themselves, or leave with 75."""

from __future__ import annotations

import signal
import time

import pytest

from tests.proxies import CuttingProxy
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes
SILENCE_MS = 1_500
KINDS = ["threads", "prefork", "solo"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_died_without_a_word_is_replaced(pool: Pool, kind: str) -> None:
    """Nothing arrives on it and nobody closes it; the worker notices, connects again, and executes what was rung."""
    with CuttingProxy.before_redis(pool.settings.redis_url or "") as proxy:
        worker = pool.start(kind, broker_url=proxy.redis_url(), silence_ms=SILENCE_MS, events=False)
        assert pool.app.enqueue("worker", "1 turn").result(30).status == "completed"
        proxy.swallow()
        handle = pool.app.enqueue("worker", "3 turns")
        worker.wait_for("worker_deaf")
        worker.wait_for("worker_hears")
        assert handle.result(30).status == "completed"
        assert worker.process.poll() is None
        assert not worker.said("then=leave")


def test_connections_of_events_that_died_without_a_word_keep_nobody(pool: Pool) -> None:
    """The consuming thread sends them, and would wait for an answer without end; it gives up and connects again."""
    with CuttingProxy.before_redis(pool.settings.redis_url or "") as proxy:
        worker = pool.start(broker_url=proxy.redis_url(), silence_ms=20_000)
        assert pool.app.enqueue("worker", "1 turn").result(30).status == "completed"
        proxy.swallow()
        assert pool.app.enqueue("worker", "3 turns").result(60).status == "completed"
        assert worker.process.poll() is None
        assert not worker.said("worker_stuck")


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_that_stopped_for_good_ends_its_worker(pool: Pool, kind: str) -> None:
    """A new connection does not help, so it drains and leaves with a code of its own; the next worker goes on."""
    pool.module = "tests.faults.deaf_agents:app"
    worker = pool.start(kind, silence_ms=SILENCE_MS, TEST_EARS="cancel")
    assert pool.app.enqueue("worker", "1 turn").result(30).status == "completed"
    pool.go("break")
    assert worker.ended() == 75
    assert worker.log.read_text().count("worker_deaf") == 2
    handle = pool.app.enqueue("worker", "1 turn")
    (pool.traces / "break.go").unlink()
    pool.start(kind, TEST_EARS="cancel")
    assert handle.result(30).status == "completed"


def test_a_tool_in_flight_is_waited_for(pool: Pool) -> None:
    """The worker that leaves because it is deaf keeps the run until its outcome is saved: it happened once."""
    pool.module = "tests.faults.deaf_agents:app"
    worker = pool.start(silence_ms=SILENCE_MS, TEST_EARS="cancel")
    handle = pool.app.enqueue("holder", "gate")
    pool.wait_for_lines("hold")
    pool.go("break")
    worker.wait_for("then=leave")
    worker.wait_for("worker_draining")
    pool.start(TEST_EARS="cancel", silence_ms=60_000)
    pool.go("gate")
    assert worker.ended() == 75
    (pool.traces / "break.go").unlink()
    pool.start(TEST_EARS="cancel")
    assert handle.result(30).status == "completed"
    assert len(pool.lines("hold")) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_whose_consuming_thread_is_blocked_leaves(pool: Pool, kind: str) -> None:
    """No signal and no connection wakes it, so the process ends; of a prefork worker, with its parent."""
    pool.module = "tests.faults.deaf_agents:app"
    worker = pool.start(kind, silence_ms=SILENCE_MS, TEST_EARS="block")
    assert pool.app.enqueue("worker", "1 turn").result(30).status == "completed"
    pool.go("break")
    assert worker.ended() == (75 if kind != "prefork" else -signal.SIGKILL)
    assert worker.said("worker_stuck")
    assert not worker.children


def test_an_idle_and_a_full_worker_are_not_deaf(pool: Pool) -> None:
    """One hears what it sends itself; one without a free slot need not hear anything."""
    idle = pool.start(concurrency=2, silence_ms=1_000, queues=("elsewhere",))
    full = pool.start(concurrency=1, silence_ms=1_000)
    handles = [pool.app.enqueue("holder", "gate") for _ in range(3)]
    pool.wait_for_lines("hold")
    time.sleep(6)  # as many times as it takes to be found deaf, reconnected and found deaf again
    assert not any(worker.said(word) for worker in (idle, full) for word in ("worker_deaf", "worker_stuck", "echo_unsent"))
    pool.go("gate")
    assert {handle.result(30).status for handle in handles} == {"completed"}
