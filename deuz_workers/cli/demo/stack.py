"""What the swarm runs on: database, Redis, worker processes, Flower. Everything is gone when it is closed."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.settings import Settings
from deuz_workers.cli.demo.child import Child
from deuz_workers.cli.demo.flower import Flower
from deuz_workers.embedded.kept import KeptProcess
from deuz_workers.embedded.postgres import EmbeddedPostgres
from deuz_workers.embedded.redis import EmbeddedRedis
from deuz_workers.embedded.urls import DATABASE_URL, REDIS_URL, postgres_url, redis_url
from deuz_workers.store import migrate

LEASE_TTL_MS = 2_000
"""How long the pool waits for a dead worker, so that one can watch it; thirty seconds by default."""
SWEEP_MS = 500
STEPS_PER_WORKER = 2
STOP_S = 4.0
"""A worker without work drains at once; one with work gives its lease back within this."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What kind of stack is wanted."""

    workers: int
    sqlite: bool
    flower: bool


@dataclass
class Stack:
    """A context manager. `settings` is what clients use, `workers` the processes by their place."""

    wish: Wish
    variables: Mapping[str, str]
    """For the application in the workers."""
    queue: str = field(default_factory=lambda: f"demo-{secrets.token_hex(4)}")
    """Of this demo alone: on servers that others use too, neither takes the other's runs."""
    workers: list[Child] = field(default_factory=list[Child])
    flower: Flower | None = None
    reason: str = ""
    """Why the database is SQLite, where it was not asked for."""
    settings: Settings = field(init=False)
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        """The workers take steps. Raises ServerUnavailableError, StoreUnavailableError; nothing is left then."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """No process and no folder is left. A further signal does not interrupt it."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            self._resources.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def worker_of(self, pid: int) -> Child | None:
        """The worker with this process id."""
        return next((worker for worker in self.workers if worker.pid == pid), None)

    @property
    def is_sqlite(self) -> bool:
        return self.settings.is_embedded

    def _open(self) -> None:
        keeper = KeptProcess(None, socket_name="")
        self._resources.callback(keeper.close)
        self.settings = self._servers(keeper.folder)
        LOOP.run(migrate(self.settings.database_url))
        environment = self._environment()
        self._resources.callback(self._stop)
        for place in range(1, self.wish.workers + 1):
            name = f"worker{place}@{self.queue}"
            self.workers.append(Child("worker", name, folder=keeper.folder, environment=environment))
        if self.wish.flower and not self.is_sqlite:
            self.flower = Flower.start(keeper.folder, environment)
        for worker in self.workers:
            worker.wait_for(lambda worker=worker: worker.said("worker_open"))
        if self.flower is not None:
            self.flower.wait()

    def _servers(self, folder: Path) -> Settings:
        enter = self._resources.enter_context
        given = os.environ.get(DATABASE_URL, "")
        common = {
            "lease_ttl_ms": LEASE_TTL_MS,
            "sweep_interval_ms": SWEEP_MS,
            "queues": (self.queue,),
            "pool": "threads",
            "concurrency": STEPS_PER_WORKER,
            "drain_grace_ms": int(STOP_S * 500),
        }
        self.reason = "" if self.wish.sqlite else _missing()
        if self.wish.sqlite or self.reason or given.startswith("sqlite:"):
            url = given if given.startswith("sqlite:") else f"sqlite:///{folder}/demo.db"
            return Settings(database_url=url, redis_url=None, leases_url=None, broker_url=None, **common)
        own_redis = {} if os.environ.get(REDIS_URL) else {"broker_url": None, "leases_url": None}
        return Settings(database_url=enter(postgres_url(durable=False)), redis_url=enter(redis_url()), **own_redis, **common)

    def _environment(self) -> dict[str, str]:
        """Of the children: this process's, with the same settings spelled out."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLOWER_")}
        for name in self.settings.model_fields_set:
            value = getattr(self.settings, name)
            variable = f"DEUZ_{name.upper()}"
            if value is None:
                inherited.pop(variable, None)
            elif name != "secret":  # stays as it is in the environment
                inherited[variable] = ",".join(value) if isinstance(value, tuple) else str(value)
        return {**inherited, **self.variables, "DEUZ_CONFIG": os.devnull}

    def _stop(self) -> None:
        children = [*self.workers, *([self.flower.child] if self.flower else [])]
        for child in children:
            child.signal(signal.SIGTERM)
        until = time.monotonic() + STOP_S
        for child in children:
            child.wait_or_kill(until)


def _missing() -> str:
    """Why servers that the environment does not name cannot be started here; empty if they can."""
    for variable, server in ((DATABASE_URL, EmbeddedPostgres), (REDIS_URL, EmbeddedRedis)):
        if not os.environ.get(variable) and not (found := server.available()):
            return found.reason
    return ""
