"""Parked runs on the command line: what is shown of them, and how they are freed."""

from __future__ import annotations

import asyncio
import json

import pytest

from deuz_workers import Agent, MockModel, Settings, tool
from deuz_workers import Deuz as Application
from deuz_workers.cli.exits import Exit
from deuz_workers.core.lost_commits import WENT_BACKWARDS, revision_after
from deuz_workers.core.messages import ToolResultPart
from deuz_workers.providers.script import call, calls
from deuz_workers.testing.crashing_store import ProcessDied
from tests.cli.conftest import Deuz

LEASE_TTL_MS = 1_000
"""Whoever takes a run over that died waits as long."""


class Bank:
    """An application whose payments are interrupted until it is mended."""

    def __init__(self, url: str) -> None:
        self.paid: list[str] = []
        self.is_mended = False
        self.model = MockModel([calls(call("pay", to="ann").with_id("a"), call("pay", to="bob").with_id("b")), "done"])
        self.settings = Settings(database_url=url, lease_ttl_ms=LEASE_TTL_MS)

    def app(self) -> Application:
        @tool
        async def pay(to: str) -> str:
            """Pay somebody."""
            self.paid.append(to)
            if not self.is_mended:
                raise ProcessDied
            return f"paid {to}"

        return Application([Agent("payer", model=self.model, tools=[pay])], settings=self.settings)

    def park(self, run_id: str) -> None:
        """A run that died in the middle of its calls, and waits for a word about them."""

        async def die() -> None:
            app = self.app()
            try:
                await app.aio.run_embedded("payer", "go", run_id=run_id)
            except ProcessDied:
                await asyncio.sleep(0)
            await app.aclose()

        async def take_over() -> None:
            app = self.app()
            assert (await app.aio.resume_embedded(run_id)).reason == "tool-reconciliation-required"
            await app.aclose()

        asyncio.run(die())
        asyncio.run(take_over())
        self.is_mended = True
        self.paid.clear()

    def go_on(self, run_id: str) -> str:
        """Its status after a process took it again."""

        async def resume() -> str:
            app = self.app()
            try:
                return (await app.aio.resume_embedded(run_id)).status
            finally:
                await app.aclose()

        return asyncio.run(resume())

    def quarantine(self, run_id: str) -> None:
        """A queued run that is left to a person, with evidence."""

        async def put_away() -> None:
            app = self.app()
            await app.aio.enqueue("payer", "go", run_id=run_id)
            head = await app.store.head("default", run_id)
            assert head is not None
            evidence = json.dumps({"found": "a lease that lapsed", "by": "host:7"})
            await app.store.record_unclean_end(head.rid, head.revision, 0, evidence)
            assert await app.store.park(head.rid, head.revision, "quarantine")
            await app.aclose()

        asyncio.run(put_away())


@pytest.fixture
def bank(sqlite_url: str) -> Bank:
    return Bank(sqlite_url)


def known_calls(bank: Bank) -> list[tuple[str, bool]]:
    """Results of tools that the model read."""
    parts = [part for message in bank.model.requests[-1].messages for part in message.parts]
    return [(part.text, part.is_error) for part in parts if isinstance(part, ToolResultPart)]


def test_unknown_effects_are_shown_with_the_way_out(deuz: Deuz, bank: Bank) -> None:
    """Call, tool, arguments and turn for people, all of it as JSON; a watch ends with 3 instead of hanging."""
    bank.park("r1")
    record = deuz("runs", "show", "r1", "--json").document
    assert (record["status"], record["parked"]) == ("suspended", "tool-reconciliation-required")
    assert [(effect["tool_call_id"], effect["tool_name"], effect["arguments"]) for effect in record["unknown_effects"]] == [
        ("a", "pay", {"to": "ann"}),
        ("b", "pay", {"to": "bob"}),
    ]
    shown = deuz("runs", "show", "r1").out
    assert 'pay  (call a, turn 1)  {"to": "ann"}' in shown
    a, b = (effect["effect_id"] for effect in record["unknown_effects"])
    assert f"deuz runs retry r1 --call {a} --call {b}" in shown
    assert f"deuz runs reconcile r1 --call {a} --output JSON --retry {b}" in shown
    assert [event["type"] for event in record["happened"]][-2:] == ["tool.started", "tool.started"]
    assert shown.count("tool.started") == 2
    watched = deuz("runs", "watch", "r1")
    assert watched.code == Exit.WAITING
    assert "parked: tool-reconciliation-required" in watched.out
    approved = deuz("runs", "approve", "r1")
    assert approved.code == Exit.USAGE
    assert "it is parked (tool-reconciliation-required)" in approved.err


def test_a_run_whose_database_lost_commits_says_so(deuz: Deuz, bank: Bank) -> None:
    """What was saved once, that nobody knows what followed, and which command frees it, its interrupted calls included."""
    bank.park("r1")

    async def lose() -> int:
        app = bank.app()
        head = await app.store.head("default", "r1")
        assert head is not None
        seen = head.revision + 4
        assert await app.store.park(head.rid, head.revision, WENT_BACKWARDS, as_revision=revision_after(seen))
        await app.aclose()
        return seen

    seen = asyncio.run(lose())
    shown = " ".join(deuz("runs", "show", "r1").out.split())
    assert "store-went-backwards" in shown
    assert f"revision {seen} of it was saved once" in shown
    assert "deuz runs retry r1 --call a@" in shown
    assert " --call b@" in shown
    assert "deuz runs cancel r1" in shown
    assert deuz("runs", "show", "r1", "--json").document["parked"] == WENT_BACKWARDS
    assert deuz("runs", "retry", "--parked", WENT_BACKWARDS, "--yes").code == 0
    assert bank.go_on("r1") == "completed"
    assert sorted(bank.paid) == ["ann", "bob"]


@pytest.mark.parametrize("reason", ["[not] needed", None])
def test_the_reason_of_a_cancel_is_shown(deuz: Deuz, bank: Bank, reason: str | None) -> None:
    """As it was given, to people and to programs; a cancel without one adds no line."""
    bank.park("r1")
    assert deuz("runs", "cancel", "r1", *(() if reason is None else ("--reason", reason))).code == 0
    assert bank.go_on("r1") == "stopped"
    shown = deuz("runs", "show", "r1", "--json").document
    assert (shown["status"], shown["reason"]) == ("stopped", "aborted")
    assert shown["stop_details"] == (None if reason is None else {"cancel_reason": reason})
    lines = deuz("runs", "show", "r1").out
    assert ("because" in lines, str(reason) in lines) == (reason is not None, reason is not None)


def test_interrupted_calls_run_again_when_they_are_retried(deuz: Deuz, bank: Bank) -> None:
    """All of them, or each by name; a set that leaves one open changes nothing, and so does a wrong name."""
    bank.park("r1")
    for wrong, words in ((("--call", "a"), "what becomes of 'b'"), (("--call", "x"), "'x' of run 'r1' was not interrupted")):
        refused = deuz("runs", "retry", "r1", *wrong)
        assert (refused.code, words in refused.err) == (Exit.USAGE, True), refused.err
    freed = deuz("runs", "retry", "r1", "--json").document["freed"]
    assert [(run["run_id"], run["calls"]) for run in freed] == [("r1", ["a", "b"])]
    assert bank.go_on("r1") == "completed"
    assert sorted(bank.paid) == ["ann", "bob"]
    late = deuz("runs", "retry", "r1", "--json")
    assert (late.code, late.document["error"]["code"]) == (Exit.USAGE, "not_parked")
    assert "completed, and only parked runs can be freed; enqueue it again" in late.document["error"]["message"]


def test_what_became_of_interrupted_calls_is_said(deuz: Deuz, bank: Bank) -> None:
    """One had its effect, another runs again; the model reads both."""
    bank.park("r1")
    alone = deuz("runs", "reconcile", "r1", "--call", "a", "--output", '"was paid"')
    assert (alone.code, "what becomes of 'b'" in alone.err) == (Exit.USAGE, True)
    assert "takes JSON" in deuz("runs", "reconcile", "r1", "--call", "a", "--output", "was paid").err
    assert "one of the two" in deuz("runs", "reconcile", "r1", "--call", "a").err
    said = deuz("runs", "reconcile", "r1", "--call", "a", "--output", '"was paid"', "--retry", "b")
    assert said.code == Exit.OK, said.err
    assert bank.go_on("r1") == "completed"
    assert bank.paid == ["bob"]
    assert known_calls(bank) == [("was paid", False), ("paid bob", False)]


def test_a_call_that_failed_is_told_to_the_model(deuz: Deuz, bank: Bank) -> None:
    """`--error` is its outcome."""
    bank.park("r1")
    said = deuz("runs", "reconcile", "r1", "--call", "a", "--error", "no money", "--also", 'b="was paid"')
    assert said.code == Exit.OK, said.err
    assert bank.go_on("r1") == "completed"
    assert known_calls(bank) == [("no money", True), ("was paid", False)]


def test_a_quarantined_run_shows_its_evidence_and_is_freed(deuz: Deuz, bank: Bank) -> None:
    """Number, time, what was found and by whom; a retry forgets them."""
    bank.is_mended = True
    bank.quarantine("r1")
    [end] = deuz("runs", "show", "r1", "--json").document["unclean_ends"]
    assert (end["number"], end["found"], end["by"], end["at_ms"] > 0) == (1, "a lease that lapsed", "host:7", True)
    shown = deuz("runs", "show", "r1").out
    assert "a lease that lapsed, found by host:7" in shown
    assert "deuz runs retry r1" in shown
    assert deuz("runs", "retry", "r1").code == Exit.OK
    record = deuz("runs", "show", "r1", "--json").document
    assert (record["status"], record["parked"], record["attempts"], record["unclean_ends"]) == ("queued", None, 0, [])


def test_all_runs_parked_for_a_reason_are_freed_together(deuz: Deuz, bank: Bank) -> None:
    """A count is shown and asked for; other reasons and other agents are left alone."""
    bank.is_mended = True
    for run_id in ("r1", "r2"):
        bank.quarantine(run_id)
    assert "0 runs" in deuz("runs", "retry", "--parked", "quarantine", "--agent", "other").out
    assert deuz("runs", "retry", "--parked", "tool-reconciliation-required", "--yes", "--json").document["freed"] == []
    refused = deuz("runs", "retry", "--parked", "quarantine", "--json")
    assert (refused.code, "2 runs would be freed" in refused.out) == (Exit.USAGE, True)
    freed = deuz("runs", "retry", "--parked", "quarantine", "--yes", "--json").document["freed"]
    assert sorted(run["run_id"] for run in freed) == ["r1", "r2"]


def test_one_of_several_that_cannot_be_freed_stops_no_other(deuz: Deuz, bank: Bank) -> None:
    """Exit code 1, and which one it was."""
    bank.quarantine("r1")
    said = deuz("runs", "retry", "none", "r1", "--json")
    assert said.code == Exit.FAILED
    assert [run["run_id"] for run in said.document["freed"]] == ["r1"]
    assert said.document["failed"]["none"]["code"] == "run_not_found"
    assert deuz("runs", "retry").code == Exit.USAGE
