"""What binds an answer to its call, and when the id of a call alone is enough."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from deuz_workers import Approval, ConfigurationError
from deuz_workers.core.bare_id import names_one_call
from deuz_workers.core.change import ItemRow
from deuz_workers.core.events import Resumed, Suspended
from deuz_workers.core.history import History
from deuz_workers.core.pending_item import CallBinding, item_of_call, read_call_item
from deuz_workers.core.run import Run
from tests.core.runs import after, call, opened, queued, ran, replied, stored

BINDING = CallBinding("approval", "r", 3, "c1", "pay", {"to": "ann", "amount": 5})


@pytest.mark.spec("APR-005")
def test_the_id_of_a_request_is_the_call_and_a_digest() -> None:
    """`<call>@<16 hex digits>`; the order of the arguments does not count."""
    assert re.fullmatch(r"c1@[0-9a-f]{16}", BINDING.item_id)
    assert replace(BINDING, arguments={"amount": 5, "to": "ann"}).item_id == BINDING.item_id


@pytest.mark.spec("APR-005")
@pytest.mark.parametrize(
    "changed",
    [{"run_id": "s"}, {"step": 4}, {"call_id": "c2"}, {"tool": "refund"}, {"arguments": {"to": "ann", "amount": 6}}],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_an_approval_is_bound_to_changes_its_id(changed: dict[str, object]) -> None:
    """Run, step, call, tool and arguments are all in the digest."""
    other = replace(BINDING, **changed)
    assert other.item_id.rpartition("@")[2] != BINDING.item_id.rpartition("@")[2]


def test_a_clients_item_has_another_id_than_the_approval_of_the_same_call() -> None:
    """So that both may be open at once, and neither answers the other."""
    assert replace(BINDING, kind="client_tool").item_id != BINDING.item_id


def test_an_item_reads_back_as_it_was_made() -> None:
    """The call, and who has to approve it; times stand in columns of their own."""
    terms = Approval(people=("ann", "bob"), needed=2, assignee="ann", escalate_to="cid", expires_in_ms=7, remind_in_ms=5)
    row = item_of_call(BINDING, terms)
    assert (row.item_id, row.kind, row.digest) == (BINDING.item_id, "approval", BINDING.digest)
    assert (row.expires_in_ms, row.remind_in_ms, row.escalate_in_ms) == (7, 5, None)
    item = read_call_item(row)
    assert item is not None
    assert item.binding == BINDING
    assert item.approval == replace(terms, expires_in_ms=None, remind_in_ms=None)
    assert read_call_item(ItemRow("x", "deferral", "{}")) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"needed": 0},
        {"people": ("ann",), "needed": 2},
        {"people": ("ann", "ann")},
        {"expires_in_ms": 0},
        {"expires_in_ms": 10**15},
    ],
)
def test_terms_that_nobody_could_fulfil_are_refused(wrong: dict[str, object]) -> None:
    """More people than there are, the same twice, no time at all, a time that no calendar has."""
    with pytest.raises(ConfigurationError):
        Approval(**wrong)  # pyright: ignore[reportArgumentType]


def asked(run: Run, call_id: str = "c1") -> Run:
    """The run after one turn whose gated call was asked for, denied by nobody, and answered."""
    run = stored(after(run, opened(), replied(call(call_id))))
    waiting = stored(after(run, Suspended((ItemRow(f"{call_id}@0", "approval", "{}", "0"),), (call_id,))))
    from deuz_workers.core.events import TurnAnswered

    return stored(after(waiting, Resumed({call_id: {"approved": True}}, 1), *ran(call_id), TurnAnswered({call_id: "3"})))


@pytest.mark.spec("APR-007")
def test_an_id_names_one_call_while_the_run_used_it_once() -> None:
    """One occurrence and one request: yes. Two of either: no."""
    once = asked(queued())
    assert names_one_call(once, "c1")
    assert not names_one_call(once, "c2")
    assert not names_one_call(asked(once), "c1")
    counted = replace(once.envelope.checkpoint, approval_request_counts={"c1": 2})
    assert not names_one_call(replace(once, envelope=replace(once.envelope, checkpoint=counted)), "c1")


def test_requests_are_counted_in_the_record_so_a_shorter_history_does_not_help() -> None:
    """Two turns asked under one id; with the first turn cut away and the record read anew, the id still names no one call."""
    run = asked(asked(queued()))
    assert run.envelope.checkpoint.approval_request_counts == {"c1": 2}
    cut = replace(run, history=History([message for place, message in enumerate(run.history) if place not in (1, 2)]))
    assert sum(len(message.tool_uses) for message in cut.history) == 1
    assert not names_one_call(cut, "c1")
