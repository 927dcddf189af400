"""Words about interrupted calls: which of them count, and what names one execution."""

from __future__ import annotations

import pytest

from deuz_workers.core.events import CallStarted, NotesFolded
from deuz_workers.core.reconciliation import Word, accepted, effect_id, note_of, unknown_effects, words_in
from deuz_workers.core.run import Run
from deuz_workers.errors import CodecError
from tests.core.runs import after, call, opened, queued, replied, stored


def interrupted() -> Run:
    """Three calls began: two of tools that must not run twice, one of a tool that may."""
    started = [CallStarted(name, "add", name == "c3") for name in ("c1", "c2", "c3")]
    turn = replied(*(call(name) for name in ("c1", "c2", "c3")))
    return stored(after(queued(), opened(), turn, *started))


@pytest.mark.spec("REC-010")
def test_words_count_together_or_not_at_all() -> None:
    """One of two calls that nobody knows of is left open: no word is taken, nothing is recorded and nothing may run."""
    run = interrupted()
    for words in ((Word("c1", output=1),), (Word("c2", again=True),), (Word("c3", again=True),), ()):
        assert accepted(words, run.receipts) == ()
        half = after(run, NotesFolded(1, words=words))
        assert (half.receipts, half.retry_verdicts) == (run.receipts, {})
        assert [receipt.call_id for receipt in unknown_effects(half)] == ["c1", "c2"]
    both = after(run, NotesFolded(1, words=(Word("c1", output=1), Word("c2", again=True))))
    assert unknown_effects(both) == ()
    assert (both.receipts["c1"].stage, both.receipts["c1"].reconciled, dict(both.retry_verdicts)) == (
        "executed",
        True,
        {"c2": None},
    )


def test_a_word_is_about_one_execution() -> None:
    """Of another attempt or turn it counts for nothing; an allowance is used up by the call that it was given for."""
    run = interrupted()
    for wrong in (Word("c1", output=1, step=1, attempt=2), Word("c1", output=1, step=2, attempt=1), Word("c9", output=1)):
        assert accepted((wrong, Word("c2", output=2)), run.receipts) == ()
    right = (Word("c1", again=True, step=1, attempt=1), Word("c2", output=2, step=1, attempt=1))
    begun = after(run, NotesFolded(1, words=right), CallStarted("c1", "add", False))
    assert (begun.receipts["c1"].attempt, dict(begun.retry_verdicts)) == (2, {})
    assert [receipt.call_id for receipt in unknown_effects(begun)] == ["c1"]


def test_an_effect_is_named_by_all_that_makes_it_one() -> None:
    """Run, turn, call, attempt and arguments: each changes the name, which begins with the id of the call."""
    run = interrupted()
    receipt = run.receipts["c1"]
    again = after(run, CallStarted("c1", "add", False)).receipts["c1"]
    names = {
        effect_id("r", receipt, {"a": 1}),
        effect_id("s", receipt, {"a": 1}),
        effect_id("r", receipt, {"a": 2}),
        effect_id("r", again, {"a": 1}),
        effect_id("r", run.receipts["c2"], {"a": 1}),
    }
    assert len(names) == 5
    assert effect_id("r", receipt, {"b": 2, "a": 1}) == effect_id("r", receipt, {"a": 1, "b": 2})
    assert effect_id("r", receipt, {}).startswith("c1@")


def test_a_note_reads_back_what_was_said() -> None:
    """Bound words come back as they were, those of older notes unbound; what is none of ours is refused."""
    words = (
        Word("a", again=True, verdict={"approved": True}, step=1, attempt=2),
        Word("b", output={"n": 1}, step=1, attempt=1),
        Word("c", output="no", is_error=True, step=3, attempt=1),
    )
    assert words_in(note_of(words)) == words
    assert words_in({"tool_call_ids": ["a"], "results": {"b": {"output": 1}}}) == (Word("a", again=True), Word("b", output=1))
    for broken in ({"tool_call_ids": "a"}, {"results": [1]}, {"results": {"a": 1}}, {"calls": {"a": 1}}):
        with pytest.raises(CodecError):
            words_in(broken)
