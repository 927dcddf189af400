"""What a prompt says is in the database and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery

from deuz_workers.app.bell import broker_queue
from deuz_workers.workers.celery_app import make_celery
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes
MARKER = "xyzzy-8f1c"
"""In every prompt and tool argument of these tests."""


@contextmanager
def captured(celery: Celery) -> Generator[list[dict[str, Any]]]:
    """Every event of the workers, as Flower gets it."""
    events: list[dict[str, Any]] = []
    stopping = threading.Event()
    ready = threading.Event()

    def capture() -> None:
        with celery.connection_for_read() as connection:
            receiver = celery.events.Receiver(connection, handlers={"*": events.append})
            with receiver.consumer_context() as (consuming, _, _):
                ready.set()
                while not stopping.is_set():
                    try:
                        consuming.drain_events(timeout=0.1)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=capture)
    thread.start()
    assert ready.wait(10)
    try:
        yield events
    finally:
        stopping.set()
        thread.join()


@contextmanager
def monitored(url: str) -> Generator[list[str]]:
    """Every command that the Redis server gets."""
    commands: list[str] = []
    client = redis.Redis.from_url(url)
    monitor: Any = client.monitor()
    with monitor as m:
        thread = threading.Thread(target=lambda: commands.extend(_until_marker(m)))
        thread.start()
        yield commands
        with redis.Redis.from_url(url) as other:
            other.get("end-of-monitor")
        thread.join()
    client.close()


def _until_marker(monitor: Any) -> Generator[str]:
    for command in monitor.listen():
        if "end-of-monitor" in command["command"]:
            return
        yield command["command"]


@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_prompts_are_in_no_message_event_or_log(pool: Pool, redis_url: str, kind: str) -> None:
    """Run id and agent are shown to whoever watches the workers, and nothing of what the run is about."""
    worker = pool.start(kind)
    celery = make_celery(pool.app)
    with monitored(redis_url) as commands, captured(celery) as events:
        handle = pool.app.enqueue("worker", f"3 turns about {MARKER}", run_id="visible-run")
        gate = pool.app.enqueue("holder", MARKER)
        pool.wait_for_lines("hold")
        control = celery.control.inspect(timeout=1)
        active = str(control.active())
        pool.go(MARKER)
        assert {handle.result(30).status, gate.result(30).status} == {"completed"}
        wait_until(lambda: sum(event["type"] == "task-succeeded" for event in events) >= 5, "five steps were reported")
    assert gate.run_id in active
    received = [event for event in events if event["type"] == "task-received"]
    assert {"(visible-run, agent=worker)"} <= {event["args"] for event in received}
    assert {event["kwargs"] for event in received} == {"{}"}
    assert any("visible-run" in command for command in commands)
    for text in (*map(str, events), *commands, active, worker.log.read_text()):
        assert MARKER not in text


def test_a_message_with_content_shows_none_of_it(pool: Pool) -> None:
    """`deuz.enqueue` carries the prompt; its events, the worker's answers and its log do not, whatever its sender says."""
    worker = pool.start(enqueue="unsigned")
    celery = make_celery(pool.app)
    with captured(celery) as events:
        celery.send_task(
            "deuz.enqueue",
            kwargs={"agent": "worker", "prompt": f"2 {MARKER}", "run_id": "from-afar"},
            argsrepr=MARKER,
            kwargsrepr=MARKER,
            task_id="key-1",
            queue=broker_queue("default"),
        )
        celery.send_task(
            "deuz.enqueue", kwargs={"agent": "worker", "prompt": MARKER, "nonsense": MARKER}, queue=broker_queue("default")
        )
        celery.send_task("some.other.task", args=[MARKER], kwargs={"a": MARKER}, queue=broker_queue("default"))
        celery.send_task("deuz.step", args=["default", MARKER], kwargs={"a": MARKER}, queue=broker_queue("default"))
        celery.send_task("celery.map", args=["deuz.enqueue", [MARKER]], queue=broker_queue("default"))
        wait_until(lambda: pool.app.handle("from-afar").status() == "completed" if _exists(pool) else False, "the run is there")
        worker.wait_for("reason=unknown_task task='some.other.task'")
        worker.wait_for("reason=unknown_task task='celery.map'")
        worker.wait_for("reason=invalid")
        worker.wait_for("enqueue_refused")
        wait_until(lambda: any(event["type"] == "task-failed" for event in events), "the refusal was reported")
    assert "(agent=worker)" in {event.get("args") for event in events}
    for text in (*map(str, events), worker.log.read_text()):
        assert MARKER not in text


def test_remote_control_takes_no_orders(pool: Pool) -> None:
    """An order is answered with a refusal, the worker goes on, and what it tells of itself holds no URL."""
    worker = pool.start()
    celery = make_celery(pool.app)
    refused: Any = celery.control.broadcast("shutdown", reply=True, timeout=2)
    assert "refused" in str(refused)
    assert "refused" in str(celery.control.broadcast("conf", reply=True, timeout=2))
    stats: Any = celery.control.inspect(timeout=2).stats()
    assert stats["w0@test"]["deuz"] == {"dropped": {}}
    assert worker.process.poll() is None
    assert not worker.said("Traceback")


def _exists(pool: Pool) -> bool:
    try:
        pool.app.handle("from-afar").status()
    except Exception:  # noqa: BLE001 - not there yet
        return False
    return True
