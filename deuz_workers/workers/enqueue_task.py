"""The Celery task `deuz.enqueue`: a run from a process that has Celery and none of our code.

::

    celery.send_task("deuz.enqueue", kwargs={"agent": "reviewer", "prompt": "..."}, task_id=key, queue="deuz.default")

The task id is the idempotency key: sending the message again under it starts nothing twice. Until the row exists the message
is the only copy of the request, and no setting of Redis makes a message lossless, so a sender that must not lose it keeps it
until the row is there (or writes the row itself: `app.enqueue`). Whoever can write to the broker can send it, so it is believed
only when it is signed with a producer key (`core.signature`), and starts only what that key may start. The broker shows the
content to whoever can read it.

Event: ``enqueue_refused`` (`id`, `error`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.core.signature import FIELD
from deuz_workers.errors import DeuzError, EnqueueRefusedError, StoreUnavailableError
from deuz_workers.workers.host import Host
from deuz_workers.workers.message_door import DEFAULT_SCOPE, believe, shown_id, until_stored
from deuz_workers.workers.step_task import QUIET_REQUEST

ENQUEUE_TASK = "deuz.enqueue"
KEYS = frozenset(
    (
        "agent",
        "prompt",
        "messages",
        "scope",
        "run_id",
        "queue",
        "priority",
        "tags",
        "start_at",
        "deadline",
        "start_before",
        "concurrency_key",
    )
)
MOMENTS = ("start_at", "deadline", "start_before")
"""Given as ISO 8601 with a zone."""

log = logging.getLogger(__name__)


def add_enqueue_task(celery: Celery, host: Host) -> None:
    """`celery` accepts `deuz.enqueue` if the application's settings say so."""

    @celery.task(name=ENQUEUE_TASK, bind=True, shared=False, Request=QUIET_REQUEST, throws=(EnqueueRefusedError,))
    def enqueue(task: Any, *args: Any, **order: Any) -> str:
        """Write the row of one run; returns its id. Raises `EnqueueRefusedError`, with the code of what was wrong."""
        key, trace = str(task.request.id), task.request.get("traceparent")  # of this thread, and not of the loop's
        code, reason = "configuration", ""
        try:
            return host.here.call(lambda: _enqueue(host, key, args, order, trace))
        except StoreUnavailableError as error:
            raise Reject(error.code, requeue=True) from None
        except EnqueueRefusedError as error:
            code, reason = error.code, f": {error.message}"  # our own words, with nothing of the message in them
        except DeuzError as error:
            code = error.code
        except Exception as error:  # noqa: BLE001 - its values are the message's content, so only its kind is told
            code = type(error).__name__
        host.dropped["enqueue_refused"] += 1
        log.warning("enqueue_refused id=%s error=%s%s", shown_id(key), code, reason)
        raise EnqueueRefusedError(f"the message {shown_id(key)!r} was refused: {code}{reason}", reason=code)


async def _enqueue(host: Host, key: str, args: tuple[Any, ...], order: Mapping[str, Any], trace: str | None) -> str:
    """`trace`: a header that those who trace Celery put there.

    Raises what `AsyncClient.enqueue` raises; `StoreUnavailableError` only when the worker drains."""
    request = check_order(host.app, key, args, order)

    async def write() -> str:
        with host.app.telemetry.continuing(trace):
            return (await host.app.aio.enqueue(idempotency_key=key, **request)).run_id

    return await until_stored(host, "enqueue", key, write)


def check_order(app: Deuz, key: str, args: tuple[Any, ...], order: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `AsyncClient.enqueue`. Raises `EnqueueRefusedError` for what the door does not take.

    Who sent it is found out before anything else of it is looked at.
    """
    if app.settings.enqueue == "shut":
        raise EnqueueRefusedError("the door for messages is shut by the setting enqueue (DEUZ_ENQUEUE)", code="door_shut")
    if app.settings.enqueue == "signed":
        check_signature(app.settings, app.clock.unix_ms() // 1000, key, order)
    order = {name: value for name, value in order.items() if name != FIELD}
    if args or not order.keys() <= KEYS:
        raise EnqueueRefusedError(
            f"only these arguments are taken, by name: {', '.join(sorted(KEYS))}", code="unknown_argument"
        )
    if not isinstance(order.get("agent"), str) or app.registry.agent(order["agent"]) is None:
        raise EnqueueRefusedError("no agent of that name is registered here", code="unknown_agent")
    moments = {name: _moment(order[name]) for name in MOMENTS if order.get(name) is not None}
    return {**order, **moments}


def check_signature(settings: Settings, now_s: int, key: str, order: Mapping[str, Any]) -> None:
    """Raises `EnqueueRefusedError` unless a producer signed this order under this key, not long ago, and may start it."""
    producer = believe(settings, now_s, key, order, ENQUEUE_TASK)
    if not producer.allows(order.get("scope", DEFAULT_SCOPE), order.get("agent")):
        raise EnqueueRefusedError(
            "this producer key may not start that agent in that scope (DEUZ_PRODUCER_KEYS: scopes, agents)", code="not_allowed"
        )


def _moment(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise EnqueueRefusedError("a moment is ISO 8601 text with a zone", code="moment") from None
