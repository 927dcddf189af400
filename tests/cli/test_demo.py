"""The demo from outside, with real processes: what it shows, how it ends, and that nothing of it stays."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Generator
from pathlib import Path

import pytest

from deuz_workers import Deuz, Settings
from deuz_workers.cli.command import run
from deuz_workers.cli.exits import Exit
from deuz_workers.embedded import Availability, EmbeddedPostgres, EmbeddedRedis
from deuz_workers.errors import ServerUnavailableError
from deuz_workers.testing.model_server import ModelServer
from tests import servers
from tests.cli import review_server
from tests.cli.demo_process import Demo, demo_folder, read_until, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def demo(tmp_path: Path) -> Generator[Demo]:
    with demo_folder(tmp_path) as made:
        yield made


@pytest.fixture
def real_servers() -> None:
    """Postgres and Valkey can be started here."""
    for server in (EmbeddedPostgres, EmbeddedRedis):
        if not (found := server.available()):
            servers.unavailable(ServerUnavailableError(found.reason))


@pytest.mark.usefixtures("real_servers")
def test_on_the_real_stack_a_dead_workers_run_is_taken_over(demo: Demo) -> None:
    """The interrupted call is repeated under its key by another worker, and the report holds what was measured."""
    summary = demo.summary()
    assert (summary["store"], summary["status"], summary["flower"]) == ("postgres", "completed", True)
    assert summary["killed"] in summary["workers"]
    assert summary["takeovers"]
    for takeover in summary["takeovers"]:
        assert takeover["dead_worker"] == summary["killed"]
        assert takeover["worker"] in set(summary["workers"]) - {summary["killed"]}
        if takeover["in_the_middle_of"] != "model":
            assert takeover["key"].startswith(takeover["run_id"])
            assert takeover["attempt"] == 2
    budget = summary["budget_tokens"]
    assert 0 < budget["spent"] < budget["limit"]
    assert budget["held"] == 0
    report = demo.report.read_text()
    assert summary["report"] == str(demo.report)
    assert "59 lines, 14 functions, 7 classes, 14 branches" in report
    assert "| `src/part0.py` | 8 | 2 | 1 | 2 | 25 % | `two`, 3 lines |" in report
    assert "| `src/notes.txt` | 3 | – | – | – | – | – |" in report


def test_on_sqlite_plain_workers_do_the_same(demo: Demo) -> None:
    """No server at all: the takeover and the report are the same."""
    summary = demo.summary("--sqlite", "--workers", "2", "--out", "other.md")
    assert (summary["store"], summary["status"], summary["flower"]) == ("sqlite", "completed", False)
    assert {takeover["dead_worker"] for takeover in summary["takeovers"]} == {summary["killed"]}
    assert "59 lines, 14 functions" in (demo.folder / "other.md").read_text()
    assert not demo.report.exists()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_person_at_a_terminal_is_asked(demo: Demo, answer: str) -> None:
    """The picture is drawn, the question waits, and the report is there exactly if the answer was yes."""
    said, code = _at_terminal(demo, answer, "--sqlite", "--workers", "1", "--limit", "2")
    assert code == 0, said
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    assert "✓ merge" in said
    assert "write_report wants to write ./deuz-report.md" in said
    assert demo.report.exists() == (answer == "y")
    demo.assert_nothing_left()


@pytest.mark.usefixtures("real_servers")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_half_way_leaves_nothing_behind(demo: Demo, number: signal.Signals, code: int) -> None:
    """Servers, workers and their folders are gone before the demo itself is, and no report was written."""
    process = demo.start("--no-flower", "--workers", "2")
    read_until(process, "SIGKILL")
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "Traceback" not in said
    demo.assert_nothing_left()
    assert not demo.report.exists()


def test_without_servers_the_demo_says_so_and_uses_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the wheels are missing the same swarm runs, and one line gives the reason."""
    monkeypatch.setattr(EmbeddedPostgres, "available", lambda: Availability(False, "no Postgres for this platform"))
    monkeypatch.delenv("DEUZ_DATABASE_URL", raising=False)
    (tmp_path / "a.py").write_text("x = 1")
    assert run(["demo", str(tmp_path), "--out", str(tmp_path / "report.md"), "--workers", "1"]) == Exit.OK
    said = capsys.readouterr().out
    assert "SQLite and plain worker processes (no Postgres for this platform)" in said
    assert "1 lines, 0 functions" in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("real_servers")
def test_a_killed_demo_takes_its_pool_along(demo: Demo) -> None:
    """SIGKILL gives the demo no chance to tidy up; all its processes and folders vanish nevertheless."""
    process = demo.start("--workers", "2")
    read_until(process, "running")
    assert any("tethered worker" in command for command in demo.processes())
    process.kill()
    process.communicate(timeout=60)
    wait_until(demo.is_gone, "processes and folders are gone")


def test_servers_of_the_environment_are_used(demo: Demo, postgres_dsn: str, redis_url: str) -> None:
    """The schema is made there, the swarm stays there, and none is started."""
    summary = demo.summary("--no-flower", "--workers", "1", DEUZ_DATABASE_URL=postgres_dsn, DEUZ_REDIS_URL=redis_url)
    app = Deuz(settings=Settings(database_url=postgres_dsn, redis_url=redis_url))
    try:
        assert app.swarm_handle(summary["run_id"], summary["scope"]).status() == "completed"
    finally:
        app.close()


def test_a_kept_pool_stays_until_it_is_interrupted(demo: Demo) -> None:
    """The addresses are printed, the workers are there, and Ctrl-C is the usual end."""
    process = demo.start("--sqlite", "--workers", "2", "--no-kill", "--keep", "--json")
    kept = json.loads(read_until(process, '"kept"').splitlines()[-1])["kept"]
    assert kept["DEUZ_DATABASE_URL"].startswith("sqlite:///")
    assert sum("tethered worker" in command for command in demo.processes()) == 2
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    demo.assert_nothing_left()


def test_a_real_model_is_asked_over_http(demo: Demo) -> None:
    """Its words make the report, its key reaches it from the environment and appears nowhere."""
    with ModelServer(review_server.answer) as server:
        summary = demo.summary(
            "--sqlite", "--workers", "1", "--model", "openai:any", "--base-url", server.base_url, REVIEW_API_KEY="secret-key"
        )
        headers = {request.headers["authorization"] for request in server.requests}
    assert summary["model"] == "openai:any"
    assert headers == {"Bearer secret-key"}
    report = demo.report.read_text()
    assert report.startswith("# By a model\n\n59 lines\n")
    assert "secret-key" not in report + str(summary)


def test_a_model_that_refuses_ends_the_demo_with_its_reason(demo: Demo) -> None:
    """Exit code 1, the failed task and why; nothing is written and nothing left."""
    with ModelServer([]) as server:
        process = demo.start("--sqlite", "--workers", "1", "--model", "openai:any", "--base-url", server.base_url)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert "failed  plan" in said
    assert "not written" in said
    assert not demo.report.exists()
    demo.assert_nothing_left()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing",), "there is no 'missing'"),
        (("--base-url", "http://localhost"), "say which with --model"),
        (("--model", "nobody:x"), "no model is called 'nobody:x'"),
        (("--out", "no/such/report.md"), "correct --out"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """Exit code 2 and one line; no process was started."""
    (tmp_path / "a.py").write_text("x = 1")
    assert run(["demo", str(tmp_path), *arguments]) == Exit.USAGE
    said, errors = capsys.readouterr()
    assert not said
    assert message in errors
    assert len(errors.splitlines()) == 1


def _at_terminal(demo: Demo, answer: str, *arguments: str) -> tuple[str, int]:
    """What a terminal of 80 by 24 got, and the exit code."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = demo.command(*arguments)
    pid = os.posix_spawn(
        "/usr/bin/env",
        ["env", "-C", str(demo.folder), *command],
        demo.environment(),
        file_actions=[(os.POSIX_SPAWN_DUP2, child, number) for number in (0, 1, 2)],
        setsid=True,
    )
    os.close(child)
    said = b""
    asked = False
    while True:
        try:
            piece = os.read(parent, 65_536)
        except OSError:  # what Linux answers once the other side is closed
            break
        if not piece:
            break
        said += piece
        if b"[y/n]" in said and not asked:
            asked = True
            os.write(parent, f"{answer}\n".encode())
    os.close(parent)
    return said.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
