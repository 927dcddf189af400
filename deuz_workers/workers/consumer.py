"""A consumer that quotes no message and takes no orders, and that costs a step less than Celery's own.

Celery's own logs the whole body of a message that it does not understand, answers remote control commands that stop or
change the pool, and takes part in gossip between workers. Whoever can write to the broker could use all three.

And it publishes the three events of a task one by one, which is half of the work that a prefork parent has with a step.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

from celery.worker.consumer import Consumer, Control
from kombu.common import ignore_errors
from kombu.message import Message

from deuz_workers.workers.host import host_of

ALLOWED_COMMANDS = frozenset(("ping", "stats", "active", "reserved", "scheduled", "registered", "active_queues", "clock"))
"""They only look. Left out on purpose: `conf` and `report` (URLs), `memdump` and the like (objects), everything that acts."""

GATHER_S = 0.1
"""For so long events of tasks are gathered before they are published together; people who watch do not notice."""

log = logging.getLogger(__name__)


class InspectOnlyControl(Control):
    """Remote control with an allow-list; any other command is answered with an error and does nothing."""

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        node: Any = cast(Any, self).box.node
        node.handlers = {name: handler if name in ALLOWED_COMMANDS else _refuse for name, handler in node.handlers.items()}


def _refuse(state: Any, **arguments: Any) -> dict[str, str]:
    return {"error": f"refused: workers answer {', '.join(sorted(ALLOWED_COMMANDS))} and take no orders by remote control"}


def prefer_first_idle(hub: Any) -> None:
    """Of the children of a prefork pool that wait for work, the first in a fixed order gets the next step, once the loop of
    `hub` begins; in the order of the poller they would take turns.

    A step that comes to the process that had the one before finds its caches warm, which saves a tenth of a turn; Celery passes
    over children that are busy. No other pool has the callback.
    """
    write_to: Any = hub.consolidate_callback
    if write_to is not None:

        def write_in_order(ready: Sequence[int]) -> None:
            write_to(sorted(ready))

        hub.consolidate_callback = write_in_order


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

    def update_strategies(self) -> None:
        """Celery's own tasks (`celery.map`, `celery.chain`, ...) would run others past `QuietRequest`, so they are unknown."""
        super().update_strategies()
        strategies: dict[str, Any] = cast(Any, self).strategies
        for name in [name for name in strategies if name.startswith("celery.")]:
            del strategies[name]

    def register_with_event_loop(self, hub: Any) -> None:
        """Called once per connection, right before its loop begins; Celery drops the timer with the connection."""
        super().register_with_event_loop(hub)
        prefer_first_idle(hub)
        hub.call_repeatedly(GATHER_S, self._flush)

    def shutdown(self) -> None:
        """What was gathered is published first."""
        ignore_errors(cast(Any, self), self._flush)
        super().shutdown()

    def on_send_event_buffered(self) -> Any:
        """The timer publishes it."""

    def _flush(self) -> None:
        dispatcher: Any = cast(Any, self).event_dispatcher
        if dispatcher:
            dispatcher.flush()

    def ensure_connected(self, conn: Any) -> Any:
        """While the broker is away, waiting for it is a sign of life."""
        host, ensure = host_of(self.app), conn.ensure_connection

        def ensure_beating(*args: Any, callback: Any = None, **kwargs: Any) -> Any:
            def each_second() -> None:
                host.pulse.beat(host.app.clock.monotonic_ms())
                if callback is not None:
                    callback()

            each_second()
            return ensure(*args, callback=each_second, **kwargs)

        conn.ensure_connection = ensure_beating
        return super().ensure_connected(conn)

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
