"""Events of Celery tasks, as Flower receives them."""

from __future__ import annotations

import json
import signal
from base64 import b64decode
from collections import Counter
from typing import Any

import pytest
import redis

from tests.workers.pool import DEADLINE_S, Pool

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kind", ["threads", "prefork", "solo"])
def test_events_come_in_few_messages_and_none_is_lost_at_the_end(pool: Pool, kind: str) -> None:
    """Every step was received, started and has succeeded; a worker that ends sends what it had gathered."""
    with redis.Redis.from_url(str(pool.settings.redis_url)) as client, client.pubsub() as listening:
        listening.psubscribe("*celeryev*")
        assert listening.get_message(timeout=DEADLINE_S), "the subscription is confirmed"
        worker = pool.start(kind)
        pool.app.enqueue("empty", "20 turns").result(30)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        messages: list[list[dict[str, Any]]] = []
        while not messages or messages[-1][0]["type"] != "worker-offline":
            message: Any = listening.get_message(timeout=DEADLINE_S)
            assert message, "the worker said that it is gone"
            body = json.loads(b64decode(json.loads(message["data"])["body"]))
            events = body if isinstance(body, list) else [body]
            if messages or events[0]["type"] == "worker-online":  # what comes before is the end of an earlier worker
                messages.append(events)
    kinds = Counter(event["type"] for body in messages for event in body)
    assert kinds["task-received"] == kinds["task-started"] == kinds["task-succeeded"] >= 21
    assert sum(body[0]["type"].startswith("task-") for body in messages) < kinds["task-received"]
