"""A worker that is alive and consumes nothing: it repairs itself, or exits.

A connection can die without a word (a proxy, a firewall, a failover that nobody told), and a consumer can stop without an
error. So a worker with free slots that heard nothing for a while sends itself a message, over a connection of its own. If it
does not hear that either, it closes its consumer's connection and makes another; if that does not help, it drains and leaves
with `EXIT_CODE`, for a supervisor to start another. A broker that takes no message either is away, and is waited for.

Events: ``worker_deaf`` (`silent_ms`, `then`: ``reconnect`` or ``leave``), ``worker_hears`` (after a repair), ``echo_unsent``.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from celery import bootsteps
from celery.worker import state
from kombu import Connection
from kombu.message import Message

from deuz_workers.app.bell import broker_queue
from deuz_workers.workers.drain import Urgency
from deuz_workers.workers.host import Host, host_of
from deuz_workers.workers.stuck import EXIT_CODE

ECHO_TASK: Final = "deuz.echo"
LOOK_S = 1.0
PUBLISH_TIMEOUT_S = 2
"""The consuming thread waits for it."""

log = logging.getLogger(__name__)


class Hearing(bootsteps.StartStopStep):
    """Of one consumer. Everything happens on the thread that consumes, between two messages."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._host: Host = host_of(consumer.app)
        self._clock = self._host.app.clock
        self._silence_ms = self._host.app.settings.silence_ms
        self._timer: Any = None
        self._heard_ms = 0
        self._echo: str | None = None
        """The message that is out."""
        self._asked_ms = 0
        self._is_repaired = False
        """It was deaf, has another connection, and heard nothing since."""
        self._connection: Connection | None = None

    def start(self, parent: Any) -> None:
        if parent.hub is None:
            return  # a transport whose timers run beside the consumer; its thread is watched all the same
        self._heard_ms, self._echo = self._clock.monotonic_ms(), None
        parent.strategies[ECHO_TASK] = self._heard_echo
        parent.on_task_message.add(self._heard)
        self._timer = parent.timer.call_repeatedly(LOOK_S, self._look, (parent,))

    def stop(self, parent: Any) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._disconnect()

    def _heard(self, *_: Any) -> None:
        self._heard_ms = self._clock.monotonic_ms()
        self._echo = None
        if self._is_repaired:
            log.warning("worker_hears")
            self._is_repaired = False

    def _heard_echo(self, message: Message, payload: Any, ack: Any, reject: Any, callbacks: Any, **_: Any) -> None:
        message.ack_log_error(log, (Exception,))
        if self._echo is not None and (message.headers or {}).get("id") == self._echo:
            self._heard()

    def _look(self, consumer: Any) -> None:
        """Raises `ConnectionResetError` to make Celery close the connection and connect again."""
        now_ms = self._clock.monotonic_ms()
        self._host.pulse.beat(now_ms)
        if len(state.reserved_requests) >= consumer.initial_prefetch_count:
            self._heard_ms = self._asked_ms = now_ms  # no slot is free: it need not hear anything
        if self._echo is None:
            if now_ms - self._heard_ms >= self._silence_ms and now_ms - self._asked_ms >= self._silence_ms:
                self._asked_ms = now_ms
                self._ask(consumer)
            return
        if now_ms - self._asked_ms < self._silence_ms:
            return
        self._echo = None
        silent_ms = now_ms - self._heard_ms
        if not self._is_repaired:
            self._is_repaired = True
            log.error("worker_deaf silent_ms=%d then=reconnect", silent_ms)
            raise ConnectionResetError("the worker heard nothing of what it sent itself")
        log.error("worker_deaf silent_ms=%d then=leave", silent_ms)
        self._host.pulse.leave()
        self._host.flag.ask(Urgency.DRAIN)
        state.should_stop = EXIT_CODE

    def _ask(self, consumer: Any) -> None:
        """Send the worker a message that only it takes. Nothing is out afterwards if the broker did not take it."""
        echo = self._host.app.ids.token()
        headers = {"lang": "py", "task": ECHO_TASK, "id": echo}
        try:
            connection = self._connection or self._connect(consumer)
            connection.default_channel  # noqa: B018 - connects
            connection.Producer().publish(
                [[], {}, {}], exchange="", routing_key=broker_queue(self._host.echo_queue), headers=headers, retry=False
            )
        except Exception as error:  # noqa: BLE001 - every transport has errors of its own; a broker that is away is waited for
            log.info("echo_unsent error=%s", type(error).__name__)
            self._disconnect()
        else:
            self._echo = echo

    def _connect(self, consumer: Any) -> Connection:
        options = {
            "socket_connect_timeout": PUBLISH_TIMEOUT_S,
            "socket_timeout": PUBLISH_TIMEOUT_S,
            "ack_emulation": False,
            "max_retries": 1,
            "interval_start": 0,
        }
        url = self._host.app.settings.broker or ""
        self._connection = Connection(url, connect_timeout=PUBLISH_TIMEOUT_S, transport_options=options)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
