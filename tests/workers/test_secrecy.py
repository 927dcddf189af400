"""What a prompt says is in the database and nowhere else."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from deuz_workers.app.bell import broker_queue
from deuz_workers.app.names import MAX_RUN_ID_CHARS
from deuz_workers.workers.celery_app import make_celery
from tests.workers.events import captured
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes
MARKER = "xyzzy-8f1c"
"""In every prompt and tool argument of these tests."""


@contextmanager
def monitored(url: str) -> Generator[list[str]]:
    """Every command that the Redis server gets."""
    commands: list[str] = []
    client = redis.Redis.from_url(url, socket_timeout=None)  # it may be silent while a worker starts
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


@pytest.mark.spec("DST-004")
def test_a_doorbell_is_small_and_holds_no_secret(pool: Pool, redis_url: str) -> None:
    """Whatever the run and the settings hold: scope, run id and revision, in three kilobytes at their longest."""
    secret = "0123456789abcdef0123456789abcdef"
    scope, run_id = "s" * MAX_RUN_ID_CHARS, "r" * MAX_RUN_ID_CHARS
    with monitored(redis_url) as commands:
        pool.start(secret=secret)
        prompt = f"3 turns about {MARKER * 10_000}"
        handle = pool.app.enqueue("worker", prompt, run_id=run_id, scope=scope, tags={MARKER: MARKER})
        assert handle.result(30).status == "completed"
    bells = [command for command in commands if command.startswith(f"LPUSH {broker_queue('default')}")]
    bodies = [json.loads(base64.b64decode(json.loads(bell.split(" ", 2)[2])["body"])) for bell in bells]
    assert {0, 3, 6, 9} <= {body[0][2] for body in bodies}
    assert all((body[0][:2], len(body[0]), body[1]) == ([scope, run_id], 3, {}) for body in bodies)
    assert max(map(len, bells)) < 3_000
    for command in commands:
        assert not any(known in command for known in (MARKER, secret, pool.settings.database_url))


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
    wait_until(lambda: bool(celery.control.inspect(timeout=1).stats()), "the worker listens to remote control")
    refused: Any = celery.control.broadcast("shutdown", reply=True, timeout=2)
    assert "refused" in str(refused)
    assert "refused" in str(celery.control.broadcast("conf", reply=True, timeout=2))
    stats: Any = celery.control.inspect(timeout=2).stats()
    assert stats["w0@test"]["deuz"] == {"dropped": {}, "misfits": {}, "build": pool.app.build.name}
    assert worker.process.poll() is None
    assert not worker.said("Traceback")


def _exists(pool: Pool) -> bool:
    try:
        pool.app.handle("from-afar").status()
    except Exception:  # noqa: BLE001 - not there yet
        return False
    return True
