"""What Celery workers tell whoever watches them."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from celery import Celery


@contextmanager
def captured(celery: Celery) -> Generator[list[dict[str, Any]]]:
    """Every event of the workers, as Flower gets it."""
    events: list[dict[str, Any]] = []
    stopping = threading.Event()
    ready = threading.Event()

    def capture() -> None:
        with celery.connection_for_read() as connection:
            receiver = celery.events.Receiver(connection, handlers={"*": events.append})
            with receiver.consumer_context() as (consuming, _, _):
                ready.set()
                while not stopping.is_set():
                    try:
                        consuming.drain_events(timeout=0.1)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=capture)
    thread.start()
    assert ready.wait(10)
    try:
        yield events
    finally:
        stopping.set()
        thread.join()
