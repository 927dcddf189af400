"""Processes that are killed around the commit of a summary, on both stores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deuz_workers.store import migrate
from tests.faults.compacting_process import TURNS
from tests.workers.pool import ROOT

pytestmark = pytest.mark.processes
PROGRAM = (sys.executable, "-m", "tests.faults.compacting_process")


@pytest.mark.parametrize("place", ["summary", "turn"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_kill_around_a_summary_buys_one_call_again(
    kind: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed in the call for a summary, the next process finds an open call and asks for the summary again; killed in the call
    of the turn, it finds the summary and asks for the turn again. Requests are paired and the transcript is whole."""
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else request.getfixturevalue("postgres_dsn")
    await migrate(url)
    _begin_and_kill(url, place, tmp_path)
    told = _resume(url, tmp_path)
    assert (told["status"], told["are_paired"]) == ("completed", True)
    assert told["transcript"] == 1 + 2 * TURNS + 1
    assert told["summaries"] == 1
    assert told["abandoned"] == ["summary" if place == "summary" else None]
    assert (told["asked"][0] == "summary") is (place == "summary")
    turns = [int(asked) for asked in told["asked"] if asked != "summary"]
    assert turns == list(range(turns[0], TURNS + 2))
    assert told["layers"].count("summary") == told["asked"].count("summary") + (place == "turn")


def _begin_and_kill(url: str, place: str, folder: Path) -> None:
    with subprocess.Popen([*PROGRAM, url, place], env=_environment(), cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "there"
        process.send_signal(signal.SIGKILL)


def _resume(url: str, folder: Path) -> dict[str, Any]:
    """It waits for the lease of the dead to lapse, as any process does."""
    done = subprocess.run([*PROGRAM, url], env=_environment(), cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")}
    return {**inherited, "PYTHONPATH": str(ROOT), "DEUZ_CONFIG": os.devnull}
