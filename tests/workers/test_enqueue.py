"""`deuz.enqueue`: a door for processes that have Celery and none of our code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pydantic import SecretStr

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.producer_key import ProducerKey
from deuz_workers.app.settings import Settings
from deuz_workers.core import signature
from deuz_workers.core.signature import sign_order
from deuz_workers.errors import ConfigurationError, EnqueueRefusedError
from deuz_workers.ports.store import RunQuery
from deuz_workers.providers.mock import MockModel
from deuz_workers.workers.enqueue_task import check_order, check_signature
from deuz_workers.workers.message_door import shown_id
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
def test_without_a_producer_key_the_door_is_shut(pool: Pool, stranger: Celery) -> None:
    """The message is dropped with a code, no row is written, and the worker goes on."""
    worker = pool.start()
    stranger.send_task("deuz.enqueue", kwargs={"agent": "worker", "prompt": "2 turns"}, task_id="order-18", queue=QUEUE)
    worker.wait_for("enqueue_refused id=order-18 error=door_shut")
    worker.wait_for("EnqueueRefusedError")
    assert runs(pool) == []
    assert pool.app.enqueue("worker", "1 turn").result(30).status == "completed"


SECRET = "a secret of thirty-two characters"
KEYS = [{"id": "shop", "secret": SECRET, "scopes": ["default"], "agents": ["worker"]}]


@pytest.mark.processes
def test_a_signed_message_starts_a_run_and_an_altered_one_does_not(pool: Pool, stranger: Celery) -> None:
    """Sent again it is the same run; with another prompt, or under another task id, it is refused before a row is written."""
    worker = pool.start(producer_keys=json.dumps(KEYS))
    order = {"agent": "worker", "prompt": "1 turn", "tags": {"from": "shop"}}
    signed = sign_order(order, task_id="order-19", key_id="shop", secret=SECRET, issued_at=int(time.time()))
    for _ in range(2):
        stranger.send_task("deuz.enqueue", kwargs=signed, task_id="order-19", queue=QUEUE)
    stranger.send_task("deuz.enqueue", kwargs={**signed, "prompt": "9 turns"}, task_id="order-19", queue=QUEUE)
    worker.wait_for("enqueue_refused id=order-19 error=signature")
    stranger.send_task("deuz.enqueue", kwargs=signed, task_id="order-20", queue=QUEUE)
    worker.wait_for("enqueue_refused id=order-20 error=signature")
    stranger.send_task("deuz.enqueue", kwargs=order, task_id="order-21", queue=QUEUE)
    worker.wait_for("enqueue_refused id=order-21 error=unsigned")
    (run_id,) = runs(pool)
    assert pool.app.handle(run_id).result(30).status == "completed"


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
        check_order(OPEN, "id", (), order)
    assert refused.value.code == code
    assert "nobody" not in refused.value.message
    assert "tomorrow" not in refused.value.message


def test_an_id_that_its_sender_chose_is_one_word_of_a_log() -> None:
    """Whatever it holds, it begins no second line and says no second thing; plain ones are shown as they are."""
    for plain in ("order-18", "0b7e6f4e-3c0a-4c0e-9d2f-1f5a1b7c2d3e", "shop:2026/11@a.b"):
        assert shown_id(plain) == plain
    for odd in ("a\nworker_open pid=1", "a b", "", "x" * 500, "\x1b[2J", "\ud800", "id=1 error=none"):
        assert re.fullmatch("sha256:[0-9a-f]{16}", shown_id(odd))
    assert shown_id("a b") != shown_id("a c")


def test_arguments_have_names() -> None:
    """A positional argument is refused."""
    with pytest.raises(EnqueueRefusedError):
        check_order(OPEN, "id", ("worker",), {"agent": "worker", "prompt": "x"})


NOW = 1_800_000_000
SIGNED = Settings(database_url="sqlite:///x.db", producer_keys=tuple(ProducerKey(**key) for key in KEYS))  # type: ignore[arg-type]
ORDER = {"agent": "worker", "prompt": "x"}


def refusal(order: dict[str, Any], settings: Settings = SIGNED, **given: Any) -> str | None:
    """Code of the refusal of `order`, signed as `given` says and sent under the task id `key`; None: it is believed."""
    how: dict[str, Any] = {"task_id": "key", "key_id": "shop", "secret": SECRET, "issued_at": NOW, **given}
    try:
        check_signature(settings, NOW, "key", sign_order(order, **how))
    except EnqueueRefusedError as refused:
        return refused.code
    return None


@pytest.mark.parametrize(
    ("order", "given", "code"),
    [
        (ORDER, {}, None),
        ({**ORDER, "scope": "default", "tags": {"ä": "\ud800 1.0"}, "priority": 3}, {}, None),
        (ORDER, {"issued_at": NOW - 86_400}, None),
        (ORDER, {"issued_at": NOW - 86_401}, "signature_age"),
        (ORDER, {"issued_at": NOW + 300}, None),
        (ORDER, {"issued_at": NOW + 301}, "signature_age"),
        (ORDER, {"task_id": "other"}, "signature"),
        (ORDER, {"key_id": "shop2"}, "signature"),
        (ORDER, {"secret": SECRET + "!"}, "signature"),
        ({**ORDER, "scope": "acme"}, {}, "not_allowed"),
        ({**ORDER, "scope": None}, {}, "not_allowed"),
        ({**ORDER, "agent": "other"}, {}, "not_allowed"),
        ({**ORDER, "agent": ["worker"]}, {}, "not_allowed"),
    ],
)
def test_who_is_believed(order: dict[str, Any], given: dict[str, Any], code: str | None) -> None:
    """A signature fits one order, one task id, one key and a time; the key bounds what it may start."""
    assert refusal(order, **given) == code


@pytest.mark.parametrize(
    "value", [None, 7, "", "v1:shop:1", "v2:shop:1:00", "v1:shop:x:00", "v1:shop:-1:00", "v1:a:1:2:3", ["v1"]]
)
def test_what_is_no_signature(value: object) -> None:
    """Anything but what `sign_order` writes is an unsigned message."""
    with pytest.raises(EnqueueRefusedError) as refused:
        check_signature(SIGNED, NOW, "key", {**ORDER, "signature": value})
    assert refused.value.code == "unsigned"


def test_a_signature_with_other_letters_is_refused() -> None:
    """Letters outside ASCII and orders that are no JSON are wrong signatures, not crashes."""
    forged = {**ORDER, "signature": f"v1:shop:{NOW}:ä"}
    with pytest.raises(EnqueueRefusedError) as refused:
        check_signature(SIGNED, NOW, "key", {**forged, "tags": {1, 2}})
    assert refused.value.code == "signature"
    assert SECRET not in str(refused.value)


def test_two_keys_are_valid_while_one_replaces_the_other() -> None:
    """Each is found by its id."""
    keys = (*SIGNED.producer_keys, ProducerKey(id="shop-2", secret=SecretStr("b" * 32), scopes=("*",), agents=("*",)))
    both = SIGNED.model_copy(update={"producer_keys": keys})
    assert refusal(ORDER, both) is None
    assert refusal({"agent": "any", "scope": "any"}, both, key_id="shop-2", secret="b" * 32) is None


def test_a_shut_door_believes_no_signature_either() -> None:
    """The setting comes before the keys."""
    app = Deuz([Agent("worker", model=MockModel(["done"]))], settings=SIGNED.model_copy(update={"enqueue": "shut"}))
    signed = sign_order(ORDER, task_id="key", key_id="shop", secret=SECRET, issued_at=int(time.time()))
    with pytest.raises(EnqueueRefusedError) as refused:
        check_order(app, "key", (), signed)
    assert refused.value.code == "door_shut"


@pytest.mark.parametrize(
    "keys",
    [
        [{"id": "shop", "secret": "short", "agents": ["worker"]}],
        [{"id": "a:b", "secret": SECRET, "agents": ["worker"]}],
        [{"id": "shop", "secret": SECRET, "agents": []}],
        [{"id": "shop", "secret": SECRET}],
        [*KEYS, *KEYS],
    ],
)
def test_keys_that_are_no_keys(keys: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused when settings are read, by name, and without the secret."""
    monkeypatch.setenv("DEUZ_PRODUCER_KEYS", json.dumps(keys))
    with pytest.raises(ConfigurationError) as refused:
        Settings(database_url="sqlite:///x.db")
    assert "producer_keys" in refused.value.message
    assert SECRET not in refused.value.message


def test_only_plain_json_is_signed() -> None:
    """Said where it is signed, since nobody hears of a refusal far away."""
    with pytest.raises(TypeError):
        sign_order({"start_at": datetime.now(UTC)}, task_id="key", key_id="shop", secret=SECRET, issued_at=NOW)
    with pytest.raises(ValueError, match="JSON"):
        sign_order({"tags": {"a": float("nan")}}, task_id="key", key_id="shop", secret=SECRET, issued_at=NOW)
    with pytest.raises(ValueError, match="colon"):
        sign_order(ORDER, task_id="key", key_id="a:b", secret=SECRET, issued_at=NOW)


def test_the_signature_file_stands_alone() -> None:
    """Producers may copy it: it runs without this package."""
    source = Path(signature.__file__).read_text()
    assert "deuz_workers" not in source
    ran = subprocess.run(
        [sys.executable, "-I", "-S", signature.__file__],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(signature.__file__).parent,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
