"""What a Celery worker needs of ours in each of its processes: the application, the drain flag, the process's own state."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from deuz_workers.app.bell import MARK
from deuz_workers.app.connections import marks_of
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.servers import check_namespaces
from deuz_workers.core.marks import Marks
from deuz_workers.core.names import run_lease_key
from deuz_workers.workers.drain import DrainFlag
from deuz_workers.workers.process import WorkerProcess
from deuz_workers.workers.pulse import Pulse


class Host:
    """One per Celery application. Made before a fork, it gives every process a `WorkerProcess` of its own."""

    def __init__(self, load: Callable[[], Deuz]) -> None:
        """`load` finds the application; called once, at the first use."""
        self.flag = DrainFlag()
        self.pulse = Pulse()
        self.echo_queue = ""
        """Of this worker alone: what it sends itself to know that it hears."""
        self.steps_block = False
        """Steps are executed by the thread that consumes."""
        self.queues: tuple[str, ...] = ()
        """What this worker takes from."""
        self.announced: tuple[str, ...] = ()
        """Where others may send what its build can run: the same, and its quarantine queues."""
        self.alone = True
        """Each of its processes executes one step at a time."""
        self.dropped: Counter[str] = Counter()
        """Messages that were refused, by reason, in the process that consumes."""
        self.misfits: Counter[str] = Counter()
        """Doorbells in this process for runs that it cannot execute: `nobody` knows the agent, `other_build`."""
        self._load = load
        self._app: Deuz | None = None
        self._processes: dict[int, WorkerProcess] = {}

    @property
    def app(self) -> Deuz:
        """Raises what `load` raises, and `ConfigurationError` for an application that workers cannot run."""
        if self._app is None:
            app = self._load()
            check_namespaces(app.registry.agents)
            self._app = app
        return self._app

    @cached_property
    def _marks(self) -> Marks:
        return marks_of(self.app.settings, "bell")

    def seen_in(self, request: Any, scope: str, run_id: str) -> int:
        """The revision that a doorbell says was saved; 0 where this pool did not sign it."""
        return self._marks.read(run_lease_key(scope, run_id), str(request.get(MARK) or ""))

    def start(self, *, is_child: bool = False) -> WorkerProcess:
        """The state of the calling process, started if it was not."""
        process = self._processes.get(os.getpid())
        if process is None:
            self._processes.clear()  # a parent's, after a fork: its threads are not here
            process = self._processes[os.getpid()] = WorkerProcess(
                self.app,
                self.flag,
                queues=self.queues,
                announced=self.announced,
                alone=self.alone,
                misfits=self.misfits,
                is_child=is_child,
            )
            process.start()
            process.watch_consumer(self.pulse, steps_block=self.steps_block)
        return process

    @property
    def here(self) -> WorkerProcess:
        """The state of the calling process."""
        return self._processes.get(os.getpid()) or self.start()

    def stop(self) -> None:
        """The state of the calling process is gone; nothing happens if it had none."""
        process = self._processes.pop(os.getpid(), None)
        if process is not None:
            process.stop()


def attach(host: Host, celery: Any) -> None:
    """`celery` is the application of `host`: Celery hands it to bootsteps, consumers and requests, and they find the host."""
    celery.deuz = host


def host_of(celery: Any) -> Host:
    """What was attached to this Celery application."""
    return cast(Host, celery.deuz)
