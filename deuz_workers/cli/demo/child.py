"""One process of the demo's pool, seen from the demo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import deuz_workers
from deuz_workers.errors import ServerUnavailableError

POLL_S = 0.02
START_S = 60.0
"""Longest start. It takes two seconds; the rest is for a machine that is busy."""
LOG_TAIL = 1_500
"""Characters of its log that an error quotes."""


class Child:
    """A tethered process in a session of its own, with everything it says in `log`. Ctrl-C reaches only the demo."""

    def __init__(self, role: str, name: str, *, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{role}-{name}.log"
        source = str(Path(deuz_workers.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (source, environment.get("PYTHONPATH"))))
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, our own arguments
                # -P: a file of the user's folder must not be taken for a module of the same name.
                [sys.executable, "-P", "-m", "deuz_workers.cli.demo.tethered", role, name],
                env={**environment, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        """Return once it is true. Raises ServerUnavailableError, quoting the log, if the process ends before or takes long."""
        until = time.monotonic() + START_S
        while not is_true():
            if not self.is_running or time.monotonic() > until:
                said = self.log.read_text(errors="replace")[-LOG_TAIL:].strip()
                raise ServerUnavailableError(f"{self.name} did not start: {said or 'it said nothing'}")
            time.sleep(POLL_S)

    def said(self, text: str) -> bool:
        """Whether `text` is in its log."""
        return text in self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Sent if the process is there."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """It died of SIGKILL, and the system knows its end."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._close()

    def wait_or_kill(self, until: float) -> None:
        """It has ended: in order by the monotonic time `until`, or killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))
        self.kill()

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
