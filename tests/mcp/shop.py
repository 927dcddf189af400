"""Real servers as processes of a test, and how often their tools were called."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deuz_workers import McpServer

ROOT = Path(__file__).parents[2]


@dataclass
class Shop:
    """One server. `how` `http` is started by `start`; `stdio` by whoever connects."""

    folder: Path
    how: Literal["stdio", "http"]
    protocol: Literal["auto", "legacy"] = "auto"
    """For tests that connect to it."""
    process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """It listens, at the same port as before."""
        before = self.folder / "port"
        known = before.read_text() if before.exists() else ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.mcp.server", "http", str(self.folder)], cwd=ROOT, env=environment()
        )
        while True:
            try:
                port = int((self.folder / "port").read_text())
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except (OSError, ValueError):
                assert self.process.poll() is None, "the server has ended"
                await asyncio.sleep(0.02)
                continue
            writer.close()
            assert known in ("", str(port))
            return

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def server(self, **given: Any) -> McpServer:
        """To connect to it."""
        if self.how == "http":
            return McpServer(url=f"http://127.0.0.1:{(self.folder / 'port').read_text()}/mcp", **given)
        args = ("-m", "tests.mcp.server", "stdio", str(self.folder))
        return McpServer(command=sys.executable, args=args, cwd=str(ROOT), env=environment(), **given)

    def kill(self) -> None:
        """The process of a `stdio` server is gone."""
        os.kill(self.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def handshakes(self) -> int:
        """How often a `stdio` server was started."""
        return len((self.folder / "started").read_text().split())

    @property
    def calls(self) -> Counter[str]:
        path = self.folder / "calls"
        return Counter(path.read_text().split() if path.exists() else [])


async def until(is_true: Callable[[], bool]) -> None:
    """Return once it is true; what makes it so is another process."""
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def is_alive(pid: int) -> bool:
    """No zombie either."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
