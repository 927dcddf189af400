"""Settings of the Celery application, each with its reason. Names are those of Celery 5.7 (`celery/app/defaults.py`)."""

from __future__ import annotations

import os
import socket
from typing import Any

from kombu import Exchange, Queue

from deuz_workers.app.bell import broker_queue
from deuz_workers.app.broker_connection import WINDOW_OPTION
from deuz_workers.app.settings import Settings


def celery_settings(settings: Settings) -> dict[str, Any]:
    """What `Celery.conf` is set to."""
    queues = [broker_queue(name) for name in settings.queues]
    return {
        "broker_url": settings.broker,
        "broker_transport_options": {
            # Two commands per message instead of eight, no visibility timeout and so no second copy of a long step, and no
            # AttributeError after a reconnect. What is lost with a whole worker is found by lease expiry and sweep.
            "ack_emulation": False,
            # A doorbell that a worker gives back needs room like any other.
            WINDOW_OPTION: settings.least_window,
            # A dead peer is noticed within a minute; a consumer waits for messages without any timeout.
            "socket_keepalive": True,
            "socket_keepalive_options": _keepalive(),
            "socket_connect_timeout": 5,
            # For an answer to what was sent, such as an event; a message is waited for by the poll, and not by a read.
            "socket_timeout": 10,
        },
        # A broker that is away is waited for, at the start and later: a supervisor would only restart into the same outage.
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # Lowered after a reconnect and raised again message by message. Leases keep a step single, and a consumer that is
        # stuck at the lower count is one that does not work.
        "worker_enable_prefetch_count_reduction": False,
        # With late acks a child's death gives the doorbell back at once; the message may come twice, the step is one.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        # One waiting doorbell per slot: more would wait here while other workers are idle.
        "worker_prefetch_multiplier": 1,
        # The row is the result (architecture D1).
        "task_ignore_result": True,
        "result_backend": None,
        # A lost broker connection is no reason to end a model call: its outcome goes to the store.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # Nothing but JSON is decoded, whoever wrote it.
        "accept_content": ["json"],
        "task_serializer": "json",
        "event_serializer": "json",
        "task_queues": list(map(direct_queue, queues)),
        "task_default_queue": queues[0],
        "task_default_exchange": "",
        "task_default_routing_key": queues[0],
        "worker_pool": settings.pool,
        "worker_concurrency": concurrency_of(settings),
        # Children share the drain flag and the imported application.
        "worker_pool_start_method": "fork",
        # Eight children that start on a busy machine need longer than the default of 4 s to say so.
        "worker_proc_alive_timeout": 60.0,
        # One step per task and no rate limits: the bucket of every task need not be asked.
        "worker_disable_rate_limits": True,
        "worker_send_task_events": settings.events,
        # The sender's event would show the arguments before a worker could hide them.
        "task_send_sent_event": False,
        "worker_enable_remote_control": settings.remote_control != "off",
        "worker_consumer": "deuz_workers.workers.consumer:QuietConsumer",
        # Logging is the operator's (config/logging.toml); prints of tools stay prints.
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def direct_queue(name: str) -> Queue:
    """Messages at the default exchange name their queue themselves: no binding that a flushed Redis would forget."""
    return Queue(name, Exchange("", type="direct"), routing_key=name)


def concurrency_of(settings: Settings) -> int:
    """Steps at a time. Where nobody chose, prefork gets a process per core: the default is meant for threads."""
    if settings.pool == "prefork" and "concurrency" not in settings.model_fields_set:
        return os.cpu_count() or 2
    return settings.concurrency


def _keepalive() -> dict[int, int]:
    """After 30 s of silence three questions 10 s apart, where the platform lets us say so."""
    wanted = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
    return {getattr(socket, name): value for name, value in wanted.items() if hasattr(socket, name)}
