"""The companion of a worker whose application nobody named."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.discovery import place_of
from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.workers.companion import Companion
from tests.workers import agents
from tests.workers.agents import TRACES
from tests.workers.pool import ROOT, wait_until

pytestmark = pytest.mark.processes


def test_an_application_is_found_in_the_module_that_holds_it() -> None:
    """By whatever name; one that no module holds is not found."""
    assert place_of(agents.app) == "tests.workers.agents:app"
    assert place_of(Deuz()) is None


def test_a_script_that_was_started_as_a_file_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is called `__main__` in every process."""
    script = ModuleType("__main__")
    script.__dict__["mine"] = app = Deuz()
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert place_of(app) is None


async def test_a_companion_is_told_where_the_application_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a process of its own, and ends with its worker."""
    for name, value in {"PYTHONPATH": str(ROOT), "DEUZ_CONFIG": os.devnull, TRACES: str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DEUZ_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    companion = Companion(agents.app, ["default"], SystemClock(), grace_ms=0)
    await companion.ensure()
    [pid] = [found[1] for record in caplog.records if (found := re.match(r"companion_started pid=(\d+)", record.getMessage()))]
    environment = Path(f"/proc/{pid}/environ")
    wait_until(lambda: environment.read_bytes() != b"", "the process has begun its program")  # empty while it is replaced
    assert b"DEUZ_APP=tests.workers.agents:app" in environment.read_bytes().split(b"\0")
    companion.stop()
    assert not Path(f"/proc/{pid}").exists()


async def test_without_a_place_the_way_out_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The runs wait until somebody names the application."""
    monkeypatch.delenv("DEUZ_APP", raising=False)
    companion = Companion(Deuz(), ["default"], SystemClock(), grace_ms=0)
    await companion.ensure()
    await companion.ensure()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("quarantine_unattended queues=default.quarantine way_out=")
    assert "DEUZ_APP=package.module:attribute" in line
