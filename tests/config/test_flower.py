"""Flower as config/flower.py sets it up: a password, no arguments, no orders."""

from __future__ import annotations

import http.client
import os
import runpy
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import flower.options
import pytest

CONFIG = Path(__file__).parents[2] / "config/flower.py"
DEADLINE_S = 60.0
APP = """
from celery import Celery
app = Celery("watched", broker={broker!r})
"""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket, so that no port has to be found."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=DEADLINE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(self._path)


def status(path: str, method: str, url: str, account: str | None = None) -> int:
    """The status that Flower answers with."""
    connection = UnixConnection(path)
    headers = {"Authorization": f"Basic {b64encode(account.encode()).decode()}"} if account else {}
    connection.request(method, url, body=b"" if method == "POST" else None, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_every_setting_exists_in_the_installed_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower ignores names that it does not know, so a misspelt one would protect nothing."""
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "operator:secret")
    settings = {name: value for name, value in runpy.run_path(str(CONFIG)).items() if not name.startswith("_")}
    settings = {name: value for name, value in settings.items() if name not in ("os", "sys")}
    known = set(flower.options.default_options.as_dict())
    assert settings.keys() <= known
    assert settings["read_only"] is True
    assert settings["address"] == "127.0.0.1"


def test_arguments_and_results_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a task carries, Flower's pages show none of it."""
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "operator:secret")
    format_task = runpy.run_path(str(CONFIG))["format_task"]
    shown = format_task(SimpleNamespace(name="t", args="('sk-1',)", kwargs="{'prompt': 'p'}", result="'r'"))
    assert (shown.name, shown.args, shown.kwargs, shown.result) == ("t", "(hidden)", "(hidden)", None)
    step = format_task(SimpleNamespace(name="deuz.step", args="(r7, agent=clerk)", kwargs="{}", result="'r'"))
    assert (step.args, step.kwargs, step.result) == ("(r7, agent=clerk)", "(hidden)", None)


@pytest.mark.parametrize("value", [None, "", "no-colon"])
def test_without_a_password_it_does_not_start(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """The message names the variable."""
    monkeypatch.delenv("FLOWER_BASIC_AUTH", raising=False)
    if value is not None:
        monkeypatch.setenv("FLOWER_BASIC_AUTH", value)
    with pytest.raises(SystemExit, match="set FLOWER_BASIC_AUTH=user:password"):
        runpy.run_path(str(CONFIG))


@pytest.fixture
def flower_socket(broker_url: str, tmp_path: Path) -> Generator[str]:
    """The socket of a Flower that was started as operators start it."""
    (tmp_path / "watched.py").write_text(APP.format(broker=broker_url))
    path = str(tmp_path / "flower.sock")
    command = [sys.executable, "-m", "celery", "--app", "watched", "flower", f"--conf={CONFIG}", f"--unix_socket={path}"]
    environment = {"PATH": os.environ["PATH"], "FLOWER_BASIC_AUTH": "operator:secret", "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            said = ""
            while "Visit me via unix socket" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            yield path
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)


@pytest.mark.processes
def test_a_running_flower_asks_for_the_password_and_takes_no_orders(flower_socket: str) -> None:
    """Pages and API answer 401 without it, 403 to every order with it; the health check needs none."""
    assert status(flower_socket, "GET", "/healthcheck") == 200
    for url in ("/workers", "/api/tasks", "/api/workers"):
        assert status(flower_socket, "GET", url) == 401
        assert status(flower_socket, "GET", url, "operator:wrong") == 401
    assert status(flower_socket, "GET", "/workers", "operator:secret") == 200
    for order in ("/api/worker/shutdown/celery@w", "/api/task/revoke/1", "/api/task/async-apply/deuz.step"):
        assert status(flower_socket, "POST", order) == 401
        assert status(flower_socket, "POST", order, "operator:secret") == 403
