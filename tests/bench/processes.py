"""Worker processes: ours and the floor's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0
"""For everything that is waited for."""
LOOK_S = 0.02
"""How often it is looked at: rarely, since whoever measures shares the cores."""
END_S = 20.0

SLOTS: Mapping[str, int] = {"threads": 8, "prefork": 2, "solo": 1}
"""Steps at a time of the pools that are measured."""


@dataclass(frozen=True, slots=True)
class Worker:
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raises RuntimeError with the end of its log if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the worker ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")

    def wait_until(self, is_true: Callable[[], bool], what: str) -> None:
        """Return once it is true. Raises RuntimeError when the worker ends or `DEADLINE_S` are over."""
        until = time.monotonic() + DEADLINE_S
        while not is_true():
            self.check()
            if time.monotonic() > until:
                raise RuntimeError(f"not within {DEADLINE_S} s: {what}\n{self.log.read_text()[-3000:]}")
            time.sleep(LOOK_S)


@contextlib.contextmanager
def worker(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Generator[Worker]:
    """A process of its own session that has ended, with its children, when this is left."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**inherited, "PYTHONPATH": str(ROOT), "DEUZ_CONFIG": os.devnull, **environment},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Worker(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
