"""`python -m tests.simulation.mutants`: break a copy of the package in every listed way, and see what notices it.

Nothing of the checkout is changed: package and tests are copied into a scratch directory.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.simulation.edits import Mutant
from tests.simulation.mutations import MUTANTS

ROOT = Path(__file__).parent.parent.parent
PACKAGE = "deuz_workers"
SEEDS = 3_000
"""Most that one mutant has to survive."""


def break_copy(scratch: Path, mutant: Mutant) -> None:
    """`scratch` holds the project with the mutant's edits. Raises ValueError for a text that is not there once,
    SyntaxError for code that is none."""
    for name in (PACKAGE, "tests"):
        shutil.rmtree(scratch / name, ignore_errors=True)
        shutil.copytree(ROOT / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", scratch)
    for edit in mutant.edits:
        file = scratch / PACKAGE / edit.file
        text = file.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{mutant.name!r}: {edit.file} has its text {text.count(edit.old)} times")
        broken = text.replace(edit.old, edit.new)
        if file.suffix == ".py":
            compile(broken, edit.file, "exec")  # what cannot be read is noticed by everything, and proves nothing
        file.write_text(broken)


def caught_by(scratch: Path, mutant: Mutant, seeds: int, *, named: bool, schedules: bool) -> str | None:
    """What noticed the mutant, None if nothing did. Named tests come first: they take seconds."""
    if named and mutant.tests:
        command = [sys.executable, "-m", "pytest", "-q", "-x", *mutant.tests]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        if done.returncode == 1:
            failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            return failed[1] if failed else "a named test"
        if done.returncode:
            raise ValueError(f"{mutant.name!r}: its tests cannot be run: {done.stdout[-500:]}")
    if not schedules:
        return None
    command = [sys.executable, "-m", "tests.simulation", "--count", str(seeds), "--stop"]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, env={"PYTHONPATH": str(scratch)})
    if not done.returncode:
        return None
    found = re.search(r"^seed (\d+): (.*)\n(.*)$", done.stdout, re.MULTILINE)
    if found:
        return f"seed {found[1]} ({found[2]}): {found[3].strip()}"
    return f"schedules could not be played: {done.stderr.strip().splitlines()[-1]}"


def main() -> int:
    """Exit status 1 if a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="schedules that each has to survive at most")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--schedules-only", action="store_true", help="without named tests")
    kinds.add_argument("--tests-only", action="store_true", help="without schedules")
    given = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for mutant in MUTANTS:
            if given.only not in mutant.name:
                continue
            began = time.monotonic()
            break_copy(Path(folder), mutant)
            by = caught_by(Path(folder), mutant, given.seeds, named=not given.schedules_only, schedules=not given.tests_only)
            survived += by is None
            print(
                f"{'caught  ' if by else 'SURVIVED'} {time.monotonic() - began:6.1f} s  {mutant.name}: {by or '-'}", flush=True
            )
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
