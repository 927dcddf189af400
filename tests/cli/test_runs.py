"""Starting, listing, showing, watching and answering runs from the command line."""

from __future__ import annotations

import shlex
from importlib import import_module

import pytest

from deuz_workers.cli.exits import Exit
from tests.cli.conftest import APP, Deuz

pytestmark = pytest.mark.usefixtures("sqlite_url")


def test_a_run_in_process_ends_with_its_output(deuz: Deuz) -> None:
    """Exit code 0; people see the output, programs the whole result."""
    said = deuz("run", "greeter", "Hi", "--app", APP, "--in-process")
    assert (said.code, said.err) == (Exit.OK, "")
    assert "completed" in said.out
    assert said.out.endswith("hello\n")
    record = deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--json", "--run-id", "mine").document
    assert (record["run_id"], record["status"], record["output"], record["turns"]) == ("mine", "completed", "hello", 1)


def test_a_run_is_listed_shown_and_watched(deuz: Deuz) -> None:
    """Every view is there for people and as JSON, and needs no application."""
    deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--run-id", "r1", "--tag", "team=blue")
    deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--run-id", "r2")
    assert [run["run_id"] for run in deuz("runs", "list", "--json").document["runs"]] == ["r2", "r1"]
    assert [run["run_id"] for run in deuz("runs", "list", "--json", "--tag", "team=blue").document["runs"]] == ["r1"]
    assert "greeter" in deuz("runs", "list").out
    assert deuz("runs", "list", "--status", "failed").out == "no runs match\n"
    shown = deuz("runs", "show", "r1", "--json").document
    assert (shown["status"], shown["output"], shown["holder"], shown["pending"]) == ("completed", "hello", None, [])
    assert "hello" in deuz("runs", "show", "r1").out
    watched = deuz("runs", "watch", "r1", "--json")
    assert watched.code == Exit.OK
    assert [event["seq"] for event in watched.documents] == list(range(1, len(watched.documents) + 1))
    assert watched.documents[-1]["type"] == "run.completed"
    assert "run.completed" in deuz("runs", "watch", "r1").out


def test_a_run_that_failed_over_says_who_answered(deuz: Deuz) -> None:
    """And which model was given up, for what; programs get the record. Without a fail-over it is the agent's own."""
    deuz("run", "moved", "Hi", "--app", APP, "--in-process", "--run-id", "r1")
    said = deuz("runs", "show", "r1").out
    assert "mock:small" in next(line for line in said.splitlines() if "answered by" in line)
    assert "turn 1: mock:large to mock:small (server-error: away)" in said
    shown = deuz("runs", "show", "r1", "--json").document
    assert (shown["answered_by"], shown["models"]["selected"]["model"]) == ("mock:small", "small")
    deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--run-id", "r2")
    shown = deuz("runs", "show", "r2", "--json").document
    assert (shown["answered_by"], shown["models"]) == ("mock:scripted", None)


def test_a_run_that_was_handed_over_says_who_drives(deuz: Deuz) -> None:
    """And by which transfers it came to that; whose model answered. One that was not says nothing of it."""
    deuz("run", "triage", "Hi", "--app", APP, "--in-process", "--run-id", "r1")
    said = deuz("runs", "show", "r1").out
    assert "billing  (turn 1: triage to billing)" in next(line for line in said.splitlines() if "driven by" in line)
    shown = deuz("runs", "show", "r1", "--json").document
    assert (shown["agent"], shown["active_agent"], shown["answered_by"]) == ("triage", "billing", "mock:small")
    assert [each["to"] for each in shown["handoffs"]] == ["billing"]
    deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--run-id", "r2")
    assert "driven by" not in deuz("runs", "show", "r2").out


def test_a_run_that_workers_leave_alone_says_who_goes_on_with_it(deuz: Deuz) -> None:
    """What was executed in process and waits names the two ways on; a run of the pool, and one that has ended, do not."""
    deuz("run", "sender", "Hi", "--app", APP, "--in-process", "--run-id", "r1")
    shown = " ".join(deuz("runs", "show", "r1").out.split())
    assert "resume_agent" in shown
    assert "deuz worker -Q in-process" in shown
    deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--run-id", "r2")
    deuz("run", "greeter", "Hi", "--app", APP, "--no-wait", "--run-id", "r3")
    for run_id in ("r2", "r3"):
        assert deuz("runs", "show", run_id, "--json").document["left_alone"] is None


def test_a_missing_file_names_the_command_that_makes_it(deuz: Deuz) -> None:
    """As does a database without our tables."""
    said = deuz("runs", "list")
    assert said.code == Exit.USAGE
    assert "deuz db migrate" in " ".join(said.err.split())


def test_a_run_id_stays_on_one_line(deuz: Deuz, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe at 80 columns, however long the id is, so that it can be copied and searched for."""
    monkeypatch.setenv("COLUMNS", "80")
    run_id = "nightly:" + "0123456789" * 8
    deuz("run", "greeter", "Hi", "--app", APP, "--no-wait", "--run-id", run_id)
    lines = deuz("runs", "list").out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(run_id)
    assert "greeter" in lines[1]


def test_pages_follow_each_other(deuz: Deuz) -> None:
    """The cursor of a page begins the next one; the last page has none."""
    for number in range(3):
        deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--run-id", f"r{number}")
    first = deuz("runs", "list", "--json", "--limit", "2").document
    second = deuz("runs", "list", "--json", "--limit", "2", "--cursor", first["cursor"]).document
    assert [run["run_id"] for page in (first, second) for run in page["runs"]] == ["r2", "r1", "r0"]
    assert second["cursor"] is None


def test_a_failed_run_ends_with_1(deuz: Deuz) -> None:
    """The reason is shown; so it is by a later watch."""
    said = deuz("run", "refused", "Hi", "--app", APP, "--in-process", "--run-id", "r1")
    assert said.code == Exit.FAILED
    assert "ModelRequestError: the request is wrong" in said.out
    assert deuz("runs", "watch", "r1").code == Exit.FAILED
    assert "the request is wrong" in deuz("runs", "show", "r1").out


@pytest.mark.parametrize(("command", "verdict"), [("approve", True), ("deny", False)])
def test_a_call_that_waits_is_answered_once(deuz: Deuz, command: str, verdict: bool) -> None:
    """Exit code 3 while it waits; the only pending call needs no name; a second answer changes nothing."""
    said = deuz("run", "sender", "Hi", "--app", APP, "--in-process", "--run-id", "r1")
    assert said.code == Exit.WAITING
    [pending] = deuz("runs", "show", "r1", "--json").document["pending"]
    assert f"deuz runs approve r1 {pending['approval_id']}" in said.out
    assert '{"text": "hi"}' in said.out
    shown = deuz("runs", "show", "r1").out
    assert "waits for" in shown
    assert '{"text": "hi"}' in shown
    answered = deuz("runs", command, "r1", "--reason", "because", "--json").document
    assert (answered["item"], answered["stored"], answered["open_items"]) == (pending["approval_id"], True, 0)
    again = deuz("runs", "approve", "r1", pending["approval_id"], "--json").document
    assert again["stored"] is False
    assert again["winner"]["approved"] is verdict
    assert "stays" in deuz("runs", "deny", "r1", pending["approval_id"]).out


def commands(shown: str) -> list[list[str]]:
    """What `runs show` says that answers an item, as arguments of the command."""
    lines = [line.split("answer with", 1)[1] for line in shown.splitlines() if line.startswith("answer with")]
    return [shlex.split(line.split("   (")[0])[1:] for line in lines]


def test_show_prints_the_command_that_answers_a_client_call(deuz: Deuz) -> None:
    """As it stands, with the result in place of JSON; the run goes on with it."""
    assert deuz("run", "asker", "Hi", "--app", APP, "--in-process", "--run-id", "r1").code == Exit.WAITING
    shown = deuz("runs", "show", "r1")
    assert "ask  (item" in shown.out
    [command] = commands(shown.out)
    assert command[:3] == ["runs", "answer", "r1"]
    bad = deuz(*[part.replace("JSON", "no json") for part in command])
    assert (bad.code, "takes JSON" in bad.err) == (Exit.USAGE, True)
    said = deuz(*[part.replace("JSON", '"Ann"') for part in command], "--json").document
    assert (said["stored"], said["open_items"]) == (True, 0)
    again = deuz("runs", "answer", "r1", command[3], "--error", "nobody there")
    assert (again.code, "answered before" in again.out) == (Exit.FAILED, True)


def test_show_prints_the_command_that_approves_and_who_has(deuz: Deuz) -> None:
    """Two of two people, one of whom edits the arguments; strangers and a wrong item are refused with the part that differs."""
    assert deuz("run", "payer", "Hi", "--app", APP, "--in-process", "--run-id", "r1").code == Exit.WAITING
    shown = deuz("runs", "show", "r1").out
    assert "by ann, bob; needs 2" in shown
    approve, deny = commands(shown)
    assert (approve[1], deny[1], approve[3]) == ("approve", "deny", deny[3])
    stranger = deuz(*[part.replace("NAME", "eve") for part in approve])
    assert (stranger.code, "one of ann, bob" in stranger.err) == (Exit.USAGE, True)
    edit = ["--arguments", '{"to": "zoe", "amount": 4}']
    first = deuz(*[part.replace("NAME", "ann") for part in approve], *edit)
    assert "1 more person" in first.out
    assert "(ann did)" in deuz("runs", "show", "r1").out
    last = deuz(*[part.replace("NAME", "bob") for part in approve], *edit, "--json").document
    assert (last["stored"], last["open_items"], last["still_needed"]) == (True, 0, 0)
    late = deuz(*[part.replace("NAME", "bob") for part in deny])
    assert (late.code, "approved by bob before" in late.out) == (Exit.FAILED, True)


def test_an_answer_to_nothing_is_refused(deuz: Deuz) -> None:
    """Exit code 2, for a wrong item, for a run that waits for nothing, and for one that is not there."""
    deuz("run", "sender", "Hi", "--app", APP, "--in-process", "--run-id", "r1")
    deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--run-id", "r2")
    wrong = deuz("runs", "approve", "r1", "nothing")
    assert (wrong.code, wrong.out) == (Exit.USAGE, "")
    assert "unknown_item" in wrong.err
    assert "waits for no approval" in deuz("runs", "approve", "r2").err
    assert deuz("runs", "approve", "r3").code == Exit.USAGE


def test_a_cancel_is_asked_for(deuz: Deuz) -> None:
    """A run that waits takes it; one that has ended is left alone."""
    deuz("run", "sender", "Hi", "--app", APP, "--in-process", "--run-id", "r1")
    deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--run-id", "r2")
    assert deuz("runs", "cancel", "r1", "--reason", "[not] needed", "--json").document["accepted"] is True
    assert deuz("runs", "cancel", "r2", "--json").document["accepted"] is False
    assert "nothing was changed" in deuz("runs", "cancel", "r2").out


def test_a_started_run_goes_on_without_the_one_who_waited(deuz: Deuz) -> None:
    """Nobody executes it here: `--no-wait` ends with 0, a timeout with 3, and the run is queued."""
    started = deuz("run", "greeter", "Hi", "--no-wait", "--run-id", "r1", "--json")
    assert (started.code, started.document["status"]) == (Exit.OK, "queued")
    late = deuz("run", "greeter", "Hi", "--run-id", "r2", "--timeout", "0.05", "--json")
    assert late.code == Exit.WAITING
    assert late.document["error"]["code"] == "result_timeout"
    assert {run["status"] for run in deuz("runs", "list", "--json").document["runs"]} == {"queued"}


def test_a_run_that_nobody_begins_is_told_while_it_is_waited_for(deuz: Deuz, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr with its queue, in JSON too; it is told of no run that began, and the waiting ends as before."""
    monkeypatch.setattr(import_module("deuz_workers.cli.run"), "SILENCE_MS", 0)
    silent = deuz("run", "greeter", "Hi", "--run-id", "r1", "--queue", "slow", "--timeout", "1", "--json")
    assert (silent.code, silent.document["error"]["code"]) == (Exit.WAITING, "result_timeout")
    assert silent.err.count("no worker has begun run r1") == 1
    assert "deuz worker -Q slow" in silent.err
    deuz("run", "greeter", "Hi", "--app", APP, "--in-process", "--key", "k")
    assert deuz("run", "greeter", "Hi", "--key", "k", "--timeout", "1", "--json").err == ""


def test_a_key_gives_the_run_that_is_there(deuz: Deuz) -> None:
    """The same request under the same key is one run; another request is refused with 2."""
    first = deuz("run", "greeter", "Hi", "--no-wait", "--key", "k", "--json").document
    assert deuz("run", "greeter", "Hi", "--no-wait", "--key", "k", "--json").document == first
    other = deuz("run", "greeter", "Ho", "--no-wait", "--key", "k")
    assert other.code == Exit.USAGE
    assert "run_exists" in other.err


def test_swarms_run_and_are_shown(deuz: Deuz) -> None:
    """A completed swarm ends with 0 and its outputs, one that ended in part with 1."""
    said = deuz("swarm", "run", "tests.cli.agents:pair", "--app", APP, "--in-process", "--run-id", "s1", "--json")
    assert said.code == Exit.OK
    assert (said.document["status"], said.document["outputs"]) == ("completed", {"both": "hello hello"})
    shown = deuz("swarm", "show", "s1", "--json").document
    assert [(task["task_id"], task["status"]) for task in shown["tasks"]] == [
        ("a", "completed"),
        ("b", "completed"),
        ("both", "completed"),
    ]
    assert "greeter" in deuz("swarm", "show", "s1").out
    partial = deuz("swarm", "run", "tests.cli.agents:half", "--app", APP, "--in-process", "--run-id", "s2")
    assert partial.code == Exit.FAILED
    assert "partial" in partial.out
    assert "b ReducerError: ValueError: no result" in partial.out
    shown = deuz("swarm", "show", "s2")
    assert shown.code == Exit.FAILED
    assert "b ReducerError: ValueError: no result" in shown.out
    assert "no result" in deuz("swarm", "show", "s2", "--json").document["reasons"]["b"]
