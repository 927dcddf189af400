"""Connections to Postgres that give up on a silent server.

libpq waits for an answer without end, and the server's own timeouts end only what the server is alive to end.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.waiting import wait_selector

T = TypeVar("T")


class Silence(psycopg.OperationalError):
    """The server said nothing for as long as the connection is patient."""


class Impatient(psycopg.Connection[Any]):
    """A statement without an answer for `patience_s` is cancelled, and the connection closed. Raises `Silence`."""

    patience_s = 2.0

    def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        try:
            # not psycopg's own choice, which in its versions before 3.3 is silent about silence
            return wait_selector(_until_silence(gen), self.pgconn.socket, self.patience_s)
        except Silence:
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=self.patience_s)
            self.pgconn.finish()
            raise


class AsyncImpatient(psycopg.AsyncConnection[Any]):
    """The same for an event loop."""

    patience_s = 2.0

    async def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        try:
            return await super().wait(_until_silence(gen), interval=self.patience_s)
        except Silence:
            with suppress(psycopg.Error):
                await self.cancel_safe(timeout=self.patience_s)
            self.pgconn.finish()
            raise


def _until_silence(waits: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """`waits`, which psycopg resumes with 0 when nothing has come for the interval that it was given."""
    try:
        wanted = next(waits)
        while True:
            ready = yield wanted
            if ready == 0:  # None: psycopg begins to wait anew, for the end of a statement that it cancelled
                waits.close()
                raise Silence("no answer")
            wanted = waits.send(ready)
    except StopIteration as end:
        return end.value
