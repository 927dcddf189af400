"""Answers and words that come as signed Celery messages, from a process that has none of our code."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from deuz_workers.app.bell import broker_queue
from deuz_workers.core.signature import sign_order
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes

QUEUE = "deuz.default"
SECRET = "a secret of thirty-two characters"
KEYS = json.dumps(
    [{"id": "desk", "secret": SECRET, "scopes": ["default"], "agents": ["signer", "holder"], "doors": ["answer", "reconcile"]}]
)


class Desk:
    """Sends what people say."""

    def __init__(self, pool: Pool) -> None:
        self.celery = Celery("stranger", broker=pool.settings.broker, set_as_current=False)

    def send(self, task: str, order: dict[str, Any], key: str, **changes: Any) -> None:
        signed = sign_order(order, task=task, task_id=key, key_id="desk", secret=SECRET, issued_at=int(time.time()))
        self.celery.send_task(task, kwargs={**signed, **changes}, task_id=key, queue=QUEUE)


def test_a_signed_verdict_lets_the_call_run_and_an_altered_one_does_not(pool: Pool) -> None:
    """An order that was changed, or that is for another call, is refused and named; the right one counts, also if it comes
    twice."""
    worker = pool.start(producer_keys=KEYS)
    desk = Desk(pool)
    handle = pool.app.enqueue("signer", "contract")
    [asked] = handle.result(30).pending_approvals
    order = {"run_id": handle.run_id, "item": asked.approval_id, "approved": False, "by": "ann"}
    desk.send("deuz.answer", order, "a-1", approved=True)
    worker.wait_for("answer_refused id=a-1 error=signature")
    other = asked.approval_id.partition("@")[0] + "@0000000000000000"
    desk.send("deuz.answer", {**order, "approved": True, "item": other}, "a-2")
    worker.wait_for("answer_refused id=a-2 error=unknown_item part=arguments")
    desk.send("deuz.answer", {**order, "approved": True, "tool": "other"}, "a-3")
    worker.wait_for("answer_refused id=a-3 error=answer_refused part=tool")
    assert handle.pending() == (asked,)
    for _ in range(2):
        desk.send("deuz.answer", {**order, "approved": True}, "a-4")
    wait_until(lambda: handle.status() == "completed", "the verdict counts")
    worker.wait_for("answer_late id=a-4")
    assert len(pool.lines("sign")) == 1
    assert "contract" not in worker.log.read_text().split("answer_refused")[-1]


def test_a_policy_that_comes_with_a_verdict_binds_the_worker_that_goes_on(pool: Pool) -> None:
    """One that cannot be read is refused with its verdict; the other is stored before it, so the approved call does not run."""
    worker = pool.start(producer_keys=KEYS)
    desk = Desk(pool)
    handle = pool.app.enqueue("signer", "contract")
    [asked] = handle.result(30).pending_approvals
    order = {"run_id": handle.run_id, "item": asked.approval_id, "approved": True}
    desk.send("deuz.answer", {**order, "policy": {"allowed_hours": [9]}}, "p-1")
    worker.wait_for("answer_refused id=p-1 error=unknown_argument part=policy")
    assert handle.pending() == (asked,)
    desk.send("deuz.answer", {**order, "policy": {"allowed_tools": ["read"]}}, "p-2")
    wait_until(lambda: handle.status() == "failed", "the run is held to the policy")
    assert (handle.result(30).error or {})["code"] == "tool_not_allowed"
    assert pool.lines("sign") == []


@pytest.mark.spec("REC-014")
def test_a_run_that_waits_for_a_word_is_left_alone_until_it_comes(pool: Pool) -> None:
    """Its worker died in a call that may not be repeated: nothing is in the broker after the stop nor two sweeps later, the
    record is as it was, and a signed word makes the run due again."""
    first = pool.start(producer_keys=KEYS)
    handle = pool.app.enqueue("holder", "gate")
    pool.wait_for_lines("hold")
    first.kill()
    before = pool.app.inspect(handle.run_id)
    second = pool.start(producer_keys=KEYS)
    result = handle.result(30)
    assert (result.status, result.reason) == ("stopped", "tool-reconciliation-required")
    second.wait_for("run_parked")
    steps = second.log.read_text().count("run_taken_over")
    client = redis.Redis.from_url(str(pool.settings.redis_url))

    def in_broker() -> int:
        return sum(int(client.llen(key)) for key in client.scan_iter(f"{broker_queue('default')}*"))

    wait_until(lambda: in_broker() == 0, "the broker is empty")
    three_sweeps = timedelta(milliseconds=3 * pool.settings.sweep_interval_ms)  # this one is found by them alone
    assert pool.app.enqueue("worker", "2 turns", start_at=three_sweeps).result(30).status == "completed"
    wait_until(lambda: in_broker() == 0, "its doorbells are answered")
    assert second.log.read_text().count("run_taken_over") == steps
    assert pool.app.inspect(handle.run_id) == before
    [effect] = result.unknown_effects
    late = {"run_id": handle.run_id, "calls": [{"effect": effect.effect_id, "output": "was held", "step": 2}]}
    desk = Desk(pool)
    desk.send("deuz.reconcile", late, "w-1")
    second.wait_for("answer_refused id=w-1 error=answer_refused part=step")
    desk.send("deuz.reconcile", {**late, "calls": [{"effect": effect.effect_id, "output": "was held", "step": 1}]}, "w-2")
    wait_until(lambda: handle.status() == "completed", "the run goes on")
    assert len(pool.lines("hold")) == 1
    client.close()
