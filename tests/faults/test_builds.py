"""Two builds of an application side by side, as in every deploy (architecture D16), with real workers."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest
import redis

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.handle import Handle
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.core.change import Head
from deuz_workers.workers.celery_app import make_celery
from tests.workers.pool import Pool, Worker, wait_until

pytestmark = pytest.mark.processes
PUT_OFF = ("step_without_agent", "binding_changed")
"""What a worker says of a run that nobody can execute."""


@pytest.fixture
def client(pool: Pool) -> Generator[Deuz]:
    """Knows no agent, so that it may ask for those of any build."""
    pool.module = "tests.faults.build_agents:app"
    client = Deuz(settings=pool.settings)
    yield client
    client.close()


def start(pool: Pool, build: str, kind: str = "threads") -> Worker:
    """A worker of one build, known to the others."""
    worker = pool.start(kind, TEST_BUILD=build)
    with redis.Redis.from_url(pool.settings.redis_url or "", decode_responses=True) as client:
        wait_until(lambda: len(client.zrange("deuz:builds", 0, -1)) >= len({build, *started(pool)}), "it is announced")
    started(pool).append(build)
    return worker


def started(pool: Pool) -> list[str]:
    return pool.__dict__.setdefault("builds", [])


def head_of(client: Deuz, handle: Handle) -> Head:
    head = LOOP.run(client.store.head("default", handle.run_id))
    assert head is not None
    return head


def builds_by_run(pool: Pool) -> dict[str, set[str]]:
    """Which builds executed tools of each run; no tool call happened twice."""
    found: dict[str, set[str]] = defaultdict(set)
    lines = pool.lines("write")
    assert len({line.split()[0] for line in lines}) == len(lines)
    for line in lines:
        _, run_id, build = line.split()
        found[run_id].add(build)
    return found


@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_each_run_is_executed_by_the_build_that_began_it(pool: Pool, client: Deuz, kind: str) -> None:
    """Doorbells that meet the other build go on to the right one; nobody waits, and nobody else writes a row."""
    old = start(pool, "old", kind)
    first = [client.enqueue("changed", "80 turns") for _ in range(4)]
    pool.wait_for_lines("write", 8)
    new = start(pool, "new", kind)
    later = [client.enqueue("changed", "20 turns") for _ in range(4)]
    only = {build: [client.enqueue(f"only-{build}", "10 turns") for _ in range(2)] for build in ("old", "new")}
    handles = [*first, *later, *only["old"], *only["new"]]
    assert {handle.result(30).status for handle in handles} == {"completed"}
    found = builds_by_run(pool)
    assert all(found[handle.run_id] == {"old"} for handle in (*first, *only["old"]))
    assert all(found[handle.run_id] == {"new"} for handle in only["new"])
    assert {len(found[handle.run_id]) for handle in later} == {1}
    assert len(pool.lines("write")) == 4 * 80 + 4 * 20 + 4 * 10
    assert old.said("step_passed_on") or new.said("step_passed_on")
    assert not any(worker.said(event) for worker in (old, new) for event in PUT_OFF)
    assert {head_of(client, handle).attempts for handle in handles} == {0}


@pytest.mark.spec("BND-008", "DST-006")
@pytest.mark.parametrize("agent", ["changed", "only-old"])
def test_a_run_that_nobody_can_execute_waits_untouched(pool: Pool, client: Deuz, agent: str) -> None:
    """It is reported and counted, its record stays as it is, and it goes on at once when its build is back."""
    old = start(pool, "old")
    handle = client.enqueue(agent, "200 turns")
    pool.wait_for_lines("write", 3)
    old.signal(signal.SIGTERM)
    assert old.ended() == 0
    before = head_of(client, handle)
    new = pool.start(TEST_BUILD="new")
    event = "binding_changed" if agent == "changed" else "step_without_agent"
    said = f"{event} run={handle.run_id} agent={agent}"
    wait_until(lambda: new.log.read_text().count(said) >= 3, "it is put off, and looked at again")
    stats: Any = make_celery(pool.app).control.inspect(timeout=2).stats()
    assert sum(stats["w1@test"]["deuz"]["misfits"].values()) >= 3
    now = head_of(client, handle)
    assert (now.revision, now.body, now.status, now.parked, now.attempts, now.due_in_ms is not None) == (
        *(before.revision, before.body, before.status, None, 0),
        True,
    )
    LOOP.run(client.store.put_off("default", handle.run_id, 600_000, 600_000))
    start(pool, "old")
    pool.wait_for_lines("write", len(pool.lines("write")) + 3)
    handle.cancel()
    assert handle.result(30).status == "stopped"
    assert builds_by_run(pool)[handle.run_id] == {"old"}


def test_a_rolling_restart_loses_nothing(pool: Pool, client: Deuz) -> None:
    """Runs that both builds can execute go on in the new one; the others wait for the old one, which takes them up again."""
    turns = 250  # so many that they outlast the start of a worker
    old = start(pool, "old")
    same = [client.enqueue("same", f"{turns} turns") for _ in range(4)]
    changed = [client.enqueue("changed", f"{turns} turns") for _ in range(4)]
    pool.wait_for_lines("write", 16)
    new = start(pool, "new")
    old.signal(signal.SIGTERM)
    fresh = client.enqueue("changed", "3 turns")
    assert old.ended() == 0
    assert {handle.result(120).status for handle in (*same, fresh)} == {"completed"}
    left = [handle for handle in changed if head_of(client, handle).status != "completed"]
    back = start(pool, "old")
    assert {handle.result(120).status for handle in changed} == {"completed"}
    found = builds_by_run(pool)
    assert all(found[handle.run_id] == {"old"} for handle in changed)
    assert any("new" in found[handle.run_id] for handle in same)
    assert len(pool.lines("write")) == 8 * turns + 3
    assert left, "some were in the middle"
    assert not any(worker.said("ERROR") for worker in (old, new, back))
