"""Workers that die: whatever they held goes on elsewhere, and no effect happens twice."""

from __future__ import annotations

import os
import signal
import time

import pytest

from deuz_workers.app.handle import Handle
from deuz_workers.app.loop_thread import LOOP
from tests.faults.gated_agents import application
from tests.faults.test_doorbells import waiting
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes
TTL_S = 2.0
"""The lease TTL of the `pool` fixture."""
SLACK_S = 10.0
"""A takeover is due within a TTL and two seconds; a machine that also runs other tests may take longer to find the time."""


@pytest.mark.spec("FR-07", "IDM-006", "LEA-011")
def test_a_child_killed_in_the_middle_of_a_tool_is_taken_over(pool: Pool) -> None:
    """The same run goes on, in another process, within a lease TTL of the death; the tool has the same key again."""
    pool.start("prefork")
    pool.start("prefork")
    handle = pool.app.enqueue("again", "gate")
    first = pool.wait_for_lines("hold")[0].split()
    os.kill(int(first[1]), signal.SIGKILL)
    died = time.monotonic()
    second = pool.wait_for_lines("hold", 2)[1].split()
    took_s = time.monotonic() - died
    print(f"takeover after {took_s:.2f} s at a TTL of {TTL_S:.0f} s")
    assert took_s < TTL_S + SLACK_S
    assert (second[0], second[1] != first[1]) == (first[0], True)
    pool.go("gate")
    assert handle.result(30).status == "completed"


@pytest.mark.spec("FR-07", "REC-014")
@pytest.mark.parametrize("kind", ["threads", "prefork", "solo"])
def test_an_effect_that_nobody_knows_of_is_left_to_a_person(pool: Pool, redis_url: str, kind: str) -> None:
    """A tool that must not run twice is not repeated after its worker died: the run waits and names the call.

    No worker comes back to it: nothing waits in the queue, and many sweeps later its rows are as they were.
    """
    worker = pool.start(kind)
    handle = pool.app.enqueue("holder", "gate")
    pool.wait_for_lines("hold")
    worker.kill()
    pool.go("gate")
    pool.start(kind)
    result = handle.result(30)
    assert (result.status, result.reason) == ("stopped", "tool-reconciliation-required")
    assert len(result.unknown_effects) == 1
    parked = LOOP.run(pool.app.store.load("default", handle.run_id))
    assert pool.app.enqueue("worker", "12 turns").result(30).status == "completed"
    wait_until(lambda: waiting(redis_url) == 0, "the queue is empty")
    time.sleep(2 * pool.settings.sweep_interval_ms / 1000)
    assert waiting(redis_url) == 0
    assert LOOP.run(pool.app.store.load("default", handle.run_id)) == parked
    assert pool.workers[-1].log.read_text().count(f"run_parked run={handle.run_id}") == 1
    assert len(pool.lines("hold")) == 1


@pytest.mark.spec("FR-09")
def test_a_worker_that_never_comes_back_is_not_waited_for(pool: Pool) -> None:
    """All runs of a worker that is dead for good are finished by the other one, without anybody's help."""
    dead = pool.start(concurrency=8)
    handles = [pool.app.enqueue("again", "gate") for _ in range(4)]
    pool.wait_for_lines("hold", 4)
    dead.kill()
    pool.go("gate")
    pool.start()
    assert {handle.result(30).status for handle in handles} == {"completed"}


def test_other_runs_of_a_worker_outlive_a_child_that_is_killed(pool: Pool) -> None:
    """The parent starts another child, and every run that shared the worker completes."""
    worker = pool.start("prefork", concurrency=2)
    poor = pool.app.enqueue("again", "gate")
    victim = int(pool.wait_for_lines("hold")[0].split()[1])
    others = [pool.app.enqueue("worker", "5 turns") for _ in range(3)]
    os.kill(victim, signal.SIGKILL)
    assert {handle.result(30).status for handle in others} == {"completed"}
    pool.go("gate")
    assert poor.result(30).status == "completed"
    assert worker.process.poll() is None


@pytest.mark.spec("LEA-011")
def test_a_worker_that_comes_back_to_life_saves_nothing(pool: Pool) -> None:
    """Frozen in a tool, its lease lapses and another worker takes the step; thawed, what it has to save is refused."""
    frozen = pool.start()
    handle = pool.app.enqueue("again", "gate")
    pool.wait_for_lines("hold")
    frozen.signal(signal.SIGSTOP)
    pool.start()
    keys = [line.split() for line in pool.wait_for_lines("hold", 2)]
    assert (keys[0][0], keys[0][1] != keys[1][1]) == (keys[1][0], True)
    pool.go("gate")
    assert handle.result(30).status == "completed"
    before = LOOP.run(pool.app.store.load("default", handle.run_id))
    frozen.signal(signal.SIGCONT)
    frozen.wait_for(f"step_over run={handle.run_id}")
    assert LOOP.run(pool.app.store.load("default", handle.run_id)) == before
    assert len(pool.lines("hold")) == 2


@pytest.mark.spec("APR-021")
def test_a_worker_killed_among_approved_calls_asks_nobody_again(pool: Pool) -> None:
    """Two of three approved calls have ended, the third was begun: another worker goes on with that one under the same key.

    Nothing is denied, nobody is asked, and the two do not run again.
    """
    pool.module = "tests.faults.gated_agents:app"
    worker = pool.start()
    client = application(pool.app.settings)
    handle = client.enqueue("gated", "go")
    assert handle.result(30).status == "suspended"
    for request in handle.pending():
        handle.approve(request)
    pool.wait_for_lines("hold")
    wait_until(lambda: completed(handle) == 2, "two outcomes are saved")
    worker.kill()
    pool.go("gate")
    pool.start()
    result = handle.result(60)
    assert (result.status, handle.pending()) == ("completed", ())
    texts = [part.text for message in result.messages for part in message.tool_results]
    assert texts == ["signed a", "signed b", "held"]
    assert len({line.split()[0] for line in pool.lines("hold")}) == 1
    assert len(pool.lines("sign")) == len(set(pool.lines("sign"))) == 2
    assert [event.type for event in handle.events(follow=False)].count("run.suspended") == 1
    client.close()


def completed(handle: Handle) -> int:
    """Calls of the run whose outcome is saved."""
    return sum(event.type == "tool.completed" for event in handle.events(follow=False))
