"""The command line in this process, over a database of the test's own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deuz_workers.cli.command import run

APP = "tests.cli.agents:app"


@dataclass(frozen=True, slots=True)
class Said:
    """What one command wrote, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout, which holds nothing else."""
        [line] = self.out.splitlines()
        return json.loads(line)

    @property
    def documents(self) -> list[Any]:
        """JSON documents, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Deuz = Callable[..., Said]


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own configuration reaches a command; the application reads the test's."""
    for name in list(os.environ):
        if name.startswith(("DEUZ_", "REVIEW_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DEUZ_CONFIG", os.devnull)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delitem(sys.modules, "tests.cli.agents", raising=False)


@pytest.fixture
def sqlite_url(own_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an SQLite file that commands use."""
    url = f"sqlite:///{tmp_path}/deuz.db"
    monkeypatch.setenv("DEUZ_DATABASE_URL", url)
    return url


@pytest.fixture
def deuz(own_settings: None, capsys: pytest.CaptureFixture[str]) -> Deuz:
    """Carries out a command line."""

    def carry_out(*arguments: str) -> Said:
        capsys.readouterr()
        code = run(arguments)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return carry_out
