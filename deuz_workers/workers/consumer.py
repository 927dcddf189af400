"""A consumer that quotes no message and takes no orders.

Celery's own logs the whole body of a message that it does not understand, answers remote control commands that stop or
change the pool, and takes part in gossip between workers. Whoever can write to the broker could use all three.
"""

from __future__ import annotations

import logging
from typing import Any, cast

from celery.worker.consumer import Consumer, Control
from kombu.message import Message

from deuz_workers.workers.host import host_of

ALLOWED_COMMANDS = frozenset(("ping", "stats", "active", "reserved", "scheduled", "registered", "active_queues", "clock"))
"""They only look. Left out on purpose: `conf` and `report` (URLs), `memdump` and the like (objects), everything that acts."""

log = logging.getLogger(__name__)


class InspectOnlyControl(Control):
    """Remote control with an allow-list; any other command is unknown to it."""

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        node: Any = cast(Any, self).box.node
        node.handlers = {name: handler for name, handler in node.handlers.items() if name in ALLOWED_COMMANDS}


class QuietConsumer(Consumer):
    """Drops what it does not understand, counts it by reason in `Host.dropped`, and logs no content.

    Event: ``message_dropped`` (`reason`, `task`).
    """

    class Blueprint(Consumer.Blueprint):
        default_steps: Any = tuple(
            step if step != "celery.worker.consumer.control:Control" else f"{__name__}:InspectOnlyControl"
            for step in Consumer.Blueprint.default_steps
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Gossip and mingle tell workers about each other, and would tell them what others wrote; mingle costs a second.
        super().__init__(*args, **{**kwargs, "without_gossip": True, "without_mingle": True})

    def on_unknown_message(self, body: Any, message: Message) -> None:
        self._drop(message, "no_task")

    def on_unknown_task(self, body: Any, message: Message, exc: Exception) -> None:
        self._drop(message, "unknown_task")

    def on_invalid_task(self, body: Any, message: Message, exc: Exception) -> None:
        self._drop(message, "invalid")

    def on_decode_error(self, message: Message, exc: Exception) -> None:
        self._drop(message, "undecodable")

    def _drop(self, message: Message, reason: str) -> None:
        host_of(self.app).dropped[reason] += 1
        log.warning("message_dropped reason=%s task=%.80r", reason, (message.headers or {}).get("task"))
        message.ack_log_error(log, cast(Any, self).connection_errors)
