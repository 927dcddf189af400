"""A run's trace goes on in whatever worker executes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry import trace

from deuz_workers.app.loop_thread import LOOP
from deuz_workers.workers.celery_app import make_celery
from tests.telemetry.conftest import Collected
from tests.telemetry.traced_agents import application
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def spans_of(pool: Pool) -> dict[str, list[dict[str, Any]]]:
    """Spans by the worker process that told them."""
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in pool.traces.glob("spans-*")}


def traced(pool: Pool, **settings: Any) -> Pool:
    pool.module = "tests.telemetry.traced_agents:app"
    pool.settings = pool.settings.model_copy(update={"telemetry": "on", **settings})
    pool.app = application(pool.settings)
    return pool


def test_the_trace_goes_on_in_the_worker_that_takes_over(pool: Pool, collected: Collected) -> None:
    """A worker is killed in the second turn; what both told, and the producer's span, is one trace with one end."""
    traced(pool)
    first = pool.start(telemetry="on")
    with trace.get_tracer("test").start_as_current_span("request") as request:
        handle = pool.app.enqueue("traced", "go")
    pool.wait_for_lines("hold")
    pool.go("one")
    pool.wait_for_lines("hold", 2)
    first.kill()
    second = pool.start(telemetry="on")
    pool.wait_for_lines("hold", 3)
    pool.go("two")
    assert handle.result(30).status == "completed"
    wait_until(lambda: any(span["name"] == "invoke_agent traced" for spans in spans_of(pool).values() for span in spans), "it")
    told = spans_of(pool)
    assert set(told) == {f"spans-{first.pid}", f"spans-{second.pid}"}
    assert all(told.values())
    everything = [span for spans in told.values() for span in spans]
    wanted = f"0x{request.get_span_context().trace_id:032x}"
    assert {span["context"]["trace_id"] for span in everything} == {wanted}
    assert sum(span["name"] == "invoke_agent traced" for span in everything) == 1
    assert {span["attributes"]["deuz.turn"] for span in told[f"spans-{first.pid}"]} == {1, 2}


def test_a_message_carries_the_trace_of_its_sender(pool: Pool, collected: Collected) -> None:
    """`deuz.enqueue` from a process with Celery alone: a header `traceparent` names the run's trace."""
    traced(pool)
    pool.start(telemetry="on", enqueue="unsigned")
    pool.go("one")
    pool.go("two")
    celery = make_celery(pool.app)
    for key, headers in (("good", {"traceparent": PARENT}), ("bad", {"traceparent": "00-junk"}), ("none", {})):
        kwargs = {"agent": "traced", "prompt": "go", "run_id": f"run-{key}"}
        celery.send_task("deuz.enqueue", kwargs=kwargs, task_id=key, queue="deuz.default", headers=headers)
    traces: dict[str, str | None] = {}
    for key in ("good", "bad", "none"):
        wait_until(lambda key=key: _is_there(pool, f"run-{key}"), f"the run of {key}")
        handle = pool.app.handle(f"run-{key}")
        assert handle.result(30).status == "completed"
        traces[key] = handle.envelope().trace
    assert traces == {"good": PARENT, "bad": None, "none": None}


def _is_there(pool: Pool, run_id: str) -> bool:
    return LOOP.run(pool.app.store.head("default", run_id)) is not None
