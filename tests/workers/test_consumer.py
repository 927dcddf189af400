"""What the consumer of a worker does for less: events in bundles, steps to the child that is warm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous import Hub

from deuz_workers.workers.celery_app import make_celery
from deuz_workers.workers.consumer import QuietConsumer, prefer_first_idle
from tests.workers.events import captured
from tests.workers.pool import Pool, wait_until


@pytest.mark.processes
@pytest.mark.parametrize("name", ["threads", "prefork"])
def test_whoever_watches_gets_every_event_once(pool: Pool, name: str) -> None:
    """They are gathered for a moment and published together."""
    pool.switch_sweep_off()
    pool.start(name)
    with captured(make_celery(pool.app)) as events:
        assert pool.app.enqueue("worker", "3 turns").result(30).status == "completed"

        def of(kind: str) -> list[str]:
            return [event["uuid"] for event in events if event["type"] == kind]

        wait_until(lambda: len(of("task-succeeded")) >= 4, "three turns and an answer, a step each")
    assert len(set(of("task-started"))) == len(of("task-started")) == 4
    assert sorted(of("task-started")) == sorted(of("task-received")) == sorted(of("task-succeeded"))


@pytest.mark.processes
def test_what_was_gathered_when_a_worker_ends_is_published(pool: Pool) -> None:
    """The events of its last moment are not dropped with the connection."""
    celery = make_celery(pool.app)
    with captured(celery) as events, celery.connection_for_write() as connection:
        pool_and_worker = {
            "pool": SimpleNamespace(num_processes=1, is_green=False),
            "controller": SimpleNamespace(use_eventloop=False),
        }
        ending: Any = QuietConsumer(print, app=celery, **pool_and_worker)
        dispatcher = celery.events.Dispatcher(connection, buffer_group=["task"])
        ending.event_dispatcher = dispatcher
        dispatcher.send("task-started", uuid="the-last")
        ending.shutdown()
        wait_until(lambda: [event["uuid"] for event in events if event["type"] == "task-started"] == ["the-last"], "it is told")


def test_the_first_idle_child_is_written_to() -> None:
    """Whatever order the poller reports the children in; a pool without the callback is left alone."""
    hub: Any = Hub()
    seen: list[list[int]] = []
    hub.consolidate_callback = seen.append
    prefer_first_idle(hub)
    hub.consolidate_callback([9, 4, 7])
    hub.consolidate_callback([4, 9])
    assert seen == [[4, 7, 9], [4, 9]]
    hub.consolidate_callback = None
    prefer_first_idle(hub)
    assert hub.consolidate_callback is None
    hub.close()
