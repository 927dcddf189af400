"""What every embedded server can do: start, stop, restart, and be killed by a test."""

from __future__ import annotations

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from deuz_workers.embedded.account import server_account
from deuz_workers.embedded.kept import KeptProcess, Stop
from deuz_workers.errors import ServerUnavailableError

READY_S = 60.0
"""Longest start. A cold one takes half a second; recovery after a crash replays what was written since a checkpoint."""
STOPPED_S = 60.0
"""Longest wait for the end of a process after SIGKILL."""
LOG_TAIL = 1500
"""Characters of the server's log that an error quotes."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a server can be started here; `reason` says where its program is, or why there is none."""

    is_available: bool
    reason: str

    def __bool__(self) -> bool:
        return self.is_available


class EmbeddedServer(ABC):
    """A real server of our own on a unix socket, that does not outlive this process.

    A context manager. Safe to use from several threads; in a forked child nothing of it has any effect on the server.
    Nobody but the current user (and root) can connect: the socket lies in a folder that is closed to others.
    """

    name: ClassVar[str]
    socket_name: ClassVar[str]

    def __init__(self) -> None:
        self._process: KeptProcess | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()

    def start(self) -> Self:
        """The server answers when this returns; after :meth:`kill` it recovers its data first. No effect while it runs.

        Raises ServerUnavailableError: no program, no account, a path too long, or the server ended (quotes its log).
        """
        with self._lock:
            if self._process is not None and self._process.is_running:
                return self
            try:
                if self._process is None:
                    self._owner = os.getpid()
                    self._process = KeptProcess(server_account(), socket_name=self.socket_name)
                    self._prepare(self._process)
                self._boot(self._process)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """The server, its processes and its temporary folder are gone. No effect when it is not started."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None and self._owner != os.getpid():
                process.abandon()
            elif process is not None:
                process.close()

    def restart(self) -> None:
        """A new server process answers on the same URL with the same data; the old one was stopped in order, if alive."""
        with self._lock:
            process = self._running()
            for step in (*self._stop_steps(), Stop(signal.SIGKILL, STOPPED_S)):
                if not process.is_running:
                    break
                process.signal(step.signal)
                try:
                    process.wait_for_end(timeout_s=step.grace_s)
                except ServerUnavailableError:
                    continue
            self.start()

    def kill(self) -> None:
        """The server died of SIGKILL, as in a crash, and all its processes are gone; the data wait for :meth:`start`."""
        with self._lock:
            process = self._running()
            process.signal(signal.SIGKILL)
            process.wait_for_end(timeout_s=STOPPED_S)

    @property
    def pid(self) -> int:
        """Process id of the server. Raises ServerUnavailableError when it does not run."""
        with self._lock:
            process = self._running()
            if not process.is_running or process.pid is None:
                raise ServerUnavailableError(f"{self.name} does not run; start it first")
            return process.pid

    @property
    def keeper_pid(self) -> int:
        """Process id of the keeper, which owns the server and its folder. Raises ServerUnavailableError before the start."""
        return self._running().keeper_pid

    @property
    def folder(self) -> Path:
        """The runtime folder, which holds the socket and the log. Raises ServerUnavailableError before the start."""
        return self._running().folder

    @property
    def socket(self) -> Path:
        """The unix socket on which the server listens."""
        return self.folder / self.socket_name

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect; it stays the same until :meth:`stop`."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @abstractmethod
    def _prepare(self, process: KeptProcess) -> None:
        """Find the program and make its data; once per :meth:`start` of a stopped server."""

    @abstractmethod
    def _command(self, process: KeptProcess) -> list[str | Path]:
        """The program and its arguments."""

    @abstractmethod
    def _stop_steps(self) -> Sequence[Stop]:
        """Signals that end it in order, the kindest first."""

    @abstractmethod
    def _is_ready(self, process: KeptProcess) -> bool:
        """Whether clients are served now."""

    def _boot(self, process: KeptProcess) -> None:
        log = process.folder / "server.log"
        process.run(self._command(process), log=log, stop=self._stop_steps())
        if not process.wait_until(lambda: self._is_ready(process), timeout_s=READY_S):
            raise self._failure(process, log, "ended while it started")

    def _failure(self, process: KeptProcess, log: Path, what: str) -> ServerUnavailableError:
        said = log.read_text(errors="replace")[-LOG_TAIL:].strip() if log.exists() else ""
        return ServerUnavailableError(f"{self.name} {what} (exit code {process.has_ended()}): {said or 'it said nothing'}")

    def _running(self) -> KeptProcess:
        if self._process is None:
            raise ServerUnavailableError(f"{self.name} is not started; call start() or use it in a with statement")
        return self._process
