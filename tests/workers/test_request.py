"""What a worker keeps of a message, and what of it it shows."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import InvalidTaskError
from kombu.message import Message

from deuz_workers.workers.celery_app import make_celery
from deuz_workers.workers.drain import Urgency
from deuz_workers.workers.host import host_of
from deuz_workers.workers.request import QuietRequest

SECRET = "xyzzy"


@pytest.fixture
def celery(monkeypatch: pytest.MonkeyPatch) -> Celery:
    monkeypatch.setenv("DEUZ_CONFIG", "/dev/null")
    monkeypatch.setenv("DEUZ_REDIS_URL", "redis://127.0.0.1:1/0")
    return make_celery()


def request(celery: Celery, task: str, args: Any, kwargs: Any, embed: Any = None, **headers: Any) -> QuietRequest:
    """As a consumer makes it of a message on the wire."""
    body = json.dumps([args, kwargs, embed or {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    own = {"lang": "py", "task": task, "id": "id-1", "argsrepr": SECRET, "kwargsrepr": SECRET}
    message = Message(body, content_type="application/json", content_encoding="utf-8", headers={**own, **headers})
    message.accept = {"application/json"}
    return QuietRequest(message, app=celery, hostname="w@test", task=celery.tasks[task])


def everything(made: QuietRequest) -> str:
    """All that events, `inspect` and logs take from a request."""
    told = made.info(), made.info(safe=False), made.argsrepr, made.kwargsrepr, repr(made), str(made)
    headers = {name: made.request_dict.get(name) for name in ("argsrepr", "kwargsrepr", "shadow")}
    return f"{told} {headers}"


def test_a_doorbell_shows_run_and_agent(celery: Celery) -> None:
    """The sender's own representation is replaced, also in what a prefork child gets."""
    made = request(celery, "deuz.step", ["default", "run-1", 3], {}, agent="reviewer")
    assert made.argsrepr == made.request_dict["argsrepr"] == "(run-1, agent=reviewer)"
    assert SECRET not in everything(made)


def test_an_order_shows_its_agent(celery: Celery) -> None:
    """Prompt, messages and everything else that it carries are shown nowhere."""
    made = request(celery, "deuz.enqueue", [], {"agent": "reviewer", "prompt": SECRET, "tags": {SECRET: SECRET}})
    assert made.argsrepr == "(agent=reviewer)"
    assert SECRET not in everything(made)


def test_what_is_shown_has_an_end(celery: Celery) -> None:
    """A run id or agent name of any length fills no log."""
    made = request(celery, "deuz.step", ["default", "r" * 10_000, 3], {}, agent="a" * 10_000)
    assert len(made.argsrepr) < 500


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ([], {}),
        (["default", "run-1"], {}),
        (["default", "run-1", "3"], {}),
        (["default", 1, 3], {}),
        (["default", "run-1", 3, SECRET], {}),
        (["default", "run-1", 3], {"prompt": SECRET}),
    ],
)
def test_a_doorbell_has_three_arguments(celery: Celery, args: Any, kwargs: Any) -> None:
    """Anything else is refused before it reaches a pool, with a text that quotes nothing."""
    with pytest.raises(InvalidTaskError) as refused:
        request(celery, "deuz.step", args, kwargs)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "headers",
    [
        {"eta": "2030-01-01T00:00:00+00:00"},
        {"shadow": SECRET},
        {"embed": {"callbacks": [{"task": "x"}], "errbacks": None, "chain": None, "chord": None}},
        {"embed": {"callbacks": None, "errbacks": None, "chain": [{"task": "x"}], "chord": None}},
    ],
)
def test_a_message_asks_for_nothing_but_a_look(celery: Celery, headers: Any) -> None:
    """A time would hold a slot of the worker, and callbacks would have it publish what the sender likes."""
    with pytest.raises(InvalidTaskError):
        request(celery, "deuz.step", ["default", "run-1", 3], {}, **headers)


def test_limits_of_the_sender_are_ignored(celery: Celery) -> None:
    """Otherwise whoever can write to the broker could have children killed in the middle of a step."""
    made = request(celery, "deuz.step", ["default", "run-1", 3], {}, timelimit=[0.001, 0.001])
    assert made.time_limits == (None, None)


def test_a_cold_shutdown_ends_model_calls_where_it_cannot_end_threads(celery: Celery) -> None:
    """The pool says by its semaphore whether it has processes to end."""
    made = request(celery, "deuz.step", ["default", "run-1", 3], {})
    made.cancel(SimpleNamespace(uses_semaphore=False))
    assert host_of(celery).flag.urgency is Urgency.HURRY
