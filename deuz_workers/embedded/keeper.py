"""Keeps one server process and clears up behind it, whatever happens to the process that asked for it.

A process of its own, started by :mod:`~deuz_workers.embedded.kept` as ``python -I -S keeper.py SPEC``; it imports the
standard library only, so that it is up in some 15 ms. It owns everything that could be left behind: the runtime folder
and the server. They go when it is told ``end``, when its orders run dry, on SIGTERM, and when the asking process dies.

* A parent-death signal alone is not enough: changing the uid clears it, and it follows the *thread* that forked. So the
  keeper watches the asking process through a pidfd (elsewhere than on Linux it compares the parent's id twice a second).
* Should the keeper itself be killed, the server does get a parent-death signal: the keeper has one thread, and the
  signal is asked for after the change of uid. On other systems than Linux this last case leaves the server behind.
* Processes that the server leaves behind when it is killed (Postgres' backends) become children of the keeper, which
  kills them before it reports the end, so that the data directory is free once ``exit`` was reported.

Orders, one JSON object a line: ``{"do": "run", "argv", "env", "log", "stop": [[signal, grace_s], ...]}``,
``{"do": "signal", "signal"}``, ``{"do": "end"}``. Reports: ``{"folder"}`` once, ``{"pid"}`` and ``{"exit"}`` per run.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PARENT_CHECK_S = 0.5
"""How often the parent's id is compared where there is no pidfd."""


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process; nothing happens where the system has no such call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Keeper:
    """One runtime folder and at most one process at a time."""

    def __init__(self, *, parent: int, under: str, prefix: str, uid: int | None, gid: int | None) -> None:
        self._parent = parent
        self._uid = uid
        self._gid = gid
        self._child: int | None = None
        self._exit_code: int | None = None
        self._stop: list[tuple[int, float]] = []
        self._ending = False
        self._orders = b""
        self._wake, wake_writer = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # a handler, so that it wakes the loop
        signal.signal(signal.SIGTERM, lambda _number, _frame: self.end())
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)  # Ctrl-C in the terminal is the asking process' business
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._parent_fd = self._watch_parent()
        self._folder = self._make_folder(under, prefix)

    def end(self) -> None:
        """The keeper stops the server, removes the folder and leaves as soon as it is back in its loop."""
        self._ending = True

    def serve(self) -> None:
        """Follow orders until the end; afterwards neither server nor folder exist."""
        try:
            self._report(folder=self._folder)
            while not self._ending:
                self._wait(PARENT_CHECK_S if self._parent_fd is None else None)
        finally:
            self.end()
            self._stop_child()
            import shutil  # only needed here, and slow to import

            shutil.rmtree(self._folder, ignore_errors=True)

    def _watch_parent(self) -> int | None:
        try:
            descriptor = os.pidfd_open(self._parent)
        except (AttributeError, OSError):
            descriptor = None
        if os.getppid() != self._parent:  # it died before we looked; its id may be somebody else's by now
            self.end()
        return descriptor

    def _make_folder(self, under: str, prefix: str) -> str:
        folder = os.path.join(under, prefix + os.urandom(4).hex())  # noqa: PTH118 - pathlib costs 5 ms here
        os.mkdir(folder, 0o700)  # noqa: PTH102
        if self._uid is not None and self._gid is not None:
            os.chown(folder, self._uid, self._gid)
        return folder

    def _wait(self, timeout_s: float | None) -> None:
        """Return after one order, signal, death or `timeout_s`; reaped what has ended."""
        watched = [0, self._wake] if self._parent_fd is None else [0, self._wake, self._parent_fd]
        ready, _, _ = select.select(watched if not self._ending else [self._wake], [], [], timeout_s)
        if self._wake in ready:
            os.read(self._wake, 4096)
        self._reap()
        if self._parent_fd in ready or (not self._ending and os.getppid() != self._parent):
            self.end()
        elif 0 in ready:
            self._read_orders()

    def _read_orders(self) -> None:
        data = os.read(0, 65536)
        if not data:
            return self.end()
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["do"] == "run":
                self._run(order)
            elif order["do"] == "signal":
                self._signal(order["signal"])
            else:
                self.end()
        return None

    def _run(self, order: dict[str, Any]) -> None:
        self._exit_code = None
        self._stop = [(number, grace_s) for number, grace_s in order["stop"]]
        self._child = self._spawn(order["argv"], order["env"], order["log"])
        self._report(pid=self._child)

    def _spawn(self, argv: list[str], env: dict[str, str], log: str) -> int:
        keeper = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self._folder)
            if self._uid is not None and self._gid is not None:
                os.setgroups([])
                os.setgid(self._gid)
                os.setuid(self._uid)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            prctl(PR_SET_PDEATHSIG, self._stop[0][0])
            if os.getppid() == keeper:
                os.execve(argv[0], argv, env)  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _signal(self, number: int) -> None:
        if self._child is not None and self._exit_code is None:
            os.kill(self._child, number)

    def _reap(self) -> None:
        """Collect what has ended; report the end once the server and everything it left behind are gone."""
        while self._child is not None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._child = None
                self._report(exit=self._exit_code)
                return
            if pid == 0:
                break
            if pid == self._child:
                self._exit_code = os.waitstatus_to_exitcode(status)
            if self._exit_code is not None:
                self._kill_orphans()

    def _kill_orphans(self) -> None:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:  # noqa: PTH123
                orphans = [int(pid) for pid in children.read().split()]
        except OSError:  # not Linux: the orphans see the end of their parent by themselves
            return
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)  # ours, and not yet waited for: the id cannot be somebody else's

    def _stop_child(self) -> None:
        for number, grace_s in [*self._stop, (signal.SIGKILL, 60.0)]:
            self._signal(number)
            deadline = time.monotonic() + grace_s
            while self._child is not None and (left_s := deadline - time.monotonic()) > 0:
                self._wait(left_s)

    def _report(self, **fields: str | int | None) -> None:
        try:
            os.write(1, json.dumps(fields).encode() + b"\n")
        except OSError:  # nobody listens any more
            self.end()


if __name__ == "__main__":
    Keeper(**json.loads(sys.argv[1])).serve()
