"""Tokens of the gateway on the command line."""

from __future__ import annotations

from deuz_workers.cli.exits import Exit
from tests.cli.conftest import APP, Deuz


def test_a_token_is_made_listed_and_revoked(deuz: Deuz, sqlite_url: str) -> None:
    """It is shown once; the list has whose it is, and not the token."""
    assert deuz("run", "greeter", "hi", "--app", APP, "--in-process").code == Exit.OK
    made = deuz("token", "create", "ann", "--scope", "blue", "--scope", "green", "--expires-in", "30d", "--json").document
    assert made["token"].startswith("deuz_")
    listed = deuz("token", "list", "--json")
    [token] = listed.document["tokens"]
    assert (token["principal"], token["scopes"], token["revoked_at_ms"]) == ("ann", ["blue", "green"], None)
    assert made["token"] not in listed.out
    shown = deuz("token", "list").out
    assert "good" in shown
    assert made["token"] not in shown
    assert deuz("token", "revoke", made["token_id"]).code == Exit.OK
    assert "revoked" in deuz("token", "list").out
    assert deuz("token", "revoke", "none").code == Exit.USAGE


def test_a_token_for_people_is_the_only_line(deuz: Deuz, sqlite_url: str) -> None:
    """So that a script may take it; one without a scope and one that is good for no time are not made."""
    assert deuz("run", "greeter", "hi", "--app", APP, "--in-process").code == Exit.OK
    assert deuz("token", "create", "ann", "--scope", "*").out.strip().startswith("deuz_")
    assert deuz("token", "create", "ann").code == Exit.USAGE
    assert deuz("token", "create", "ann", "--scope", "a", "--expires-in", "0s").code == Exit.USAGE
    assert deuz("token", "create", "ann", "--scope", "a", "--expires-in", "soon").code == Exit.USAGE
    assert len(deuz("token", "list", "--json").document["tokens"]) == 1
