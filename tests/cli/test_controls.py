"""Brakes, keys and rates on the command line."""

from __future__ import annotations

import pytest

from deuz_workers.cli.exits import Exit
from tests.cli.conftest import APP, Deuz


@pytest.fixture
def stored(deuz: Deuz, sqlite_url: str) -> Deuz:
    """A database that holds one run, which waits."""
    assert deuz("run", "greeter", "hi", "--app", APP, "--no-wait", "--run-id", "r", "--json").code == Exit.OK
    return deuz


def test_a_brake_is_set_shown_and_lifted(stored: Deuz) -> None:
    """With who did it and why; the run that it is about shows it."""
    deuz = stored
    assert deuz("brake", "list", "--json").document == {"brakes": [], "acts": []}
    said = deuz("brake", "set", "agent", "greeter", "--reason", "too loud", "--by", "ann", "--json").document
    assert said == {"brake": {"kind": "agent", "name": "greeter", "reason": "too loud", "actor": "ann"}}
    [brake] = deuz("brake", "list", "--json").document["brakes"]
    assert (brake["kind"], brake["name"], brake["reason"], brake["actor"]) == ("agent", "greeter", "too loud", "ann")
    assert deuz("runs", "show", "r", "--json").document["braked"] == [brake]
    shown = deuz("runs", "show", "r").out
    assert ("braked" in shown, "too loud" in shown, "by ann" in shown) == (True, True, True)
    assert "too loud" in deuz("brake", "list").out
    assert deuz("brake", "lift", "agent", "greeter", "--by", "bob", "--json").document["lifted"] is True
    assert deuz("brake", "lift", "agent", "greeter", "--json").document["lifted"] is False
    acts = deuz("brake", "list", "--acts", "10", "--json").document["acts"]
    assert [(act["act"], act["actor"]) for act in acts] == [("lifted", "bob"), ("set", "ann")]
    assert deuz("runs", "show", "r", "--json").document["braked"] == []


def test_keys_are_limited_and_listed(stored: Deuz) -> None:
    """Slots and rate of a key of a tenant; what is not given stays."""
    deuz = stored
    assert deuz("keys", "list", "--json").document == {"keys": []}
    assert deuz("keys", "set", "crm", "--slots", "3", "--scope", "acme").code == Exit.OK
    assert deuz("keys", "set", "crm", "--calls-per-minute", "60", "--scope", "acme").code == Exit.OK
    [key] = deuz("keys", "list", "--json").document["keys"]
    assert key == {
        "scope": "acme",
        "key": "crm",
        "slots": 3,
        "used": 0,
        "waiting": 0,
        "calls_per_minute": 60,
        "tokens_per_minute": None,
    }
    assert "crm" in deuz("keys", "list").out
    assert deuz("keys", "list", "--scope", "other", "--json").document == {"keys": []}
    assert deuz("keys", "set", "crm", "--no-rate", "--scope", "acme").code == Exit.OK
    assert "calls_per_minute" not in deuz("keys", "list", "--json").document["keys"][0]
    for wrong in ([], ["--no-rate", "--calls-per-minute", "1"], ["--slots", "-1"]):
        assert deuz("keys", "set", "crm", *wrong).code == Exit.USAGE


def test_tools_and_models_have_rates(stored: Deuz) -> None:
    """For the whole pool; taken away by name."""
    deuz = stored
    assert deuz("rates", "list").out.startswith("no tool")
    assert deuz("rates", "set", "tool", "pay", "--calls-per-minute", "6").code == Exit.OK
    assert deuz("rates", "set", "model", "openai:x", "--tokens-per-minute", "60000").code == Exit.OK
    listed = deuz("rates", "list", "--json").document["rates"]
    assert [(rate["kind"], rate["calls_per_minute"], rate["tokens_per_minute"]) for rate in listed] == [
        ("model", None, 60_000),
        ("tool", 6, None),
    ]
    assert "60,000" in deuz("rates", "list").out
    assert deuz("rates", "set", "tool", "pay", "--at-a-time", "2").code == Exit.OK
    assert deuz("rates", "list", "--json").document["rates"][1]["at_a_time"] == 2
    assert deuz("rates", "set", "tool", "pay", "--no-rate").code == Exit.OK
    assert len(deuz("rates", "list", "--json").document["rates"]) == 1
    for wrong in (["tool", "pay"], ["key", "crm", "--calls-per-minute", "1"], ["tool", "pay", "--tokens-per-minute", "1"]):
        assert deuz("rates", "set", *wrong).code == Exit.USAGE


def test_what_is_no_brake_is_refused(stored: Deuz) -> None:
    """A kind that is none."""
    refused = stored("brake", "set", "planet", "earth")
    assert (refused.code, "scope, agent, tool, model, queue" in refused.err) == (Exit.USAGE, True)
