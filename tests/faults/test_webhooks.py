"""Workers that die while they tell an endpoint: told again, under the same id, and nothing is left out."""

from __future__ import annotations

import json
import threading

import pytest

from deuz_workers.app.handle import Handle
from deuz_workers.app.loop_thread import LOOP
from tests.app.receiver import Received, Receiver
from tests.workers.pool import Pool, Worker, wait_until

pytestmark = pytest.mark.processes
MASTER = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def told(pool: Pool) -> Pool:
    """Workers of the pool tell endpoints on this machine."""
    given = {"webhook_secret": MASTER, "egress_allow": ("127.0.0.1",)}
    pool.settings = type(pool.settings)(**{**pool.settings.model_dump(include=pool.settings.model_fields_set), **given})
    pool.app = type(pool.app)([*pool.app.agents.values()], settings=pool.settings)
    return pool


def start(pool: Pool) -> Worker:
    return pool.start(webhook_secret=MASTER)


def run_ids(receiver: Receiver) -> list[str]:
    return [json.loads(body)["data"]["run_id"] for _, body in receiver.received]


def test_a_worker_killed_between_request_and_row_is_followed_by_the_same_id(told: Pool) -> None:
    """It dies while the endpoint has the request and the row does not say so yet; another worker tells it again."""
    doomed: list[Worker] = []
    dead = threading.Event()

    def answer(received: Received) -> int | None:
        if doomed:
            doomed.pop().kill()
            dead.set()
        return 204

    with Receiver(answer) as receiver:
        told.app.webhooks.add(receiver.url, events=["run.completed"])
        doomed.append(start(told))
        handle = told.app.enqueue("worker", "1 turns", run_id="r")
        assert handle.result(60).status == "completed"
        assert dead.wait(60)
        [row] = told.app.webhooks.list()
        assert row.waiting == 1
        start(told)
        wait_until(lambda: told.app.webhooks.list()[0].waiting == 0, "the delivery arrived")
    assert len(receiver.received) == 2
    assert receiver.ids[0] == receiver.ids[1]
    assert receiver.received[0][1] == receiver.received[1][1]


def test_several_workers_tell_everything_in_spite_of_kills(told: Pool) -> None:
    """Runs end on three workers, one of which is killed again and again: every end is told at least once."""
    with Receiver() as receiver:
        told.app.webhooks.add(receiver.url, events=["run.completed"])
        for _ in range(2):
            start(told)
        handles: list[Handle] = []
        victim = start(told)
        for place in range(12):
            handles.append(told.app.enqueue("worker", "1 turns", run_id=f"r{place}"))
            if place % 4 == 3:
                victim.kill()
                victim = start(told)
        assert {handle.result(60).status for handle in handles} == {"completed"}

        def all_told() -> bool:
            return set(run_ids(receiver)) >= {f"r{place}" for place in range(12)}

        wait_until(all_told, "all ends were told")
        wait_until(lambda: told.app.webhooks.list()[0].waiting == 0, "nothing waits")
    by_run = dict(zip(run_ids(receiver), receiver.ids, strict=True))
    assert len(set(receiver.ids)) == len(by_run) == 12
    assert LOOP.run(told.app.store.take_webhook_deliveries(limit=9, batch=9, claim_ms=1)) == ()  # type: ignore[attr-defined]
