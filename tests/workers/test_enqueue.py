"""`deuz.enqueue`: a door for processes that have Celery and none of our code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.errors import EnqueueRefusedError
from deuz_workers.ports.store import RunQuery
from deuz_workers.providers.mock import MockModel
from deuz_workers.workers.enqueue_task import check_order
from tests.workers.pool import Pool, wait_until

QUEUE = "deuz.default"


@pytest.fixture
def stranger(pool: Pool) -> Celery:
    """A Celery application that knows a broker and nothing of ours."""
    return Celery("stranger", broker=pool.settings.broker, set_as_current=False)


def runs(pool: Pool) -> list[str]:
    """Ids of all runs."""
    from deuz_workers.app.loop_thread import LOOP

    return [head.run_id for head in LOOP.run(pool.app.store.list_runs(RunQuery())).heads]


@pytest.mark.processes
@pytest.mark.spec("DWK-001")
@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_a_message_starts_a_run_once(pool: Pool, stranger: Celery, kind: str) -> None:
    """The task id is the idempotency key: the same message five times is one run, which completes."""
    pool.start(kind, enqueue="unsigned")
    for _ in range(5):
        stranger.send_task("deuz.enqueue", kwargs={"agent": "worker", "prompt": "2 turns"}, task_id="order-17", queue=QUEUE)
    stranger.send_task(
        "deuz.enqueue",
        kwargs={
            "agent": "worker",
            "messages": [{"role": "user", "content": "1 turn"}],
            "start_at": (datetime.now(UTC) + timedelta(seconds=1)).isoformat(),
            "tags": {"from": "afar"},
        },
        queue=QUEUE,
    )
    wait_until(lambda: len(runs(pool)) == 2, "both orders are rows")
    assert {pool.app.handle(run_id).result(30).status for run_id in runs(pool)} == {"completed"}
    keys = [line.split()[0] for line in pool.lines("write")]
    assert len(keys) == len(set(keys)) == 2


@pytest.mark.processes
def test_the_door_is_shut_unless_it_was_opened(pool: Pool, stranger: Celery) -> None:
    """The message is dropped with a code, no row is written, and the worker goes on."""
    worker = pool.start()
    stranger.send_task("deuz.enqueue", kwargs={"agent": "worker", "prompt": "2 turns"}, task_id="order-18", queue=QUEUE)
    worker.wait_for("enqueue_refused id=order-18 error=door_shut")
    worker.wait_for("EnqueueRefusedError")
    assert runs(pool) == []
    assert pool.app.enqueue("worker", "1 turn").result(30).status == "completed"


OPEN = Deuz([Agent("worker", model=MockModel(["done"]))], settings=Settings(enqueue="unsigned", database_url="sqlite:///x.db"))


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ({"agent": "nobody", "prompt": "x"}, "unknown_agent"),
        ({"prompt": "x"}, "unknown_agent"),
        ({"agent": 7, "prompt": "x"}, "unknown_agent"),
        ({"agent": "worker", "prompt": "x", "connection": "x"}, "unknown_argument"),
        ({"agent": "worker", "prompt": "x", "idempotency_key": "x"}, "unknown_argument"),
        ({"agent": "worker", "prompt": "x", "start_at": "tomorrow"}, "moment"),
        ({"agent": "worker", "prompt": "x", "deadline": 5}, "moment"),
    ],
)
def test_what_the_door_does_not_take(order: dict[str, Any], code: str) -> None:
    """Refused by code before anything is written; no value of the message is in the error."""
    with pytest.raises(EnqueueRefusedError) as refused:
        check_order(OPEN, (), order)
    assert refused.value.code == code
    assert "nobody" not in refused.value.message
    assert "tomorrow" not in refused.value.message


def test_arguments_have_names() -> None:
    """A positional argument is refused."""
    with pytest.raises(EnqueueRefusedError):
        check_order(OPEN, ("worker",), {"agent": "worker", "prompt": "x"})
