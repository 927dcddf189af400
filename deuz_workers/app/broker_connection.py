"""Connections to the broker whose Redis channels keep their client.

kombu 5.7 makes a `redis.Redis` for every message that it publishes: about 50 us, four times a step with the events of a worker.
A client holds nothing but the channel's connection pool and may be shared between threads, so one per pool is enough.
"""

from __future__ import annotations

from typing import Any

import kombu
from kombu.transport import redis


class SteadyChannel(redis.Channel):
    """Publishes through one client for as long as its connection pool lives."""

    _steady: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)  # pyright: ignore[reportAttributeAccessIssue]
        client = self._steady
        if client is None or client.connection_pool is not self.pool:
            client = self._steady = super()._create_client()  # pyright: ignore[reportAttributeAccessIssue]
        return client


class SteadyTransport(redis.Transport):
    Channel = SteadyChannel


class SteadyConnection(kombu.Connection):
    """A connection to any broker; to a plain Redis, with channels that keep their client."""

    def get_transport_cls(self) -> Any:
        """Class of the transport that the URL names."""
        found = super().get_transport_cls()
        return SteadyTransport if found is redis.Transport else found
