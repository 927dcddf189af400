"""A database that fails over to a standby which was behind (architecture D16), under real workers.

In each test a person allowed a payment, it was made and saved, and then the database has the record from before the answer.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator
from typing import Any

import pytest
import redis
from kombu import Connection

from deuz_workers.app.bell import MARK
from deuz_workers.app.handle import Handle
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.core.change import Bell, Head
from deuz_workers.core.lost_commits import WENT_BACKWARDS, revision_after
from deuz_workers.core.marks import Marks
from deuz_workers.core.names import run_lease_key
from tests.faults.lagging_agents import application
from tests.faults.older_record import OlderRecord
from tests.proxies import CuttingProxy
from tests.workers.pool import Pool, Worker, wait_until

pytestmark = pytest.mark.processes
SECRET = "known to the pool alone"


class Failing:
    """Workers whose database loses what a run did after it was suspended for a person."""

    def __init__(self, pool: Pool) -> None:
        pool.module = "tests.faults.lagging_agents:app"
        self.pool = pool
        settings = pool.settings.model_dump(include=pool.settings.model_fields_set)
        self.client = application(type(pool.settings)(**settings, secret=SECRET))
        self.handle: Handle = self.client.enqueue("clerk", "gate")

    def start(self, **settings: Any) -> Worker:
        return self.pool.start(secret=SECRET, **settings)

    def suspended(self) -> OlderRecord:
        """The record that will be left: the payment waits for a person."""
        assert self.handle.result(30).status == "suspended"
        return OlderRecord(self.pool.settings.database_url, self.handle.run_id)

    def allow(self) -> None:
        [item] = self.handle.pending()
        self.handle.approve(item.approval_id)

    @property
    def head(self) -> Head:
        head = LOOP.run(self.client.store.head("default", self.handle.run_id))
        assert head is not None
        return head

    def wait_until_parked(self) -> Head:
        wait_until(lambda: self.head.parked is not None, "the run is parked")
        return self.head


@pytest.fixture
def failing(pool: Pool) -> Generator[Failing]:
    failing = Failing(pool)
    yield failing
    failing.client.close()


def test_the_executor_of_the_lost_commits_parks_the_run(failing: Failing) -> None:
    """It finds an older revision than its own where it wanted to save an outcome, and nobody begins anything."""
    failing.start()
    older = failing.suspended()
    failing.allow()
    failing.pool.wait_for_lines("hold")
    lost = failing.head.revision
    older.put_back()
    failing.pool.go("gate")
    head = failing.wait_until_parked()
    assert (head.parked, head.status, head.revision) == (WENT_BACKWARDS, "suspended", revision_after(lost))
    result = failing.handle.result(30)
    assert (result.status, result.reason) == ("stopped", WENT_BACKWARDS)
    assert len(failing.pool.lines("sign")) == 1


def test_the_lease_of_a_dead_executor_stops_the_next_one(failing: Failing, redis_url: str) -> None:
    """A person allows the payment again, and it is not made again before somebody has said so."""
    dead = failing.start()
    older = failing.suspended()
    failing.allow()
    failing.pool.wait_for_lines("hold")
    lost, key = failing.head.revision, run_lease_key("default", failing.handle.run_id)
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        said = f"{lost}:"
        wait_until(lambda: str(client.hget(f"deuz:lease:{key}", "mark")).startswith(said), "a renewal told what was saved")
    dead.kill()
    older.put_back()
    failing.allow()
    failing.start()
    assert failing.wait_until_parked().parked == WENT_BACKWARDS
    assert len(failing.pool.lines("sign")) == 1
    failing.pool.go("gate")
    assert failing.handle.retry() == ()
    assert failing.handle.result(30).status == "completed"
    assert len(failing.pool.lines("sign")) == 2, "it was said that it may"


def rung(failing: Failing) -> OlderRecord:
    """The worker has drained, its last doorbell waits in the queue, and no sweep will ring."""
    failing.pool.switch_sweep_off()
    drained = failing.start()
    older = failing.suspended()
    failing.allow()
    failing.pool.wait_for_lines("hold")
    drained.signal(signal.SIGTERM)
    drained.wait_for("worker_draining")
    failing.pool.go("gate")
    assert drained.ended() == 0
    return older


def test_a_doorbell_that_waited_stops_whoever_takes_it(failing: Failing) -> None:
    """It carries the revision of the commit that it was rung after."""
    older = rung(failing)
    lost = failing.head.revision
    assert lost > older.revision
    older.put_back()
    worker = failing.start()
    assert failing.wait_until_parked().revision == revision_after(lost)
    worker.wait_for(f"store_went_backwards run={failing.handle.run_id} agent=clerk stored={older.revision} seen={lost}")
    assert len(failing.pool.lines("sign")) == 1


def test_a_doorbell_outlives_the_outage_that_it_is_taken_in(failing: Failing) -> None:
    """The database is away when a worker takes it, and has the older record when it is back."""
    with CuttingProxy.before_postgres(failing.pool.settings.database_url) as proxy:
        failing.pool.switch_sweep_off()
        worker = failing.start(database_url=proxy.postgres_url(failing.pool.settings.database_url))
        older = failing.suspended()
        failing.allow()
        failing.pool.wait_for_lines("hold")
        failing.pool.go("gate")
        assert failing.handle.result(30).status == "completed"
        lost = failing.head.revision
        proxy.refuse()
        asyncio.run(failing.client.doorbell.offer([Bell("default", failing.handle.run_id, "default", lost)]))
        worker.wait_for("step_unreachable")
        older.put_back()
        proxy.accept()
        assert failing.wait_until_parked().revision == revision_after(lost)
    assert len(failing.pool.lines("sign")) == 1


def forge(url: str, run_id: str, revision: int, mark: str) -> None:
    """A doorbell as anybody who can write to the broker could send it, with a header of their own."""
    bell = {"lang": "py", "task": "deuz.step", "id": f"forged-{mark[:20]}", "root_id": "f", "retries": 0, MARK: mark}
    with Connection(url, transport_options={"ack_emulation": False}) as connection:
        body = (["default", run_id, revision], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
        connection.Producer().publish(body, exchange="", routing_key="deuz.default", headers=bell, serializer="json")


def test_forged_revisions_park_nothing(failing: Failing, broker_url: str, redis_url: str) -> None:
    """Doorbells and leases with revisions that are not signed, or not by this pool, or not for this run."""
    failing.start()
    failing.suspended()
    name, key = failing.handle.run_id, run_lease_key("default", failing.handle.run_id)
    genuine = Marks(SECRET.encode(), "bell")
    marks = [
        "",
        "9000",
        "9000:0123456789abcdef0123456789abcdef",
        Marks(b"guessed", "bell").write(key, 9_000),
        Marks(SECRET.encode()).write(key, 9_000),
        genuine.write(run_lease_key("default", "another"), 9_000),
        genuine.write(key, 1).replace("1:", "9000:", 1),
    ]
    for mark in marks:
        forge(broker_url, name, 9_000, mark)
    with redis.Redis.from_url(redis_url) as client:
        lapsed: list[Any] = ["owner", "x", "token", 1, "until", 1, "epoch", "1:a:b", "mark", marks[2]]
        wait_until(lambda: not client.exists("deuz.default"), "the forged doorbells were taken")
        client.hset(f"deuz:lease:{key}", items=lapsed)
    failing.allow()
    failing.pool.go("gate")
    assert failing.handle.result(30).status == "completed"
    assert failing.head.revision < 100
    assert not failing.pool.workers[0].said("store_went_backwards")
