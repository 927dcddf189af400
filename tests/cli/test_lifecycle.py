"""Runs that go and copies of runs, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from deuz_workers.cli.exits import Exit
from tests.cli.conftest import APP, Deuz


def test_a_run_is_forked_exported_pruned_and_imported(deuz: Deuz, sqlite_url: str, tmp_path: Path) -> None:
    """The file that was written brings back what was deleted, once."""
    ran = deuz("run", "greeter", "hi", "--app", APP, "--in-process", "--run-id", "r", "--json")
    assert ran.code == Exit.OK
    file = tmp_path / "run.json"
    assert deuz("runs", "export", "r", "--to", str(file), "--json").document["file"] == str(file)
    assert deuz("runs", "export", "r").out == file.read_text()
    assert deuz("runs", "import", str(file)).code == Exit.USAGE, "the id is taken"
    forked = deuz("runs", "fork", "r", "--turn", "0", "--as", "f", "--json").document
    assert (forked["run_id"], deuz("runs", "show", "f", "--json").document["status"]) == ("f", "queued")
    assert deuz("runs", "fork", "r", "--turn", "7").code == Exit.USAGE
    assert deuz("runs", "prune", "--older-than", "0s", "--json").code == Exit.USAGE, "nobody said --yes"
    assert deuz("runs", "prune", "--older-than", "1d", "--yes", "--json").document == {"pruned": 0}
    assert deuz("runs", "prune", "--older-than", "0s", "--status", "completed", "--yes", "--json").document == {"pruned": 1}
    assert [run["run_id"] for run in deuz("runs", "list", "--json").document["runs"]] == ["f"]
    assert deuz("runs", "import", str(file), "--json").document == {"run_id": "r", "scope": "default"}
    assert deuz("runs", "show", "r", "--json").document["output"] == "hello"
    file.write_text(file.read_text().replace("hello", "hullo"))
    altered = deuz("runs", "import", str(file))
    assert (altered.code, "run_file" in altered.err) == (Exit.USAGE, True)


def test_an_export_replaces_no_file_unless_told_to(deuz: Deuz, sqlite_url: str, tmp_path: Path) -> None:
    """What is there stays as it is, and the message names the option; with it, the file is the run."""
    assert deuz("run", "greeter", "hi", "--app", APP, "--in-process", "--run-id", "r").code == Exit.OK
    file = tmp_path / "run.json"
    file.write_text("somebody's notes")
    refused = deuz("runs", "export", "r", "--to", str(file))
    assert (refused.code, file.read_text()) == (Exit.USAGE, "somebody's notes")
    assert "--force" in refused.err
    assert deuz("runs", "export", "r", "--to", str(file), "--force").code == Exit.OK
    assert deuz("runs", "export", "r").out == file.read_text()


@pytest.mark.parametrize("age", ["30", "d", "-3d", "1y", "1.5h"])
def test_what_is_no_age(deuz: Deuz, sqlite_url: str, age: str) -> None:
    """It is said how ages are written."""
    assert deuz("runs", "prune", f"--older-than={age}", "--yes").code == Exit.USAGE


def test_a_status_that_is_no_end(deuz: Deuz, sqlite_url: str) -> None:
    """Refused before anything is deleted."""
    assert deuz("runs", "prune", "--older-than", "1d", "--status", "suspended", "--yes").code == Exit.USAGE
