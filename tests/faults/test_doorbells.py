"""Messages that come twice, late, for nothing, or not at all (architecture D1)."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
import redis

from deuz_workers.app.bell import broker_queue
from deuz_workers.app.broker_connection import window_key
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.core.change import Bell
from deuz_workers.core.names import run_lease_key
from deuz_workers.core.window import open_places
from deuz_workers.workers.celery_app import make_celery
from tests.servers import flush
from tests.workers.agents import application
from tests.workers.events import captured
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes


def ring(app: Deuz, *bells: Bell) -> None:
    """Publish doorbells as any process could."""
    asyncio.run(app.doorbell.offer(bells))


def waiting(url: str) -> int:
    """Messages that wait in the default queue."""
    with redis.Redis.from_url(url) as client:
        return sum(int(client.llen(key)) for key in client.scan_iter(f"{broker_queue('default')}*"))


def most_waiting(url: str) -> int:
    """Most doorbells that the default queue held at any moment, as the broker wrote it down."""
    with redis.Redis.from_url(url) as client:
        return int(client.hget(window_key(broker_queue("default")), "most") or 0)


def test_doorbells_that_come_twice_late_or_for_nothing_do_nothing(pool: Pool, redis_url: str) -> None:
    """Each write happened once, the run ends as usual, and no task failed."""
    worker = pool.start(concurrency=8)
    handle = pool.app.enqueue("worker", "6 turns")
    for revision in (0, 1, 10_000):
        ring(pool.app, *[Bell("default", handle.run_id, "default", revision)] * 20)
    assert handle.result(30).status == "completed"
    ring(pool.app, *[Bell("default", handle.run_id, "default", 3)] * 20)
    ring(pool.app, Bell("default", "no such run", "default"), Bell("elsewhere", handle.run_id, "default"))
    after = pool.app.enqueue("worker", "1 turn")
    assert after.result(30).status == "completed"
    wait_until(lambda: waiting(redis_url) == 0, "all doorbells were taken")
    keys = [line.split()[0] for line in pool.lines("write")]
    assert len(keys) == len(set(keys)) == 5
    assert not worker.said("Traceback")
    assert not worker.said("ERROR")


@pytest.mark.spec("DST-002")
def test_a_run_goes_on_when_every_doorbell_is_lost(pool: Pool) -> None:
    """Whatever is rung first for a revision is dropped: a sweep rings again for what each commit left due."""
    pool.module = "tests.faults.hard_of_hearing:app"
    for _ in range(2):
        pool.start(TEST_BELLS="drop")
    handle = pool.silent().enqueue("worker", "3 turns")
    assert handle.result(60).status == "completed"
    dropped = [line.split()[0] for line in pool.lines("dropped")]
    assert dropped == [handle.run_id] * 4
    assert (len(pool.lines("write")), len(pool.lines("read"))) == (2, 1)


@pytest.mark.spec("DST-003")
def test_doorbells_that_come_three_times_and_again_later(pool: Pool) -> None:
    """Three workers get every doorbell three times, and those of earlier steps with it: each tool call happened once."""
    pool.module = "tests.faults.hard_of_hearing:app"
    workers = [pool.start(kind, concurrency=4, TEST_BELLS="repeat") for kind in ("threads", "threads", "prefork")]
    handles = [pool.app.enqueue("worker", "9 turns") for _ in range(6)]
    assert {handle.result(60).status for handle in handles} == {"completed"}
    for name, turns in (("write", 6), ("read", 3)):
        keys = [line.split()[0] for line in pool.lines(name)]
        assert len(keys) == len(set(keys)) == 6 * turns
    assert not any(worker.said("ERROR") for worker in workers)


@pytest.mark.spec("LEA-012")
def test_a_step_that_is_delivered_three_times_calls_the_model_once(pool: Pool, redis_url: str) -> None:
    """Those that meet the held lease end at once and leave no message behind, waiting or put off; the run finishes."""
    worker = pool.start(concurrency=4)
    celery = make_celery(pool.app)
    with captured(celery) as events:
        handle = pool.silent().enqueue("thinker", "gate")
        bell = Bell("default", handle.run_id, "default")
        ring(pool.app, bell)
        pool.wait_for_lines("asked")
        ring(pool.app, bell, bell, bell)
        held = f"{handle.run_id} held"
        wait_until(lambda: sum(held in str(event.get("result")) for event in events) >= 3, "three were turned away")
        assert waiting(redis_url) == 0
        with redis.Redis.from_url(redis_url) as client:
            assert not list(client.scan_iter("*unacked*"))
        pool.go("gate")
        assert handle.result(30).status == "completed"
        ring(pool.app, bell, bell, bell)
        idle = f"{handle.run_id} idle"
        wait_until(lambda: sum(idle in str(event.get("result")) for event in events) >= 3, "an ended run has nothing to do")
    assert len(pool.lines("asked")) == 1
    assert not worker.said("ERROR")


@pytest.mark.spec("DST-001")
def test_a_run_of_three_turns_is_three_tasks(pool: Pool) -> None:
    """Without a sweep, each task advances one turn, saves, and rings the next one; the last one ends the run."""
    pool.switch_sweep_off()
    pool.start()
    with captured(make_celery(pool.app)) as events:
        handle = pool.app.enqueue("worker", "2 turns")
        assert handle.result(30).status == "completed"
        wait_until(lambda: sum(event["type"] == "task-succeeded" for event in events) == 3, "three tasks were reported")
    tasks = [event["uuid"] for event in events if event["type"] == "task-received"]
    results = {event["uuid"]: event["result"].strip("'") for event in events if event["type"] == "task-succeeded"}
    assert [results[task] for task in tasks] == [f"{handle.run_id} {end}" for end in ("turn", "turn", "ended")]


@pytest.mark.spec("DST-005")
def test_a_run_that_waits_for_a_person_holds_nothing(pool: Pool, redis_url: str) -> None:
    """No lease, no message, no slot of the only worker, through many sweeps; it goes on when it is answered."""
    pool.start(concurrency=1)
    handle = pool.app.enqueue("signer", "contract")
    assert handle.result(30).status == "suspended"
    key = run_lease_key("default", handle.run_id)
    celery = make_celery(pool.app)
    wait_until(lambda: LOOP.run(pool.app.leases.peek(key)).ms_left is None, "the step gave its lease back")
    other = pool.app.enqueue("worker", "6 turns")
    assert other.result(30).status == "completed"
    wait_until(lambda: celery.control.inspect(timeout=1).active() == {"w0@test": []}, "no task is executed")
    assert waiting(redis_url) == 0
    with redis.Redis.from_url(redis_url) as client:
        assert not list(client.scan_iter("*unacked*"))
    assert LOOP.run(pool.app.leases.peek(key)).ms_left is None
    [item] = handle.pending()
    handle.approve(item.approval_id)
    assert handle.result(30).status == "completed"
    assert len(pool.lines("sign")) == 1


@pytest.mark.spec("FR-01")
def test_a_tool_longer_than_the_lease_runs_once_on_four_workers(pool: Pool, redis_url: str) -> None:
    """While its lease is renewed nobody else begins the step, however often it is rung and swept: each is turned away.

    The broker keeps nothing that it could deliver again after a visibility timeout.
    """
    for _ in range(4):
        pool.start(wait=False, lease_ttl_ms=1_000)
    for worker in pool.workers:
        worker.wait_for("worker_open")
    handle = pool.app.enqueue("holder", "gate")
    pool.wait_for_lines("hold")
    with captured(make_celery(pool.app)) as events:
        for _ in range(45):
            ring(pool.app, Bell("default", handle.run_id, "default"))
            time.sleep(0.1)  # four and a half times the TTL go by
        held = f"{handle.run_id} held"
        wait_until(lambda: sum(held in str(event.get("result")) for event in events) >= 45, "every other one was turned away")
    with redis.Redis.from_url(redis_url) as client:
        assert not list(client.scan_iter("*unacked*"))
    pool.go("gate")
    assert handle.result(30).status == "completed"
    assert len(pool.lines("hold")) == 1


@pytest.mark.spec("FR-02")
def test_a_time_far_ahead_is_a_row_and_fires_once(pool: Pool, redis_url: str) -> None:
    """Nothing waits in the broker for a start in three seconds; then every tool runs once, with three workers about."""
    for _ in range(3):
        pool.start(wait=False)
    for worker in pool.workers:
        worker.wait_for("worker_open")
    handle = pool.app.enqueue("worker", "1 turn", start_at=timedelta(seconds=3))
    assert waiting(redis_url) == 0
    with redis.Redis.from_url(redis_url) as client:
        assert not list(client.scan_iter("*unacked*"))
    assert handle.status() == "queued"
    assert not pool.lines("write")
    assert handle.result(30).status == "completed"
    assert len(pool.lines("write")) == 1


def test_runs_that_nobody_rang_for_are_found(pool: Pool) -> None:
    """A producer without a broker writes rows only; the sweep of the workers finds them all."""
    pool.start()
    silent = pool.silent()
    handles = [silent.enqueue("worker", "2 turns") for _ in range(10)]
    assert {handle.result(30).status for handle in handles} == {"completed"}
    silent.close()


def test_redis_may_be_emptied_at_any_moment(pool: Pool, redis_url: str) -> None:
    """Doorbells, leases and bindings are gone three times; every run completes, and no effect happens twice."""
    pool.start(concurrency=4)
    pool.start(concurrency=4)
    handles = [pool.app.enqueue("worker", "30 turns") for _ in range(6)]
    for lines in (10, 30, 50):
        pool.wait_for_lines("write", lines)
        flush(redis_url)
    assert {handle.result(60).status for handle in handles} == {"completed"}
    keys = [line.split()[0] for line in pool.lines("write")]
    assert len(keys) == len(set(keys)) == 6 * 20


def test_a_backlog_is_rows_and_not_messages(pool: Pool, redis_url: str) -> None:
    """While the only slot is taken, the sweep fills the open places and stops; afterwards every run completes.

    Never were more doorbells in the queue than its window has places.
    """
    window = 20
    worker = pool.start("threads", concurrency=1, window=window, lease_ttl_ms=1_000)
    first = pool.app.enqueue("holder", "gate")
    pool.wait_for_lines("hold")
    silent = pool.silent()
    handles = [silent.enqueue("worker", "1 turn") for _ in range(200)]
    wait_until(lambda: waiting(redis_url) >= open_places(window), "the open places are taken")
    seen: list[int] = []
    until = time.monotonic() + 3  # fifteen passes, and three times the TTL after which a row is looked at again
    while time.monotonic() < until:
        seen.append(waiting(redis_url))
        time.sleep(0.05)
    assert max(seen) == open_places(window), "one tenant alone leaves the other places alone"
    pool.go("gate")
    assert {handle.result(60).status for handle in (first, *handles)} == {"completed"}
    assert most_waiting(redis_url) <= window
    assert not worker.said("ERROR")
    silent.close()


def test_a_new_tenant_begins_beside_a_backlog(pool: Pool, redis_url: str) -> None:
    """With two slots and hundreds of runs of another tenant before it, its run is among the next that begin.

    The producer finds the queue full and writes a row; it is done while most of what came before it still waits.
    """
    window = 4
    pool.settings = pool.settings.model_copy(update={"window": window})
    pool.app.close()
    pool.app = application(pool.settings)
    pool.start("threads", concurrency=2)
    gates = [pool.app.enqueue("holder", f"gate{number}", scope="big") for number in range(2)]
    pool.wait_for_lines("hold", 2)
    handles = [pool.app.enqueue("worker", "1 turn", scope="big") for _ in range(300)]
    assert waiting(redis_url) <= window
    late = pool.app.enqueue("worker", "1 turn", scope="small")
    for number in range(2):
        pool.go(f"gate{number}")
    assert late.result(30).status == "completed"
    assert sum(handle.status() == "queued" for handle in handles) > 100
    assert {handle.result(60).status for handle in (*gates, *handles)} == {"completed"}
    assert most_waiting(redis_url) <= window
