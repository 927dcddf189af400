"""Live parts within one process: readers and executors may be on different loops and threads of it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from deuz_workers.core.live import LivePart
from deuz_workers.ports.live import LiveSink, LiveSubscription, OnParts

Name = tuple[str, str]
"""Scope and run id."""


@dataclass(eq=False, slots=True)
class _Subscription:
    """One reader in this process; a `LiveSubscription`."""

    hub: LiveHub
    name: Name
    on_parts: OnParts
    loop: asyncio.AbstractEventLoop

    @property
    def is_connected(self) -> bool:
        return True

    async def close(self) -> None:
        self.hub.forget(self)


class LiveHub:
    """A `LiveSink` and a `LiveSource`. What nobody in this process reads costs a look into a dict."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[Name, tuple[_Subscription, ...]] = {}
        """Replaced, never changed, so that `put` reads it without the lock."""

    def wants(self, scope: str, run_id: str) -> bool:
        """Somebody in this process reads along."""
        return (scope, run_id) in self._readers

    def put(self, scope: str, run_id: str, *parts: LivePart) -> None:
        """Each reader gets them in the next turn of its loop, so none of them takes time of the step's."""
        for reader in self._readers.get((scope, run_id), ()):
            if not reader.loop.is_closed():
                reader.loop.call_soon_threadsafe(reader.on_parts, parts)

    async def subscribe(self, scope: str, run_id: str, on_parts: OnParts) -> LiveSubscription:
        made = _Subscription(self, (scope, run_id), on_parts, asyncio.get_running_loop())
        with self._lock:
            self._readers[made.name] = (*self._readers.get(made.name, ()), made)
        return made

    def forget(self, gone: _Subscription) -> None:
        """It gets nothing that is put from now on."""
        with self._lock:
            left = tuple(reader for reader in self._readers.get(gone.name, ()) if reader is not gone)
            if left:
                self._readers[gone.name] = left
            else:
                self._readers.pop(gone.name, None)


class Both:
    """A `LiveSink` that passes everything on to two: readers of this process, and those of others."""

    def __init__(self, first: LiveSink, second: LiveSink) -> None:
        self._sinks = (first, second)

    def wants(self, scope: str, run_id: str) -> bool:
        return any(sink.wants(scope, run_id) for sink in self._sinks)

    def put(self, scope: str, run_id: str, *parts: LivePart) -> None:
        for sink in self._sinks:
            if sink.wants(scope, run_id):
                sink.put(scope, run_id, *parts)
