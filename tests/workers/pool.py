"""Real worker processes for a test: started, killed, asked to end, and gone when the test is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.app.settings import Settings
from deuz_workers.ports.leases import Lease
from tests.workers.agents import TRACES, application

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0
"""For everything that a test waits for; nothing that works takes a tenth of it."""


def wait_until(is_true: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """Return once it is true. Fails after `seconds`."""
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.01)


@dataclass
class Worker:
    """One worker process, in a session of its own, with everything it said in `log`."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def children(self) -> list[int]:
        """Process ids of its children."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in found.read_text().split()] if found.exists() else []

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def wait_for(self, text: str) -> None:
        """Return once the worker has said `text`."""

        def is_there() -> bool:
            assert self.process.poll() is None or self.said(text), f"the worker ended:\n{self.log.read_text()[-3000:]}"
            return self.said(text)

        try:
            wait_until(is_there, text)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-3000:]}") from None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """The whole worker is gone at once, children included."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end:\n{self.log.read_text()[-3000:]}") from None


@dataclass
class Pool:
    """Workers over one database and one Redis, and a client of them."""

    folder: Path
    settings: Settings
    workers: list[Worker] = field(default_factory=list[Worker])
    module: str = "tests.workers.agents:app"

    def __post_init__(self) -> None:
        self.traces = self.folder / "traces"
        self.traces.mkdir(exist_ok=True)
        self.app: Deuz = application(self.settings)

    def environment(self, **settings: Any) -> dict[str, str]:
        """Of a worker: the pool's settings, changed by `settings`; upper-case names are variables as they are."""
        values = self.settings.model_dump(include=self.settings.model_fields_set) | {
            name: value for name, value in settings.items() if not name.isupper()
        }
        variables = {f"DEUZ_{name.upper()}": _spelled(value) for name, value in values.items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")}
        own = {"DEUZ_APP": self.module, TRACES: str(self.traces), "PYTHONPATH": str(ROOT), "DEUZ_CONFIG": "/dev/null"}
        return inherited | own | variables | {name: str(value) for name, value in settings.items() if name.isupper()}

    def start(self, pool: str = "threads", concurrency: int = 2, *, wait: bool = True, **settings: Any) -> Worker:
        """A worker, with its sweep and heartbeat running if `wait`; upper-case settings are variables as they are."""
        number = len(self.workers)
        log = self.folder / f"worker{number}.log"
        environment = self.environment(pool=pool, concurrency=concurrency, **{"TEST_NODE": f"w{number}@test", **settings})
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.workers.start"],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        worker = Worker(process, log)
        self.workers.append(worker)
        if wait:
            worker.wait_for("worker_open")
        return worker

    def switch_sweep_off(self) -> None:
        """No worker passes any more: the test holds the right to, for a day."""
        claim = LOOP.run(self.app.leases.acquire("sweep:default", "0" * 32, 86_400_000, force=True))
        assert isinstance(claim, Lease)

    def silent(self) -> Deuz:
        """A client that writes rows and rings nobody."""
        return application(self.settings.model_copy(update={"redis_url": None, "leases_url": "memory://"}))

    def lines(self, name: str) -> list[str]:
        """What tools traced under `name`."""
        path = self.traces / name
        return path.read_text().splitlines() if path.exists() else []

    def go(self, name: str) -> None:
        """What waits for `name` goes on."""
        (self.traces / f"{name}.go").touch()

    def wait_for_lines(self, name: str, count: int = 1) -> list[str]:
        try:
            wait_until(lambda: len(self.lines(name)) >= count, f"{count} lines of {name!r}")
        except AssertionError as error:
            logs = "\n".join(worker.log.read_text()[-1500:] for worker in self.workers)
            raise AssertionError(f"{error}\n{logs}") from None
        return self.lines(name)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.app.close()


def _spelled(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
