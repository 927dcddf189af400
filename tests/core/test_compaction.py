"""What a compacted history leaves out: never half a pair, never what is protected, and the same for whoever reads the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deuz_workers.core.codec import decode, encode
from deuz_workers.core.compaction import LEFT_OUT, SUMMARY_PREFIX, Compaction, is_summary, reshaped
from deuz_workers.core.envelope import encode_body
from deuz_workers.core.events import ContextOverflowed, HistoryPruned, HistorySummarized, SummaryStarted, Suspended
from deuz_workers.core.evolve import evolve_all
from deuz_workers.core.history import History
from deuz_workers.core.layers import Fold, Measure, foldable, folded, opening_length, protected_from, pruned
from deuz_workers.core.messages import Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart, system, user
from deuz_workers.core.pairing import NO_RESULT, NOTHING_SAID, paired
from deuz_workers.core.run import Run, to_change
from deuz_workers.core.summary_request import summary_messages
from deuz_workers.core.usage import Usage
from tests.core.runs import COMMIT, after, opened, queued, ran, replied, stored

WORD = st.text("abc ", min_size=1, max_size=120)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """What happens between two user turns, each call answered: an answer, or calls and their results."""
    number = draw(st.integers(0, 10**6))
    thought = draw(st.sampled_from(([], [ReasoningPart("because " * 9)])))
    kind = draw(st.sampled_from(("calls", "calls", "text", "user", "system")))
    if kind in ("user", "system"):
        return [(user if kind == "user" else system)(draw(WORD))]
    if kind == "text":
        return [Message("assistant", (*thought, TextPart(draw(WORD))))]
    ids = [f"c{number}.{place}" for place in range(draw(st.integers(1, 3)))]
    calls = tuple(ToolUsePart(call_id, "look", {"q": draw(WORD)}) for call_id in ids)
    results = tuple(ToolResultPart(call_id, "look", draw(WORD) * draw(st.integers(1, 9))) for call_id in ids)
    answers = [Message("tool", results)] if draw(st.booleans()) else [Message("tool", (result,)) for result in results]
    return [Message("assistant", (*thought, *calls)), *answers]


def history_of(systems: int, rest: list[list[Message]]) -> list[Message]:
    return [system("be brief")] * systems + [user("the task")] + [message for turn in rest for message in turn]


HISTORIES = st.builds(history_of, st.integers(0, 2), st.lists(turns(), max_size=24))


def run_with(messages: Sequence[Message]) -> Run:
    run = queued(last_seq=len(messages) - 1)
    return replace(run, history=History(messages))


def measure(target: int = 1, *, keep_turns: int = 4, window: int = 1_000) -> Measure:
    return Measure(window, window, target, keep_turns, 0, 1_000)


def prune(run: Run, by: Measure) -> Run:
    events = (HistoryPruned(one.layer, one.compaction, one.before_tokens, one.after_tokens) for one in pruned(run, by))  # pyright: ignore[reportArgumentType]
    return evolve_all(run, tuple(events))


def summarize(run: Run, fold: Fold, text: str) -> Run:
    return after(run, SummaryStarted(opened().call), HistorySummarized(folded(run, fold, text), Usage(7, 2), 9, 3))


def all_layers(run: Run, by: Measure, text: str = "in short") -> Run:
    run = prune(run, by)
    fold = foldable(run, by, forced=True)
    return run if fold is None else summarize(run, fold, text)


@given(HISTORIES, st.integers(1, 6), st.lists(turns(), max_size=12))
@settings(max_examples=200, deadline=None)
@pytest.mark.spec("CMP-002", "FR-38")
def test_what_is_protected_stays_and_pairs_stay_whole(messages: list[Message], keep: int, more: list[list[Message]]) -> None:
    """After every layer, and again after more turns: system turns, the opening user turn, the newest turns of the model with
    all that follows them and the last message are untouched; every call has one result (FR-38)."""
    run = run_with(messages)
    for added in ([], [message for turn in more for message in turn]):
        run = replace(
            run, history=run.history.append(*added), envelope=replace(run.envelope, last_seq=run.envelope.last_seq + len(added))
        )
        before = list(run.history)
        start = protected_from(before, keep)
        assistants = [message for message in before if message.role == "assistant"]
        assert run.history.is_paired
        for run in (prune(run, measure(keep_turns=keep)), all_layers(run, measure(keep_turns=keep))):  # noqa: B020
            shown = list(run.history)
            assert run.history.is_paired
            assert [message for message in shown if message.role == "system"] == [m for m in before if m.role == "system"]
            assert shown[: opening_length(before)] == before[: opening_length(before)]
            assert shown[-1] == before[-1]
            assert shown[len(shown) - (len(before) - start) :] == before[start:]
            assert [message for message in shown if message.role == "assistant"][-keep:] == assistants[-keep:]


@given(HISTORIES, st.integers(1, 4), st.lists(st.lists(turns(), min_size=1, max_size=6), max_size=3))
@settings(max_examples=200, deadline=None)
@pytest.mark.spec("CMP-003")
def test_rows_and_record_give_the_history_that_was_sent(
    messages: list[Message], keep: int, later: list[list[list[Message]]]
) -> None:
    """However often it is compacted, there is one summary; whoever reads the raw rows under the newest record, all of them or
    only those that it asks for, has the very history."""
    rows, run = list(messages), run_with(messages)
    for number, added in enumerate([[], *later]):
        fresh = [message for turn in added for message in turn]
        rows += fresh
        run = replace(run, history=run.history.append(*fresh), envelope=replace(run.envelope, last_seq=len(rows) - 1))
        run = all_layers(run, measure(keep_turns=keep), f"number {number}")
        record = Compaction.from_record(run.compaction.number, decode(encode(run.compaction.to_record())))
        assert record == run.compaction
        placed = list(enumerate(rows))
        assert record.history(placed) == list(run.history)
        assert record.history([row for row in placed if not record.leaves_out(row[0])]) == list(run.history)
        assert len(run.history) == record.length(len(rows) - 1)
        assert sum(is_summary(message) for message in run.history) <= 1
        for index, message in enumerate(run.history):
            if message not in record.summary:
                assert record.shown(record.place(index), rows[record.place(index)]) == message


def test_a_later_summary_is_made_from_the_earlier_one() -> None:
    """The first goes into the request for the second and its turn is gone; the prefix tells the one that is left."""
    turn = [message for number in range(8) for message in (replied(f"answer {number}").message, user("go on"))]
    first = all_layers(run_with([user("the task"), *turn]), measure(), "the first summary")
    assert [message.text for message in first.history if is_summary(message)] == [SUMMARY_PREFIX + "the first summary"]
    first = replace(
        first, history=first.history.append(*turn), envelope=replace(first.envelope, last_seq=first.envelope.last_seq + 16)
    )
    fold = foldable(first, measure())
    assert fold is not None
    asked = summary_messages(fold.messages, 10_000)
    assert "Earlier summary:\nthe first summary" in asked[-1].text
    second = summarize(first, fold, "the second summary")
    assert [message.text for message in second.history if is_summary(message)] == [SUMMARY_PREFIX + "the second summary"]


@pytest.mark.spec("CMP-001")
def test_layers_follow_each_other_only_while_there_is_too_little_room() -> None:
    """Results first, reasoning only if that was not enough; the tokens of each say what it was good for."""
    messages = [user("the task")]
    for number in range(8):
        call_id = f"c{number}"
        messages.append(Message("assistant", (ReasoningPart("so " * 100), ToolUsePart(call_id, "look", {}))))
        messages.append(Message("tool", (ToolResultPart(call_id, "look", "x" * 3_000),)))
    run = run_with(messages)
    full = measure().tokens(run.history.size_bytes)
    [only] = pruned(run, measure(full - 1_000))
    assert (only.layer, only.before_tokens) == ("tool-results", full)
    both = pruned(run, measure(1))
    assert [one.layer for one in both] == ["tool-results", "reasoning"]
    assert full > both[0].after_tokens == both[1].before_tokens > both[1].after_tokens
    shown = prune(run, measure(1)).history
    assert [part.text for message in shown for part in message.tool_results] == [LEFT_OUT] * 4 + ["x" * 3_000] * 4
    assert sum(isinstance(part, ReasoningPart) for message in shown for part in message.parts) == 4


def test_few_messages_are_not_worth_a_summary() -> None:
    """Under a twentieth of the window, unless a provider refused the history; and a summary alone is never summed up again."""
    short = run_with([user("the task"), *(replied(f"answer {n}").message for n in range(8))])
    assert foldable(short, measure(window=100_000)) is None
    assert foldable(short, measure(window=100_000), forced=True) is not None
    again = all_layers(short, measure())
    assert foldable(again, measure(), forced=True) is None


@given(HISTORIES, st.data())
@settings(max_examples=200, deadline=None)
@pytest.mark.spec("FR-25")
def test_a_history_that_was_cut_anywhere_is_paired_again(messages: list[Message], data: st.DataObject) -> None:
    """At every index, from either side, with any message taken out: one result for each call and no result without a call;
    what was whole stays, and the repair says what it did (FR-25)."""
    assert paired(messages).messages == tuple(messages)
    assert not paired(messages).is_repaired
    gone = data.draw(st.integers(0, len(messages)))
    for index in range(len(messages) + 1):
        for cut in (
            messages[:index],
            messages[index:],
            messages[:gone] + messages[gone + 1 :],
            messages[index:] + messages[:index],
        ):
            repaired = paired(cut)
            whole = History(repaired.messages)
            assert whole.is_paired
            assert repaired.is_repaired == (not History(cut).is_paired)
            assert [m for m in repaired.messages if m.role not in ("tool", "assistant")] == [
                m for m in cut if m.role not in ("tool", "assistant")
            ]
            known = [part for message in cut for part in message.tool_results]
            for part in (part for message in repaired.messages for part in message.tool_results):
                assert part in known or part.text == NO_RESULT


def test_a_reply_that_says_nothing_is_kept_and_sent_with_a_word() -> None:
    """Some providers refuse a turn without content. What was only thought is not said; an image is."""
    silent = Message("assistant", (TextPart(""), ReasoningPart("hm")))
    history = History([user("go")]).append(silent, user("well?"))
    assert history.is_paired
    assert not history.is_sendable
    assert not History(history).is_sendable
    assert not history.append(user("again")).is_sendable
    repaired = paired(history)
    spoken = Message("assistant", (ReasoningPart("hm"), TextPart(NOTHING_SAID)))
    assert repaired.messages == (user("go"), spoken, user("well?"))
    assert not repaired.is_repaired
    assert History(repaired.messages).is_sendable
    assert len(history) == 3


@pytest.mark.spec("CMP-010")
def test_the_estimate_is_calibrated_by_what_was_counted_and_the_next_worker_has_it() -> None:
    """The factor is in the record: whoever loads the run estimates the same step the same; absurd counts are bounded."""
    started = opened()
    call = replace(started.call, input_tokens=1_000)
    one = after(queued(), replace(started, call=call))
    run = after(one, replace(replied("hm"), usage=Usage(700, 5)))
    assert run.envelope.calibration == 700
    other = stored(run)
    assert other.envelope.calibration == 700
    here, there = (Measure(1, 1, 1, 4, 10, one.envelope.calibration).tokens(one.history.size_bytes) for one in (run, other))
    assert here == there
    assert after(one, replace(replied("hm"), usage=Usage(1, 5))).envelope.calibration == 250
    assert after(one, replace(replied("hm"), usage=None)).envelope.calibration == 1_000


@pytest.mark.spec("ENV-017")
def test_the_count_of_approval_requests_outlives_compaction() -> None:
    """It is there after a request was issued, by call id, and after every layer."""
    asked = after(queued(), opened(), replied(ToolUsePart("c1", "pay", {})), Suspended((), ("c1",)))
    assert stored(asked).envelope.checkpoint.approval_request_counts == {"c1": 1}
    run = after(queued(), opened(), replied(ToolUsePart("c1", "pay", {})), *ran("c1", tool="pay"))
    counted = replace(run, envelope=asked.envelope, receipts=run.receipts)
    messages = [user("the task"), *(replied(f"answer {n}").message for n in range(9))]
    counted = replace(counted, history=History(messages), envelope=replace(counted.envelope, last_seq=9, status="running"))
    short = all_layers(counted, measure())
    assert len(short.history) < len(messages)
    assert short.receipts == counted.receipts
    body = encode_body(short.envelope)
    assert decode(body)["checkpoint"]["approval_request_counts"] == {"c1": 1}  # type: ignore[index]


def test_a_compaction_writes_one_row_and_touches_none() -> None:
    """The record stands below zero, the messages keep their places, and the head says what need not be read."""
    messages = [user("the task"), *(replied(f"answer {n}" * 50).message for n in range(9))]
    run = all_layers(run_with(messages), measure())
    change = to_change(run, COMMIT)
    assert [row.seq for row in change.messages] == [-run.compaction.number]
    assert (change.compactions, change.folded_from, change.folded_to) == (run.compaction.number, 1, 6)
    assert change.last_seq == len(messages) - 1
    assert list(run.history) == reshaped(messages, Compaction(), run.compaction)
    assert run.envelope.usage == Usage(7, 2)


def test_a_refused_length_is_forgotten_with_the_next_reply() -> None:
    """It is retried once per turn; the reservation of the refused call is released."""
    run = after(queued(scopes=("run:x",)), opened(), ContextOverflowed({"code": "model_context_overflow"}))
    assert run.envelope.checkpoint.overflow == "refused"
    assert [settle.outcome for settle in run.unsaved.settle] == ["released"]
    run = after(run, opened(2))
    assert (run.envelope.checkpoint.overflow, run.envelope.checkpoint.step) == ("retried", 1)
    assert after(run, replied("ok")).envelope.checkpoint.overflow == "none"


def test_the_text_for_a_summary_fits_the_room_that_is_given() -> None:
    """Too long a text loses its middle and says so; calls, results and errors are told as such."""
    told = summary_messages(
        [
            Message("assistant", (TextPart("I look"), ToolUsePart("c1", "look", {"q": "ä"}))),
            Message("tool", (ToolResultPart("c1", "look", "boom", True),)),
        ],
        1_000,
    )[-1].text
    assert told == 'Assistant: I look\nAssistant calls look({"q": "ä"})\n\nError of look: boom'
    cut = summary_messages([user("x" * 90_000)], 3_000)[-1].text
    assert len(cut) < 3_100
    assert "bytes are left out here" in cut
