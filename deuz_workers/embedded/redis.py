"""A real Valkey (or Redis) of our own: broker, leases and live deltas of the demo and the tests."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from deuz_workers.embedded.binaries import REDIS_SOURCES, Program, Source, find_program, reject_redis
from deuz_workers.embedded.kept import KeptProcess, Stop
from deuz_workers.embedded.server import Availability, EmbeddedServer
from deuz_workers.embedded.urls import broker_url
from deuz_workers.errors import ServerUnavailableError

ANSWER_S = 1.0
"""How long one PING may take before the next one is sent."""


class EmbeddedRedis(EmbeddedServer):
    """Valkey or Redis on a unix socket, in memory only: after :meth:`restart` and :meth:`kill` it is empty.

    It refuses writes when memory runs out and evicts nothing: an evicted doorbell would be a lost one.
    """

    name: ClassVar[str] = "Valkey"
    socket_name: ClassVar[str] = "redis.sock"

    def __init__(self, *, sources: Sequence[Source] = REDIS_SOURCES) -> None:
        super().__init__()
        self._sources = sources
        self._program: Program | None = None

    @classmethod
    def available(cls, sources: Sequence[Source] = REDIS_SOURCES) -> Availability:
        """Whether there is a Valkey or Redis program here; starts nothing."""
        try:
            program = find_program(sources, reject_redis, cls.name)
        except ServerUnavailableError as error:
            return Availability(False, error.message)
        return Availability(True, f"{program.path} ({program.source})")

    @property
    def url(self) -> str:
        """URL for redis-py, database 0."""
        return f"unix://{self.socket}?db=0"

    @property
    def broker_url(self) -> str:
        """The same database as Celery spells it."""
        return broker_url(self.url)

    def _prepare(self, process: KeptProcess) -> None:
        program = find_program(self._sources, reject_redis, self.name)
        self._program = program.reachable_by(process.account, process.folder / "package")

    def _command(self, process: KeptProcess) -> list[str | Path]:
        assert self._program is not None, "_prepare runs first"
        settings = {
            "port": "0",
            "unixsocket": str(process.folder / self.socket_name),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "dir": str(process.folder),
        }
        return [self._program.path, *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _stop_steps(self) -> Sequence[Stop]:
        return (Stop(signal.SIGTERM, 5.0),)  # nothing is saved, so there is nothing to wait for

    def _is_ready(self, process: KeptProcess) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(ANSWER_S)
            try:
                client.connect(str(process.folder / self.socket_name))
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
            except OSError:
                return False
