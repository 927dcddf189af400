"""Webhooks on the command line."""

from __future__ import annotations

import pytest

from deuz_workers.cli.exits import Exit
from tests.cli.conftest import APP, Deuz

MASTER = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def hooks(deuz: Deuz, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Deuz:
    """A database, a secret, and a network of its own that endpoints may be in."""
    monkeypatch.setenv("DEUZ_WEBHOOK_SECRET", MASTER)
    monkeypatch.setenv("DEUZ_EGRESS_ALLOW", "127.0.0.1, hooks.internal")
    assert deuz("run", "greeter", "hi", "--app", APP, "--in-process").code == Exit.OK
    return deuz


def test_an_endpoint_is_added_listed_and_removed(hooks: Deuz) -> None:
    """Its secret is shown when it is added, and in no list."""
    made = hooks("webhooks", "add", "http://127.0.0.1:1/x", "--event", "run.failed", "--scope", "*", "--json").document
    assert made["secret"].startswith("whsec_")
    listed = hooks("webhooks", "list", "--json")
    [webhook] = listed.document["webhooks"]
    assert (webhook["webhook_id"], webhook["scope"], webhook["events"]) == (made["webhook_id"], "*", ["run.failed"])
    assert made["secret"] not in listed.out
    shown = hooks("webhooks", "list").out
    assert "good" in shown
    assert "failed" in shown
    assert hooks("webhooks", "list", "--scope", "blue").out.startswith("no webhooks")
    assert hooks("webhooks", "replay", made["webhook_id"], "--since", "2d", "--json").document["deliveries"] == 0
    assert hooks("webhooks", "enable", made["webhook_id"]).code == Exit.OK
    assert hooks("webhooks", "remove", made["webhook_id"]).code == Exit.OK
    for command in ("remove", "enable", "replay"):
        assert hooks("webhooks", command, made["webhook_id"]).code == Exit.USAGE


def test_the_doctor_says_when_endpoints_are_told_nothing(hooks: Deuz, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a secret, and what to set; otherwise how many there are."""

    def found() -> list[dict[str, str]]:
        return [one for one in hooks("doctor", "--json").document["findings"] if one["subject"] == "webhooks"]

    assert found() == []
    assert hooks("webhooks", "add", "http://127.0.0.1:1/x").code == Exit.OK
    assert [one["level"] for one in found()] == ["ok"]
    monkeypatch.delenv("DEUZ_WEBHOOK_SECRET")
    [warned] = found()
    assert (warned["level"], "DEUZ_WEBHOOK_SECRET" in warned["fix"]) == ("warning", True)


def test_what_must_not_be_added_is_refused(hooks: Deuz, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private addresses, unknown events; without a secret nothing at all, and it says what to set."""
    assert hooks("webhooks", "add", "https://10.0.0.1/x").code != Exit.OK
    assert hooks("webhooks", "add", "http://127.0.0.1/x", "--event", "run.imagined").code == Exit.USAGE
    monkeypatch.delenv("DEUZ_WEBHOOK_SECRET")
    refused = hooks("webhooks", "add", "http://127.0.0.1/x")
    assert refused.code == Exit.USAGE
    assert "DEUZ_WEBHOOK_SECRET" in refused.err
