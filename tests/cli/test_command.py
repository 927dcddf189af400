"""How commands end: exit codes, one line of error, JSON and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deuz_workers.cli.exits import MEANINGS, Exit
from tests.cli.conftest import APP, Deuz

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0


def test_the_help_names_every_exit_code(deuz: Deuz) -> None:
    """Whoever writes a script finds them where the commands are."""
    said = deuz("--help")
    assert said.code == Exit.OK
    assert all(f"{int(code)} {meaning}" in said.out for code, meaning in MEANINGS.items())


def test_the_page_names_every_exit_code_and_command(deuz: Deuz) -> None:
    """`docs/cli.md` says what the help says."""
    page = (ROOT / "docs/cli.md").read_text()
    assert all(f"| {int(code)} | {meaning} |" in page for code, meaning in MEANINGS.items())
    commands = ("demo", "worker", "run", "runs", "swarm", "db", "doctor")
    assert all(f"`deuz {command}" in page for command in commands)


def test_help_imports_none_of_what_commands_work_with() -> None:
    """The application, the drivers and Celery are imported by the command that needs them."""
    code = (
        "import sys\nfrom deuz_workers.cli.command import run\nrun(['--help'])\n"
        "heavy = {'celery', 'kombu', 'redis', 'psycopg', 'pydantic', 'httpx', 'deuz_workers.app.deuz'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"


def test_the_version_is_told(deuz: Deuz) -> None:
    """Of the installed package."""
    assert deuz("--version").out.startswith("deuz_workers ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs", "show", "nothing"), "there is no run 'nothing'"),
        (("runs", "list", "--status", "odd"), "--status is one of queued"),
        (("runs", "list", "--tag", "no-value"), "--tag takes key=value"),
        (("worker",), "pass --app MODULE:ATTR"),
        (("worker", "--app", "no_such_module:app"), "no module 'no_such_module'"),
        (("run", "greter", "Hi", "--app", APP, "--in-process"), "did you mean 'greeter'?"),
        (("run", "greeter", "Hi", "--app", APP, "--in-process", "--no-wait"), "leave out --queue"),
        (("run", "greeter", "Hi", "--budget-tokens", "0"), "greater than or equal to 1"),
        (("swarm", "run", "tests.cli.agents:app"), "not a Swarm"),
        (("swarm", "run", "no-swarm"), "names no swarm"),
        (("swarm", "show", "nothing"), "there is no run 'nothing'"),
        (("swarm", "run", "tests.cli.agents:nope"), "the swarms there are tests.cli.agents:pair"),
        (("run", "greeter", " ", "--app", APP, "--no-wait"), "the prompt is empty"),
        (("run", "greeter", "Hi", "--app", APP, "--no-wait", "--run-id", "a b"), "a run id cannot be 'a b'"),
        (("run", "greeter", "Hi", "--app", APP, "--no-wait", "--run-id", ""), "a run id cannot be ''"),
        (("run", "greeter", "Hi", "--app", APP, "--no-wait", "--budget-usd", "1"), "no price is known"),
        (
            ("run", "nobody", "Hi", "--app", APP),
            "known are asker, billing, greeter, moved, payer, refused, sender, sleeper, triage. Agents",
        ),
        (("worker", "--app", "tests.cli.agents:send"), "is a "),
        (("nonsense",), "nonsense"),
    ],
)
@pytest.mark.usefixtures("sqlite_url")
def test_a_mistake_ends_with_2_and_its_name(deuz: Deuz, arguments: tuple[str, ...], message: str) -> None:
    """People read it on stderr, without a traceback; with --json the record is all that stdout holds."""
    deuz("db", "migrate")
    said = deuz(*arguments)
    assert (said.code, said.out) == (Exit.USAGE, "")
    assert message in said.err
    assert "Traceback" not in said.err
    if arguments[0] != "worker":
        record = deuz(*arguments, "--json")
        assert (record.code, record.err) == (Exit.USAGE, "")
        assert message in record.document["error"]["message"]
        assert record.document["error"]["code"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "list"),
        ("runs", "show", "r"),
        ("runs", "watch", "r"),
        ("swarm", "show", "s"),
        ("doctor",),
        ("runs", "retry", "r"),
    ],
)
def test_looking_makes_no_file(deuz: Deuz, sqlite_url: str, arguments: tuple[str, ...]) -> None:
    """The file, the setting and the way out are named; doctor finds the same."""
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    said = deuz(*arguments)
    assert list(file.parent.iterdir()) == []
    assert str(file) in said.err + said.out
    assert "DEUZ_DATABASE_URL" in said.err + said.out
    if arguments != ("doctor",):
        assert said.code == Exit.USAGE
        assert deuz(*arguments, "--json").document["error"]["code"] == "no_database"


def test_a_mistyped_variable_is_told(deuz: Deuz, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line on stderr from any command, and a finding of doctor's."""
    monkeypatch.setenv("DEUZ_DATABASE_UR", "postgresql://someone:secret@host/x")
    assert deuz("db", "migrate").err.count("DEUZ_DATABASE_URL?") == 1
    said = deuz("doctor", "--json")
    [finding] = [finding for finding in said.document["findings"] if finding["subject"] == "settings"]
    assert (finding["level"], "DEUZ_DATABASE_URL" in finding["fix"]) == ("warning", True)
    assert "secret" not in said.out + said.err


def test_what_the_module_of_the_user_raises_is_told_with_its_own_lines(
    deuz: Deuz, own_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Type, message and the user's frames; no traceback, none of ours or of Python's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_shop.py").write_text("def price():\n    return {}['rate']\n\n\nprice()\n")
    said = deuz("runs", "list", "--app", "broken_shop:app")
    assert (said.code, said.out) == (Exit.USAGE, "")
    assert "module_failed" in said.err
    assert "KeyError: 'rate' (broken_shop.py:5 in <module>: price(); broken_shop.py:2 in price" in said.err
    assert "importlib" not in said.err
    error = deuz("runs", "list", "--app", "broken_shop:app", "--json").document["error"]
    assert (error["code"], error["error"]) == ("module_failed", "KeyError")


def test_a_server_that_is_away_ends_with_4(deuz: Deuz, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code and address in one line, the account in none."""
    monkeypatch.setenv("DEUZ_DATABASE_URL", "postgresql://someone:secret@127.0.0.1:1/none")
    said = deuz("runs", "list")
    assert (said.code, said.out) == (Exit.UNREACHABLE, "")
    assert len(said.err.splitlines()) == 1
    assert "store_unavailable" in said.err
    assert "secret" not in said.err


def test_a_database_without_a_schema_is_told_apart_and_migrated(
    deuz: Deuz, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: exit code 2 and the way out. The migration says what it applied, a second one that nothing was missing."""
    monkeypatch.setenv("DEUZ_DATABASE_URL", postgres_dsn)
    before = deuz("runs", "list")
    assert before.code == Exit.USAGE
    assert "migration_missing" in before.err
    assert "deuz db migrate" in before.err
    applied = deuz("db", "migrate", "--json").document["applied"]
    assert applied == list(range(1, len(applied) + 1))
    assert deuz("db", "migrate", "--json").document["applied"] == []
    assert "up to date" in deuz("db", "migrate").out
    assert deuz("runs", "list").code == Exit.OK


@pytest.mark.processes
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_workers_execute_what_the_command_line_starts(
    kind: str, end: signal.Signals, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A worker process, a run that is waited for, a listing; either signal ends the worker with 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DEUZ_APP": APP, "DEUZ_SWEEP_INTERVAL_MS": "200"}
    if kind == "postgres":
        environment["DEUZ_DATABASE_URL"] = request.getfixturevalue("migrated_postgres_dsn")
        environment["DEUZ_REDIS_URL"] = request.getfixturevalue("redis_url")
    else:
        environment["DEUZ_DATABASE_URL"] = f"sqlite:///{tmp_path}/deuz.db"

    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "deuz_workers.cli", *arguments]

    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(command("worker", "-c", "4"), env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        ran = subprocess.run(
            command("run", "greeter", "Hi", "--json", "--timeout", "50"),
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == Exit.OK, ran.stdout + ran.stderr + (tmp_path / "worker.log").read_text()
        assert json.loads(ran.stdout)["output"] == "hello"
        # Its handlers are there once it has executed something, so from now on a signal drains.
        worker.send_signal(end)
        assert worker.wait(DEADLINE_S) == 0, (tmp_path / "worker.log").read_text()
        said = (tmp_path / "worker.log").read_text()
        assert "queues=default agents=9 reducers=2 database=" in said
        assert "postgres@" not in said
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.processes
def test_ctrl_c_ends_the_waiting_and_not_the_run(tmp_path: Path) -> None:
    """Exit code 130 without a traceback; the run is there, queued."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DEUZ_DATABASE_URL": f"sqlite:///{tmp_path}/deuz.db"}
    command = [sys.executable, "-u", "-m", "deuz_workers.cli", "run", "greeter", "Hi", "--run-id", "r1"]
    waiting = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    assert "Ctrl-C ends the waiting" in waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=DEADLINE_S)
    assert waiting.returncode == Exit.INTERRUPTED
    assert errors == ""
    listed = subprocess.run(
        [sys.executable, "-m", "deuz_workers.cli", "runs", "list", "--json"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [run["status"] for run in json.loads(listed.stdout)["runs"]] == ["queued"]


@pytest.mark.processes
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_in_process_names_the_run_and_how_to_go_on(as_json: bool, tmp_path: Path) -> None:
    """The id that was made for it, whichever way it is asked for; exit code 130."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DEUZ_DATABASE_URL": f"sqlite:///{tmp_path}/deuz.db"}
    command = [sys.executable, "-m", "deuz_workers.cli", "run", "sleeper", "Hi", "--app", APP, "--in-process"]
    command += ["--json"] if as_json else []
    running = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert "napping" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == Exit.INTERRUPTED
    if as_json:
        record = json.loads(said)
        assert record["interrupted"] is True
        assert record["run_id"] in record["go_on"]
    else:
        assert "the same command with --run-id " in said
