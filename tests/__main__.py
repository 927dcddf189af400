"""`python -m tests`: everything that must hold before a change goes in. The last line is pytest's.

Tools run first, then all tests, for which a browser is installed where that is simple: as root on Debian, see `tests.browser`.
`python -m tests --check` runs the tools alone: no server is started, half a minute. Other arguments go to pytest:
`python -m tests tests/core -x`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from tests import browser

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(sysconfig.get_path("scripts"))

TOOLS: dict[str, list[str]] = {
    "ruff check": ["ruff", "check", "--quiet"],
    "ruff format": ["ruff", "format", "--check", "--quiet"],
    "lint-imports": ["lint-imports"],
    # The interpreter is named, so that the checks see the packages of the venv we run in, whatever it is called.
    "pyright": ["pyright", "--pythonpath", sys.executable],
}

MOST_TEST_PROCESSES = 4
"""Each has a Postgres and a Valkey of its own; more of them than this gain little and need a gigabyte."""


def check() -> list[str]:
    """Run every tool, print one line for each and the output of those that complain; the names of these."""
    failed: list[str] = []
    for name, command in TOOLS.items():
        began = time.monotonic()
        done = subprocess.run(
            [SCRIPTS / command[0], *command[1:]], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        print(f"{'ok    ' if done.returncode == 0 else 'FAILED'} {name} ({time.monotonic() - began:.1f} s)", flush=True)
        if done.returncode != 0:
            failed.append(name)
            print(done.stdout + done.stderr, flush=True)
    return failed


def test(arguments: list[str]) -> int:
    """Run pytest, on several processes when it is asked for everything; its exit status."""
    processes = min((os.cpu_count() or 1) + 1, MOST_TEST_PROCESSES)  # much of a test of workers is waiting
    spread = ["-n", str(processes), "--dist", "worksteal"] if processes > 1 and not arguments else []
    command = [sys.executable, "-m", "pytest", "--quiet", *spread, *arguments]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode


def main(arguments: list[str]) -> int:
    """Exit status: 0 when every tool and every test agrees. A tool's complaint does not keep the tests from running."""
    failed = check()
    if arguments == ["--check"]:
        return 1 if failed else 0
    if not arguments and (said := browser.provide()) is not None:
        print(said, flush=True)
    return test(arguments) or (1 if failed else 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
