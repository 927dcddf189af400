"""The asking side of :mod:`~deuz_workers.embedded.keeper`: gives it orders and waits for its reports."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deuz_workers.embedded.account import ServerAccount, closed_folder
from deuz_workers.errors import ServerUnavailableError

FOLDER_PREFIX = "deuz-"
LONGEST_SOCKET_PATH = 99
"""Bytes; systems differ between 103 and 107, and a path of 123 was refused."""
POLL_S = 0.005
"""How often a condition that nobody reports (the socket answers) is looked at."""
KEEPER_START_S = 30.0
"""It takes 15 ms; the rest is for a machine that is busy."""
ORPHAN_S = 20.0
"""How long a server may take to end after its keeper was killed, before it is killed too."""
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What a server gets of our environment: enough to find its libraries, none of the keys and passwords."""


@dataclass(frozen=True, slots=True)
class Stop:
    """How to end a program: send `signal`, wait up to `grace_s` seconds, go on with the next one; SIGKILL comes last."""

    signal: int
    grace_s: float


class KeptProcess:
    """A runtime folder, and a program running in it, that vanish with this process.

    `folder` exists from the constructor until :meth:`close`, belongs to `account` and is closed to everybody else. It is
    made in `under`, by default the system's folder for temporary files.
    Raises ServerUnavailableError when `socket_name` in it would be too long a path, or `account` could not get there.
    """

    def __init__(self, account: ServerAccount | None, *, socket_name: str, under: Path | None = None) -> None:
        under = (under or Path(tempfile.gettempdir())).absolute()
        _check_runtime_folder(under, account, socket_name)
        spec: dict[str, Any] = {"parent": os.getpid(), "under": str(under), "prefix": FOLDER_PREFIX}
        spec |= {"uid": account.uid, "gid": account.gid} if account else {"uid": None, "gid": None}
        keeper = str(Path(__file__).with_name("keeper.py"))
        self._keeper = subprocess.Popen(  # noqa: S603 - our own program, our own arguments
            [sys.executable, "-I", "-S", keeper, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C ends us, and we end the server in order
        )
        self.account = account
        self._unread = b""
        self._reports: list[dict[str, Any]] = []
        self._exit_code = 0
        self._folder: Path | None = None
        self.pid: int | None = None
        """Process id of the program while it runs, as far as its end was reported."""
        try:
            self._folder = Path(self._next_report(time.monotonic() + KEEPER_START_S)["folder"])
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> Path:
        """The runtime folder."""
        assert self._folder is not None
        return self._folder

    @property
    def keeper_pid(self) -> int:
        """Process id of the keeper."""
        return self._keeper.pid

    @property
    def is_running(self) -> bool:
        """Whether a program was started and has not ended."""
        return self.has_ended() is None

    def run(self, argv: Sequence[str | Path], *, log: Path, stop: Sequence[Stop]) -> int:
        """Start a program in the folder, its output appended to `log`; answers its process id."""
        env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ} | {"LC_ALL": "C", "TZ": "UTC"}
        order = {"do": "run", "argv": [str(part) for part in argv], "env": env, "log": str(log)}
        self._order(order | {"stop": [(step.signal, step.grace_s) for step in stop]})
        self.pid = pid = int(self._next_report(time.monotonic() + KEEPER_START_S)["pid"])
        return pid

    def signal(self, number: int) -> None:
        """Send a signal to the program; nothing happens when it has ended."""
        self._order({"do": "signal", "signal": number})

    def has_ended(self) -> int | None:
        """Exit code of the last program (negative: the signal that ended it), `None` while it runs; does not wait."""
        if self.pid is not None and (report := self._report_within(0)) is not None:
            self.pid = None
            self._exit_code = int(report["exit"])
        return None if self.pid is not None else self._exit_code

    def wait_for_end(self, *, timeout_s: float) -> int:
        """Exit code of the program, once it and everything it had started are gone.

        Raises ServerUnavailableError when it still runs after `timeout_s` seconds.
        """
        if self.pid is not None:
            self._exit_code = int(self._next_report(time.monotonic() + timeout_s)["exit"])
            self.pid = None
        return self._exit_code

    def wait_until(self, is_true: Callable[[], bool], *, timeout_s: float) -> bool:
        """True once `is_true`; false when the program ends before. ServerUnavailableError after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self.has_ended() is not None:
                return False
            if is_true():
                return True
            if time.monotonic() > deadline:
                raise ServerUnavailableError(f"the server was not ready after {timeout_s:.0f} seconds")
            if (report := self._report_within(POLL_S)) is not None:
                self._reports.append(report)

    def close(self) -> None:
        """End the program in order and remove the folder; afterwards neither exists. May be called again."""
        if self._keeper.stdin and not self._keeper.stdin.closed:
            with contextlib.suppress(ServerUnavailableError):  # the keeper is gone already
                self._order({"do": "end"})
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()
        if self._keeper.wait() != 0:
            self._clear_up()
        if self._keeper.stdout:
            self._keeper.stdout.close()
        self.pid = None

    def abandon(self) -> None:
        """Let go without ending anything: for a forked child, whose parent still owns the server."""
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe:
                pipe.close()
        self._keeper.returncode = 0  # not our child, so there is nothing to wait for

    def _clear_up(self) -> None:
        """Do the keeper's last duties in its place: somebody killed it, and the system told the server."""
        if self.pid is not None and not _has_gone(self.pid, ORPHAN_S):
            os.kill(self.pid, signal.SIGKILL)
            _has_gone(self.pid, ORPHAN_S)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _order(self, order: Mapping[str, Any]) -> None:
        assert self._keeper.stdin
        try:
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()
        except (OSError, ValueError):
            raise ServerUnavailableError("the keeper of the embedded server is gone; stop and start the server") from None

    def _next_report(self, deadline: float) -> dict[str, Any]:
        report = self._report_within(max(0.0, deadline - time.monotonic()))
        if report is None:
            raise ServerUnavailableError("the embedded server did not answer in time; the machine may be overloaded")
        return report

    def _report_within(self, timeout_s: float) -> dict[str, Any] | None:
        if self._reports:
            return self._reports.pop(0)
        assert self._keeper.stdout
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            with selectors.DefaultSelector() as selector:
                selector.register(self._keeper.stdout, selectors.EVENT_READ)
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
            data = os.read(self._keeper.stdout.fileno(), 65536)
            if not data:
                raise ServerUnavailableError("the keeper of the embedded server was killed; stop and start the server")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return json.loads(line)


def _has_gone(pid: int, timeout_s: float) -> bool:
    """Whether a process that is not our child ends within `timeout_s` seconds."""
    try:
        descriptor = os.pidfd_open(pid)  # readable at its end, though nobody may collect its exit code
    except (AttributeError, OSError):
        return _has_vanished(pid, timeout_s)
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def _has_vanished(pid: int, timeout_s: float) -> bool:
    """The same where the system has no pidfd."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except OSError:  # gone, or the id is somebody else's by now
            return True
        time.sleep(POLL_S)
    return False


def _check_runtime_folder(under: Path, account: ServerAccount | None, socket_name: str) -> None:
    socket = under / (FOLDER_PREFIX + "x" * 8) / socket_name
    length = len(os.fsencode(socket))
    if length > LONGEST_SOCKET_PATH:
        raise ServerUnavailableError(
            f"the path of the server's socket in {under} would have {length} bytes and at most {LONGEST_SOCKET_PATH} work; "
            "set TMPDIR to a shorter folder, for instance /tmp"
        )
    if closed := closed_folder(socket, account):
        raise ServerUnavailableError(
            f"the server would run as {account.name if account else ''!r}, which cannot enter {closed}; "
            "set TMPDIR to a folder that others may enter, for instance /tmp"
        )
