"""`deuz demo` in a process of its own, and all that it starts, found by the folder for temporary files that it is given."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0
"""For everything that a test waits for; nothing that works takes half of it."""

PYTHON = '''"""Known numbers: 8 lines, 2 functions, 1 class, 2 branches."""
class Thing:
    def one(self, x):
        return 1 if x else 2

def two(x):
    while x:
        x -= 1
'''


@dataclass
class Demo:
    """Where a demo works: `folder` is its working directory with files to review, `temporary` its folder for the rest."""

    folder: Path
    temporary: Path

    def environment(self, **variables: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DEUZ_", "REVIEW_", "OPENAI_"))}
        own = {"TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT), "DEUZ_CONFIG": os.devnull, "TERM": "xterm"}
        return {**inherited, **own, **variables}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "deuz_workers.cli", "demo", "src", *arguments]

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """The demo without a terminal; what it says can be read from its `stdout`."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment(**variables),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def summary(self, *arguments: str, **variables: str) -> dict[str, Any]:
        """What a demo that ends well prints with `--json`, and nothing is left of it."""
        process = self.start("--json", *arguments, **variables)
        said, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, said
        self.assert_nothing_left()
        lines = said.splitlines()
        assert len(lines) == 1, said
        return json.loads(lines[0])

    @property
    def report(self) -> Path:
        return self.folder / "deuz-report.md"

    def processes(self) -> list[str]:
        """Command lines of the processes that use `temporary`."""
        found: list[str] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or entry.name == str(os.getpid()):
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if str(self.temporary).encode() in command + (entry / "environ").read_bytes():
                    found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        return found

    def is_gone(self) -> bool:
        return not self.processes() and not list(self.temporary.iterdir())

    def assert_nothing_left(self) -> None:
        assert not self.processes()
        assert not list(self.temporary.iterdir())


@contextlib.contextmanager
def demo_folder(tmp_path: Path, files: int = 8) -> Generator[Demo]:
    """A demo over `files` files in `tmp_path`; whatever a failing test left running is killed."""
    source = tmp_path / "src"
    source.mkdir()
    for number in range(files - 1):
        (source / f"part{number}.py").write_text(PYTHON)
    (source / "notes.txt").write_text("three\nlines\nlong\n")
    # Not below `tmp_path`: the account of the database could not enter it when we are root.
    temporary = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
    temporary.chmod(0o711)
    demo = Demo(tmp_path, temporary)
    try:
        yield demo
    finally:
        _kill_left(temporary)
        shutil.rmtree(temporary, ignore_errors=True)


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < until, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What the process says up to the line that holds `text`."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without saying {text!r}:\n{said}")


def _kill_left(temporary: Path) -> None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                if str(temporary).encode() in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
