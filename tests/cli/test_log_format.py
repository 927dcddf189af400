"""`--log-format json`: every line of a worker process is an object."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_worker_writes_objects(tmp_path: Path, by: str) -> None:
    """From its start to its drain, by the option or by the variable; each says when, how bad, who and what."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")}
    own = {"DEUZ_DATABASE_URL": f"sqlite:///{tmp_path}/runs.db", "DEUZ_CONFIG": os.devnull, "PYTHONPATH": str(ROOT)}
    if by == "variable":
        own["DEUZ_LOG_FORMAT"] = "json"
    command = [sys.executable, "-m", "deuz_workers.cli", "worker", "--app", "tests.cli.agents:app"]
    command += ["--log-format", "json"] if by == "option" else []
    with subprocess.Popen(command, cwd=ROOT, env={**inherited, **own}, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        lines: list[dict[str, object]] = []
        for line in worker.stderr:
            lines.append(json.loads(line))
            if lines[-1].get("event") == "worker_open":
                worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    events = [line.get("event") for line in lines]
    assert events.index("worker_open") < events.index("worker_draining")
    opened = lines[events.index("worker_open")]
    assert {"at", "level", "logger", "pid"} <= opened.keys()
    assert (opened["level"], opened["pool"], opened["pid"]) == ("info", "none", worker.pid)
