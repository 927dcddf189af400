"""The process beside a worker in which runs are executed one at a time whose steps ended unclean (architecture D15).

A worker of the pool `threads` has many runs in one process, so a run that kills it must not be tried there again. Its companion
is started when there is such a run, takes nothing but the quarantine queues of its worker, and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.discovery import place_of
from deuz_workers.core.unclean_ends import quarantine_queue
from deuz_workers.ports.runtime import Clock

PARENT_VARIABLE: Final = "DEUZ_COMPANION_OF"
"""Process id of the worker that a companion ends with."""
APART_MS = 1_000
"""Between two starts of a companion that does not stay."""
END_PATIENCE_S = 5.0
"""Beyond the grace period of a drain."""

log = logging.getLogger(__name__)


class Companion:
    """Of one worker. Events: ``companion_started`` (`pid`), ``quarantine_unattended`` (once)."""

    def __init__(self, app: Deuz, queues: Sequence[str], clock: Clock, *, grace_ms: int) -> None:
        """`queues`: of the worker. `grace_ms`: how long its drain may take.

        It finds `app` where `DEUZ_APP` says, else by the module that holds it.
        """
        self._app = app
        self._clock = clock
        self._queues = [quarantine_queue(name) for name in queues]
        self._grace_s = grace_ms / 1000 + END_PATIENCE_S
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_ms: int | None = None
        self._told = False
        self._ended = False

    async def ensure(self) -> None:
        """It runs, or cannot be started here, which is logged."""
        await asyncio.to_thread(self._ensure)

    def stop(self) -> None:
        """It has drained and ended, and none is started any more."""
        with self._lock:
            self._ended = True
            process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._grace_s)
        if process.poll() is None:
            process.kill()
            process.wait()

    def _ensure(self) -> None:
        with self._lock:
            if self._ended or (self._process is not None and self._process.poll() is None):
                return
            now_ms = self._clock.monotonic_ms()
            if self._started_ms is not None and now_ms - self._started_ms < APART_MS:
                return
            place = os.environ.get("DEUZ_APP") or place_of(self._app)
            if not place:
                if not self._told:
                    way_out = "set DEUZ_APP=package.module:attribute, or start a worker of these queues with --pool solo"
                    log.error("quarantine_unattended queues=%s way_out=%r", ",".join(self._queues), way_out)
                self._told = True
                return
            self._started_ms = now_ms
            command = [sys.executable, "-m", "deuz_workers.cli", "worker", "--pool", "solo", "--concurrency", "1"]
            name = f"quarantine-{os.getpid()}@%h"
            self._process = subprocess.Popen(  # noqa: S603 - our own program, with names of queues
                [*command, "--queues", ",".join(self._queues), "--name", name],
                env={**os.environ, "DEUZ_APP": place, PARENT_VARIABLE: str(os.getpid())},
                stdin=subprocess.DEVNULL,
            )
            log.warning("companion_started pid=%d queues=%s", self._process.pid, ",".join(self._queues))


def end_with_worker() -> bool:
    """In a companion: drain if its worker is gone. True if that was asked for just now."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or os.getppid() == int(parent):
        return False
    del os.environ[PARENT_VARIABLE]
    os.kill(os.getpid(), signal.SIGTERM)
    return True
