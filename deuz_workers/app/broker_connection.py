"""Connections to the broker whose Redis channels keep their client, and push doorbells only where a window has room.

kombu 5.7 makes a `redis.Redis` for every message that it publishes: about 50 us, four times a step with the events of a worker.
A client holds nothing but the channel's connection pool and may be shared between threads, so one per pool is enough.

Event: ``bell_dropped`` (`queue`): a doorbell that a worker gave back found the window full; the sweep finds its run.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import kombu
from kombu.transport import redis
from kombu.utils.json import dumps

from deuz_workers.app.bell import STEP_TASK
from deuz_workers.core.window import Look

SCRIPT = Path(__file__).with_name("bell.lua").read_text(encoding="utf-8")
WINDOW_OPTION = "deuz_window"
"""Transport option: the least window, for doorbells that a worker's channel puts back into its queue."""

log = logging.getLogger(__name__)

Message = tuple[int, str]
"""Number of its list (from 1, as Lua counts) and text."""


class SteadyChannel(redis.Channel):
    """Publishes through one client for as long as its connection pool lives; doorbells one script at a time."""

    from_transport_options = (*redis.Channel.from_transport_options, WINDOW_OPTION)
    deuz_window = 0

    _steady: Any = None
    _script: Any = None
    _gathered: list[Message] | None = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)  # pyright: ignore[reportAttributeAccessIssue]
        client = self._steady
        if client is None or client.connection_pool is not self.pool:
            client = self._steady = super()._create_client()  # pyright: ignore[reportAttributeAccessIssue]
        return client

    @contextmanager
    def gathering(self) -> Generator[list[Message]]:
        """What is published meanwhile is in the list, ready for `push`, instead of at the broker."""
        self._gathered = gathered = []
        try:
            yield gathered
        finally:
            self._gathered = None

    def push(self, queue: str, messages: Sequence[Message], least: int, *, spare: bool) -> tuple[int, Look]:
        """How many of the messages the queue took, the first ones, and what is in it now. One act."""
        flat = [value for message in messages for value in message]
        taken, waiting, size = self._call(queue, "push", least, int(spare), *flat)
        return taken, Look(waiting, size)

    def look(self, queue: str, least: int, size: int | None, apart_ms: int) -> Look:
        """What is in the queue; its window has `size` now, if that is given and not below what waits."""
        may_feed, waiting, now = self._call(queue, "look", least, "" if size is None else size, apart_ms)
        return Look(waiting, now, bool(may_feed))

    def discard(self, queue: str) -> None:
        """The queue is gone, and what is kept beside it. kombu deletes only queues that this channel has bound itself."""
        with self.conn_or_acquire() as client:
            client.delete(*self._lists(queue), *_beside(queue))

    def _call(self, queue: str, *args: str | int) -> list[int]:
        with self.conn_or_acquire() as client:
            if self._script is None:
                self._script = client.register_script(SCRIPT)
            return cast("list[int]", self._script(keys=[*self._lists(queue), *_beside(queue)], args=args, client=client))

    def _lists(self, queue: str) -> list[str]:
        """Keys of the queue, by priority."""
        of_priority: Any = self._q_for_pri  # pyright: ignore[reportAttributeAccessIssue]
        return [of_priority(queue, priority) for priority in self.priority_steps]

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        is_bell = (message.get("headers") or {}).get("task") == STEP_TASK
        if not is_bell or (self._gathered is None and not self.deuz_window):
            super()._put(queue, message, **kwargs)
            return
        priority = self._get_message_priority(message, reverse=False)
        text: Message = (self.priority_steps.index(self.priority(priority)) + 1, dumps(message))
        if self._gathered is not None:
            self._gathered.append(text)
        elif self.push(queue, [text], self.deuz_window, spare=True)[0] == 0:
            log.warning("bell_dropped queue=%s", queue)


def window_key(queue: str) -> str:
    """Of a hash beside the queue: its `size` while it is above the least one, and the `most` doorbells that it ever held."""
    return f"deuz:window:{queue}"


def _beside(queue: str) -> tuple[str, str]:
    """Keys of the window and of who feeds it."""
    return window_key(queue), f"deuz:feeder:{queue}"


class SteadyTransport(redis.Transport):
    Channel = SteadyChannel


class SteadyConnection(kombu.Connection):
    """A connection to any broker; to a plain Redis, with channels that keep their client."""

    def get_transport_cls(self) -> Any:
        """Class of the transport that the URL names."""
        found = super().get_transport_cls()
        return SteadyTransport if found is redis.Transport else found
