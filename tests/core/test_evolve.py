"""Folding events: what is written, once, and what a later reader makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deuz_workers.core.call_ids import identify_calls
from deuz_workers.core.change import ItemRow, Settle
from deuz_workers.core.codec import decode
from deuz_workers.core.decide import decide
from deuz_workers.core.effects import Finish
from deuz_workers.core.events import (
    CallCompleted,
    CallExecuted,
    CallFailed,
    CallStarted,
    Finished,
    ModelCallFailed,
    ModelReplied,
    NotesFolded,
    Resumed,
    Suspended,
    TurnAnswered,
    Waited,
)
from deuz_workers.core.evolve import evolve
from deuz_workers.core.messages import ImagePart, Message, ReasoningPart, TextPart, ToolUsePart, user
from deuz_workers.core.run import to_change
from deuz_workers.core.states import ImpossibleTransition
from deuz_workers.core.usage import Usage
from tests.core.runs import COMMIT, after, call, opened, queued, ran, replied, settled, stored


def test_evolving_leaves_the_given_run_as_it_is() -> None:
    """Earlier snapshots stay what they were, whatever grows from them (MSG-004's kind)."""
    first = after(queued(), opened())
    texts = [message.text for message in first.history]
    one, other = after(first, replied("one")), after(first, replied("other"))
    assert [message.text for message in first.history] == texts
    assert (one.history[-1].text, other.history[-1].text) == ("one", "other")


@pytest.mark.spec("MSG-004")
def test_a_later_list_never_changes_a_stored_snapshot() -> None:
    """Mutating what iteration or slicing hands out does not reach the run."""
    run = after(queued(), opened(), replied("one"))
    handed = list(run.history)
    handed.clear()
    sliced = run.history[0:1]
    assert isinstance(sliced, list)
    sliced.clear()
    assert [message.text for message in run.history] == ["go", "one"]


def test_a_raw_value_is_stored_once() -> None:
    """The receipt holds it; the message of the turn refers to the receipt and carries no copy."""
    run = after(queued(), opened(), replied(call("c1")), CallStarted("c1", "add", False))
    run = after(settled(run), CallExecuted("c1", {"marker": "M" * 50}), CallCompleted("c1"), TurnAnswered({"c1": "text"}))
    change = to_change(run, COMMIT)
    assert [row.stage for row in change.receipts] == ["completed"]
    assert "M" * 50 in change.receipts[0].body
    assert "M" * 50 not in change.messages[0].body
    assert "text" not in change.messages[0].body.replace('"text"', "")


def test_a_reader_sees_the_text_that_the_live_run_had() -> None:
    """The reference resolves to the plain rendering of the value."""
    run = after(queued(), opened(), replied(call("c1")), *ran("c1", {"b": 2, "a": 1}), TurnAnswered({"c1": '{"b": 2, "a": 1}'}))
    assert stored(run).history[-1].tool_results[0].text == run.history[-1].tool_results[0].text


@pytest.mark.spec("MSG-005")
def test_bytes_of_an_image_survive_the_codec() -> None:
    """Through the rows of a commit and back."""
    picture = ImagePart("image/png", bytes(range(256)))
    run = after(queued(), opened(), ModelReplied(Message("assistant", (TextPart("see"), picture)), "stop", Usage(1, 1)))
    assert stored(run).history[-1].parts[1] == picture


def test_reasoning_survives_byte_for_byte() -> None:
    """Opaque provider data comes back equal."""
    thought = ReasoningPart("hm\x00\ud800", {"signature": b"\x00\xff", "n": 2**70})
    run = after(queued(), opened(), ModelReplied(Message("assistant", (thought,)), "stop", None))
    assert stored(run).history[-1].parts[0] == thought


@pytest.mark.spec("RCP-001")
def test_calls_of_a_turn_get_ids_that_no_other_call_of_the_turn_has() -> None:
    """Unique provider ids are kept; missing and repeated ones are replaced, the provider's kept beside."""
    parts = (call("a"), call(""), call("x"), call("x"), ToolUsePart("s4c2", "add", {}))
    ids = [(part.call_id, part.provider_call_id) for part in identify_calls(Message("assistant", parts), 4).tool_uses]
    assert ids == [("a", None), ("s4c2_", None), ("s4c3", "x"), ("s4c4", "x"), ("s4c2", None)]
    assert len({call_id for call_id, _ in ids}) == 5


@pytest.mark.spec("RCP-001")
@pytest.mark.parametrize(
    ("given", "echoed"),
    [("a\0b", None), ("a\ud800", None), ("a\nb", None), ("x" * 129, "x" * 129), ("x" * 12_000, "x" * 12_000), ("ü", "ü")],
)
def test_an_id_that_is_no_plain_text_is_replaced(given: str, echoed: str | None) -> None:
    """It stands in rows, indexes and command lines. What survives the way back is echoed: some servers hide state in ids."""
    made = identify_calls(Message("assistant", (call("a"), call(given))), 2)
    assert identify_calls(made, 2) == made
    assert [(part.call_id, part.provider_call_id) for part in made.tool_uses] == [("a", None), ("s2c2", echoed)]


@pytest.mark.spec("RCP-001")
def test_the_longest_plain_id_is_kept() -> None:
    """128 characters, any that can be printed."""
    given = "call:~ " + "x" * 121
    assert identify_calls(Message("assistant", (call(given),)), 2).tool_uses[0].call_id == given


def test_an_id_that_comes_back_in_a_later_turn_has_a_receipt_of_its_own() -> None:
    """Receipts are keyed by turn and id, so an earlier result is never picked up."""
    run = after(queued(), opened(), replied(call("c")), *ran("c", 1), TurnAnswered({"c": "1"}), opened(), replied(call("c")))
    assert run.receipts == {}
    run = after(run, *ran("c", 2))
    rows = to_change(run, COMMIT).receipts
    assert [(row.step, row.call_id, row.stage) for row in rows] == [(1, "c", "completed"), (2, "c", "completed")]


@pytest.mark.parametrize(
    ("ending", "outcome", "tokens"),
    [
        (replied("done"), "settled", 15),
        (ModelReplied(Message("assistant", (TextPart("x"),)), "stop", None), "unknown", 0),
        (ModelCallFailed({"code": "x"}, "no", None, None), "released", 0),
        (ModelCallFailed({"code": "x"}, "unknown", "server-error", 5), "unknown", 0),
    ],
)
def test_every_end_of_a_call_settles_its_reservation(ending: ModelReplied, outcome: str, tokens: int) -> None:
    """In the commit that records it, with the request id that reserved."""
    run = settled(after(queued(scopes=("run:1", "run:2")), opened()))
    settle = to_change(after(run, ending), COMMIT).settle
    used = ending.usage if outcome == "settled" else Usage()
    assert settle == (Settle("q1", ("run:1", "run:2"), outcome, tokens, 0, used or Usage()),)  # pyright: ignore[reportArgumentType]


def test_an_abandoned_call_is_settled_as_unknown_by_whoever_calls_again() -> None:
    """The takeover's first commit reserves anew and turns the dead call's hold into `unknown`."""
    run = stored(after(queued(scopes=("s",)), opened()))
    change = to_change(after(run, opened(2)), COMMIT)
    assert change.reserve is not None
    assert change.reserve.request_id == "q2"
    assert [(settle.request_id, settle.outcome) for settle in change.settle] == [("q1", "unknown")]


def test_a_journal_is_dense_and_holds_no_content() -> None:
    """Places follow one another over commits; prompts, arguments and results stay out."""
    secret = "S3CRET"
    run = after(queued(), opened(), replied(call("c1", key=secret), secret), CallStarted("c1", "add", False))
    one = to_change(run, COMMIT)
    run = after(settled(run), CallExecuted("c1", secret), CallCompleted("c1"), TurnAnswered({"c1": secret}))
    two = to_change(run, COMMIT)
    assert one.journal_seq == 0
    assert two.journal_seq == len(one.journal)
    assert secret not in "".join(one.journal + two.journal)
    assert [record["type"] for record in map(decode, two.journal) if isinstance(record, dict)] == [
        "tool.completed",
        "turn.answered",
    ]


def test_a_refusal_and_a_cut_off_call_end_the_run_in_the_commit_of_the_reply() -> None:
    """RES-018's kind: neither is repaired, and no call of a cut-off turn is dispatched."""
    refused = after(queued(), opened(), ModelReplied(Message("assistant", (TextPart(""),)), "content_filter", Usage(1, 0)))
    assert (refused.envelope.status, refused.envelope.reason) == ("stopped", "refusal")
    cut = after(queued(), opened(), ModelReplied(Message("assistant", (call("c"),)), "length", Usage(1, 1)))
    assert (cut.envelope.status, cut.envelope.reason) == ("stopped", "length")


@pytest.mark.parametrize("event", [CallExecuted("zz", 1), CallCompleted("zz"), CallFailed("zz", "x")])
def test_an_outcome_without_a_start_is_refused(event: CallExecuted) -> None:
    """No receipt jumps over `executing`, and the refused event changes nothing."""
    run = after(queued(), opened(), replied(call("c1")))
    with pytest.raises(ImpossibleTransition):
        evolve(run, event)
    assert run.receipts == {}


def test_a_run_that_ended_takes_nothing_more() -> None:
    """Every event is refused."""
    run = after(queued(), Finished("stopped", "aborted"))
    for event in (opened(), NotesFolded(3), Waited()):
        with pytest.raises(ImpossibleTransition):
            evolve(run, event)


class TestRecordVersion:
    """Version 2 exactly while the record holds what a reader of version 1 would mishandle."""

    def version(self, run: object) -> int:
        return to_change(run, COMMIT).version  # pyright: ignore[reportArgumentType]

    def test_unanswered_failed_receipts(self) -> None:
        """A `failed` or `suspended` receipt in an unanswered turn makes it 2; `executing` and `completed` ones do not."""
        run = after(queued(), opened(), replied(call("c1"), call("c2")), CallStarted("c1", "add", False))
        assert self.version(run) == 1
        assert self.version(after(run, CallExecuted("c1", 1), CallCompleted("c1"))) == 1
        assert self.version(after(run, CallFailed("c1", "x"))) == 2
        waiting = replace(run.receipts["c1"], stage="suspended")
        assert self.version(replace(run, receipts={"c1": waiting})) == 2
        answered = after(run, CallFailed("c1", "x"), *ran("c2"), TurnAnswered({"c2": "3"}))
        assert self.version(answered) == 1

    @pytest.mark.spec("ENV-006", "ENV-007")
    def test_approvals(self) -> None:
        """Waiting for a verdict, and open calls under an id that was asked for; 1 again once the turn is answered."""
        run = after(queued(), opened(), replied(call("c1")))
        assert self.version(run) == 1
        run = after(run, Suspended((ItemRow("i", "approval", "{}"),), ("c1",)))
        assert self.version(run) == 2
        run = after(run, Resumed({"c1": {"approved": True}}), CallStarted("c1", "add", False))
        assert self.version(stored(run)) == 2
        run = after(run, CallExecuted("c1", 1), CallCompleted("c1"))
        assert self.version(stored(run)) == 2
        assert self.version(after(run, TurnAnswered({"c1": "1"}))) == 1


def test_injected_messages_are_appended_in_order() -> None:
    """A message note lands behind what is there."""
    run = after(queued(), NotesFolded(2, messages=(user("and"), user("also"))))
    assert [message.text for message in run.history] == ["go", "and", "also"]
    assert run.envelope.seen_seq == 2


def test_only_what_came_of_a_call_is_progress() -> None:
    """Unclean ends are counted on over calls that merely begin: a run that dies in each of them ends up in quarantine."""
    opening = after(queued(), opened())
    assert not to_change(opening, COMMIT).progress
    answered = after(settled(opening), replied(call("c1")))
    assert to_change(answered, COMMIT).progress
    began = after(settled(answered), CallStarted("c1", "add", False))
    assert not to_change(began, COMMIT).progress
    assert to_change(after(settled(began), CallExecuted("c1", 1)), COMMIT).progress


@pytest.mark.parametrize(
    "came",
    [
        replace(replied("no"), finish_reason="content_filter"),
        replace(replied(call("c1")), finish_reason="content_filter"),
        replace(replied(call("c1")), finish_reason="length"),
        ModelCallFailed({"name": "ModelError", "message": "gone"}, "no", None, None),
    ],
)
def test_a_cancelled_run_ends_as_aborted_whatever_comes_behind(came: ModelReplied | ModelCallFailed) -> None:
    """A cancel that was taken in while a call went on decides how the run ends; alone, what came would end it otherwise."""
    asked = after(queued(), opened())
    assert after(asked, came).envelope.is_final
    run = after(asked, NotesFolded(1, cancelled=True), came)
    assert (run.envelope.is_final, run.open_calls) == (False, ())
    effect = decide(run)
    assert isinstance(effect, Finish)
    assert (effect.ending.status, effect.ending.reason) == ("stopped", "aborted")
