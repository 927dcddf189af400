"""Which version the record of a run has: one table over what a run can hold, and what it cannot do to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from deuz_workers.core.change import ItemRow, NewChild
from deuz_workers.core.chat import RunChat
from deuz_workers.core.events import (
    CallCompleted,
    CallDelegated,
    CallExecuted,
    CallFailed,
    CallStarted,
    Finished,
    HandedOff,
    HistoryRewritten,
    ModelCallFailed,
    ModelFailedOver,
    Resumed,
    Suspended,
    TurnAnswered,
)
from deuz_workers.core.failover import ModelId
from deuz_workers.core.memory import MemoryScope
from deuz_workers.core.messages import user
from deuz_workers.core.run import Run, to_change
from deuz_workers.core.run_memory import RunMemory
from tests.core.runs import COMMIT, after, call, opened, queued, ran, replied, stored

CHAT = RunChat("c", "s")
ASKED = Suspended((ItemRow("i", "approval", "{}"),), ("c1",))
BOTH = Suspended((ItemRow("i", "approval", "{}"), ItemRow("j", "client_tool", "{}")), ("c1",))
APPROVED = Resumed({"c1": {"approved": True}})
BEGAN = CallStarted("c1", "add", False)
OVER = ModelFailedOver(1, 1, ModelId("p", "a"), ModelId("p", "b"), "no-connection", {"code": "x"}, "no")
AWAY = ModelCallFailed({"name": "ModelUnavailableError", "message": "away"}, "no", "no-connection", None)


def turn(*call_ids: str) -> Run:
    """The model asked for these calls, and none has begun."""
    return after(queued(), opened(), replied(*map(call, call_ids)))


def delegated() -> Run:
    """A run of its own does the first of two calls; nothing else is looked at, so it counts as running."""
    child, item = NewChild(UUID(int=8), "child", "b", "{}", ()), ItemRow("k", "child_run", "{}")
    return after(turn("c1", "c2"), CallDelegated("c1", "ask_b", child, item))


def approved(*, issued: bool, recorded: bool) -> Run:
    """The approved call has begun, in a record that says of it nothing else than what is asked for here."""
    run = after(turn("c1"), ASKED, APPROVED, BEGAN)
    counts = {"c1": 1} if issued else {}
    checkpoint = replace(run.envelope.checkpoint, taken_up=False, approval_request_counts=counts)
    verdicts = run.envelope.verdicts if recorded else {}
    return replace(run, envelope=replace(run.envelope, checkpoint=checkpoint, verdicts=verdicts))


def handed_off() -> Run:
    began = after(turn("c1"), CallStarted("c1", "transfer_to_b", True))
    return after(began, CallExecuted("c1", "to b"), HandedOff("c1", "b"), CallCompleted("c1"), TurnAnswered({"c1": "to b"}))


def failed() -> Run:
    """Its model was away, so the record says `retry`."""
    run = after(queued(), opened(), AWAY)
    assert run.envelope.retry is not None
    return run


def reconciled() -> Run:
    """Somebody said how the interrupted call ended, and the turn is answered."""
    return after(turn("c1"), BEGAN, CallExecuted("c1", 3, reconciled=True), CallCompleted("c1"), TurnAnswered({"c1": "3"}))


TABLE: dict[str, tuple[int, Callable[[], Run]]] = {
    # Fields that an older reader would ignore.
    "plain": (1, queued),
    "plain, with a call open": (1, lambda: after(queued(), opened())),
    "plain, ended": (1, lambda: after(queued(), opened(), replied("hi"), Finished("completed", output="hi", has_output=True))),
    "memory": (2, lambda: queued(memory=RunMemory(MemoryScope(user_id="ann")))),
    "chat": (2, lambda: queued(chat=CHAT)),
    "transcript": (2, lambda: after(queued(chat=CHAT), HistoryRewritten((user("x"),), 0))),
    "the same rewrite without a chat": (1, lambda: after(queued(), HistoryRewritten((user("x"),), 0))),
    "models": (2, lambda: after(queued(), opened(), OVER)),
    "handoffs": (2, handed_off),
    # Receipts under an open call.
    "no receipt": (1, lambda: turn("c1")),
    "only executing": (1, lambda: after(turn("c1", "c2"), BEGAN)),
    "only executed": (1, lambda: after(turn("c1", "c2"), BEGAN, CallExecuted("c1", 3))),
    "only completed": (1, lambda: after(turn("c1", "c2"), *ran("c1"))),
    "executing and completed": (1, lambda: after(turn("c1", "c2"), *ran("c2"), BEGAN)),
    "failed": (2, lambda: after(turn("c1", "c2"), BEGAN, CallFailed("c1", "x"))),
    "suspended": (2, delegated),
    "failed, and its turn is answered": (
        1,
        lambda: after(turn("c1"), BEGAN, CallFailed("c1", "x"), TurnAnswered({"c1": "x"})),
    ),
    # A turn that was taken up, with a result of a client missing.
    "taken up, nothing done": (2, lambda: after(turn("c1", "c2"), BOTH, APPROVED)),
    "taken up, the approved call completed, the client's result missing": (
        2,
        lambda: after(turn("c1", "c2"), BOTH, APPROVED, *ran("c1")),
    ),
    "taken up without a verdict": (
        2,
        lambda: after(turn("c1"), Suspended((ItemRow("j", "client_tool", "{}"),), ()), Resumed({})),
    ),
    # Approvals.
    "waiting for a verdict": (2, lambda: after(turn("c1"), ASKED)),
    "waiting for a client": (2, lambda: after(turn("c1"), Suspended((ItemRow("j", "client_tool", "{}"),), ()))),
    "a request over an open call, and nothing more": (2, lambda: approved(issued=True, recorded=False)),
    "a verdict over an open call, and nothing more": (2, lambda: approved(issued=False, recorded=True)),
    "neither of them": (1, lambda: approved(issued=False, recorded=False)),
    "a request over an open call": (2, lambda: after(turn("c1"), ASKED, APPROVED, BEGAN)),
    "a request over a call that completed and is not answered": (2, lambda: after(turn("c1"), ASKED, APPROVED, *ran("c1"))),
    "answered again": (1, lambda: after(turn("c1"), ASKED, APPROVED, *ran("c1"), TurnAnswered({"c1": "3"}))),
    "answered, with the next call open": (
        1,
        lambda: after(turn("c1"), ASKED, APPROVED, *ran("c1"), TurnAnswered({"c1": "3"}), opened()),
    ),
    # What is added without raising it.
    "retry": (1, failed),
    "reconciled": (1, reconciled),
}


@pytest.mark.spec("ENV-002")
@pytest.mark.parametrize("holds", TABLE)
def test_the_version_follows_what_the_record_holds(holds: str) -> None:
    """In the change that is committed, and still when it is read from its rows by somebody else."""
    version, made = TABLE[holds]
    run = made()
    assert to_change(run, COMMIT).version == version
    assert stored(run).record_version == version
