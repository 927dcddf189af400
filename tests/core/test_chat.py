"""What may be written over a stored chat, which ids messages have, and the transcript behind every rewrite."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deuz_workers.core.chat import ChatRecord, ChatState, RunChat, fingerprint, ids_of, is_owed, judge, kept_ids, texts_of
from deuz_workers.core.compaction import Compaction
from deuz_workers.core.events import (
    Finished,
    HistoryPruned,
    HistoryRewritten,
    NotesFolded,
    OutputAsked,
    TurnAnswered,
)
from deuz_workers.core.messages import Message, assistant, user
from deuz_workers.core.run import Run, to_change
from deuz_workers.core.transcript import transcript_length, whole_transcript
from deuz_workers.errors import CodecError
from tests.core.runs import COMMIT, after, call, opened, queued, ran, reload, replied

CHAT = RunChat("c", "s")
SAID = tuple(map(user, ("one", "two", "three")))


def stored(*messages: Message, scope: str = "s", deleted: bool = False) -> ChatRecord:
    return ChatRecord("c", scope, messages, tuple(f"m{place}" for place in range(len(messages))), 3, deleted)


@pytest.mark.parametrize("occasion", ["leg", "due", "asked"])
def test_what_every_look_at_a_chat_leaves_alone(occasion: str) -> None:
    """One of another scope, one that was deleted, one that has the transcript already."""
    texts = texts_of(SAID)
    state = ChatState(found=fingerprint(stored(*SAID[:1], deleted=True)))
    assert judge(stored(*SAID, scope="t"), texts, CHAT, state, occasion) == "scope-mismatch"  # type: ignore[arg-type]
    assert judge(stored(deleted=True), texts, CHAT, state, occasion) == "superseded"  # type: ignore[arg-type]
    for more in ((), (user("four"),)):
        assert judge(stored(*SAID, *more), texts, CHAT, state, occasion) == "keep"  # type: ignore[arg-type]
    assert judge(None, texts, CHAT, ChatState(), occasion) == "write"  # type: ignore[arg-type]
    assert judge(stored(*SAID[:2]), texts, CHAT, state, occasion) == "write"  # type: ignore[arg-type]


def test_a_leg_writes_over_what_moved_on_and_a_late_look_does_not() -> None:
    """Late, only a chat as it was found, or one that the transcript extends."""
    texts, other = texts_of(SAID), stored(user("one"), user("something else"))
    for state in (ChatState(), ChatState(found=fingerprint(stored(*SAID[:1]))), ChatState("saved", 1, (), "absent")):
        assert judge(other, texts, CHAT, state, "leg") == "write"
        assert judge(other, texts, CHAT, state, "due") == "superseded"
    assert judge(other, texts, CHAT, ChatState(found=fingerprint(other)), "asked") == "write"
    assert judge(None, texts, CHAT, ChatState("failed", 0, (), "absent"), "asked") == "write"
    assert judge(None, texts, CHAT, ChatState("failed", 1, (), fingerprint(stored(*SAID[:1]))), "asked") == "superseded"
    assert judge(None, texts, CHAT, ChatState("failed", 1, (), fingerprint(stored(*SAID[:1]))), "leg") == "write"


def test_what_is_owed() -> None:
    """As long as the cursor is behind; never of a chat that was superseded, and late never of somebody else's."""
    assert is_owed(ChatState(), 1, "asked")
    assert not is_owed(ChatState("saved", 2), 2, "leg")
    assert is_owed(ChatState("saved", 2), 3, "due")
    assert not is_owed(ChatState("superseded"), 3, "leg")
    assert is_owed(ChatState("scope-mismatch"), 3, "leg")
    assert not is_owed(ChatState("scope-mismatch"), 3, "asked")


def test_messages_of_the_stored_chat_keep_their_ids() -> None:
    """As far as the transcript begins like it; every other is named after the run and its place."""
    kept = kept_ids(stored(SAID[0], user("other")), texts_of(SAID), "s")
    assert kept == ("m0",)
    assert ids_of("r", 3, kept) == ("m0", "r:1", "r:2")
    assert ids_of("r", 2, ()) == ("r:0", "r:1")
    assert ids_of("r", 1, ("a", "b")) == ("a",)
    for unread in (None, stored(deleted=True), stored(*SAID, scope="t")):
        assert kept_ids(unread, texts_of(SAID), "s") == ()


def test_the_state_of_a_chat_is_read_back() -> None:
    """With and without what it need not have; anything else is refused."""
    for state in (ChatState(), ChatState("failed", 3, ("a",), "f", {"name": "E"}), ChatState("saved", 1, (), "absent")):
        assert ChatState.from_body(0, state.to_body()) == state
    for body in ("{}", "[]", "1", "null"):
        with pytest.raises(CodecError):
            ChatState.from_body(1, body)


class Kept:
    """Rows of messages of a run over its commits, and the run that they describe."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows: dict[int, list[Message]] = {0: list(run.history)}

    def save(self) -> None:
        run = self.run
        change = to_change(run, COMMIT)
        fresh = [row for row in change.messages if row.seq >= 0]
        rows = self.rows.setdefault(change.epoch, [])
        first = fresh[0].seq if fresh else len(rows)
        assert first == len(rows)
        rows.extend(run.unsaved.messages)
        again = reload(run, change)
        assert again.envelope.transcript == run.envelope.transcript
        self.run = again

    @property
    def transcript(self) -> tuple[Message, ...]:
        found = whole_transcript(self.rows, self.run.envelope.transcript)
        assert len(found) == transcript_length(self.run.envelope)
        return found


def test_a_history_that_was_rewritten_leaves_the_transcript_alone() -> None:
    """Also where the turn that was being saved is gone from the new history, and where it is rewritten twice at once."""
    kept = Kept(queued(chat=CHAT))
    kept.run = after(kept.run, opened(), replied("hm", call("c")))
    kept.save()
    kept.run = after(kept.run, *ran("c"), TurnAnswered({"c": "3"}, {"c": "three"}))  # not saved before the rewrite
    kept.run = after(kept.run, HistoryRewritten((user("short"),)), HistoryRewritten((user("shorter"), user("still"))))
    kept.run = after(kept.run, opened(), replied("done"))
    kept.save()
    roles = [message.role for message in kept.transcript]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert kept.transcript[-1].text == "done"
    kept.run = after(kept.run, OutputAsked(user("as json")))
    kept.save()
    assert [message.text for message in kept.transcript][-2:] == ["done", "as json"]


def test_what_a_guardrail_replaced_was_said_so() -> None:
    """The message alone, in its place, before a rewrite and after one; what a hook added is none of the transcript."""
    kept = Kept(queued(chat=CHAT))
    kept.run = after(kept.run, HistoryRewritten((user("redacted"),), 0), HistoryRewritten((user("a"), user("b"))))
    kept.run = after(kept.run, opened(), replied("secret"))
    kept.save()
    assert [message.text for message in kept.transcript] == ["redacted", "secret"]
    history = (*tuple(kept.run.history)[:-1], assistant("public"))
    kept.run = after(kept.run, HistoryRewritten(history, 2), Finished("completed", output="public", has_output=True))
    kept.save()
    assert [message.text for message in kept.transcript] == ["redacted", "public"]
    assert kept.run.envelope.status == "completed"


def test_one_that_a_hook_made_is_replaced_in_the_history_alone() -> None:
    """A guardrail that rewrites what `prepare_step` made changes nothing that was said."""
    kept = Kept(queued(chat=CHAT))
    kept.run = after(kept.run, HistoryRewritten((user("made up"),)), HistoryRewritten((user("redacted"),), 0))
    kept.save()
    assert [message.text for message in kept.transcript] == ["go"]


def test_a_run_without_a_chat_keeps_nothing_of_it() -> None:
    """And what is rewritten there is as it was."""
    run = after(queued(), HistoryRewritten((user("other"),), 0))
    assert (run.envelope.transcript, run.record_version) == ((), 1)
    assert run.due_in_ms == 0


def test_rows_that_are_missing_are_noticed() -> None:
    """A transcript is whole or an error."""
    kept = Kept(queued(chat=CHAT))
    kept.run = after(kept.run, opened(), replied("hm"))
    kept.save()
    kept.run = after(kept.run, HistoryRewritten((user("x"),)))
    kept.save()
    del kept.rows[0][1]
    with pytest.raises(CodecError):
        whole_transcript(kept.rows, kept.run.envelope.transcript)


Step = st.sampled_from(["say", "say unsaved", "prepare", "prepare shorter", "redact newest", "redact first", "save", "note"])


@settings(deadline=None)
@given(st.lists(Step, max_size=25))
def test_whatever_hooks_do_the_transcript_is_what_was_said(steps: list[str]) -> None:
    """Against a list that is kept beside it."""
    kept, said = Kept(queued(chat=CHAT)), [user("go")]
    turn, origin = 0, [0]  # of each message of the history, its place among `said`; None for what hooks made
    places: list[int | None] = list(origin)
    for number, step in enumerate(steps):
        text = f"text {number}"
        match step:
            case "say" | "say unsaved":
                turn += 1
                kept.run = after(kept.run, opened(turn), replied(text))
                said.append(assistant(text))
                places.append(len(said) - 1)
                if step == "say":
                    kept.save()
            case "note":
                kept.run = after(kept.run, NotesFolded(0, messages=(user(text),)))
                said.append(user(text))
                places.append(len(said) - 1)
            case "prepare":
                kept.run = after(kept.run, HistoryRewritten((*kept.run.history, user(text))))
                places = [None] * (len(places) + 1)
            case "prepare shorter":
                kept.run = after(kept.run, HistoryRewritten((user(text),)))
                places = [None]
            case "redact newest" | "redact first":
                index = len(places) - 1 if step == "redact newest" else 0
                old = kept.run.history[index]
                new = Message(old.role, user(text).parts)
                history = list(kept.run.history)
                history[index] = new
                kept.run = after(kept.run, HistoryRewritten(tuple(history), index))
                place = places[index]
                if place is not None:
                    said[place] = new
            case _:
                kept.save()
    kept.save()
    assert list(kept.transcript) == said


def test_a_chat_makes_its_record_version_2_and_is_read_back() -> None:
    """From the first commit on, with every rewrite."""
    run = after(queued(chat=RunChat("c", "s", own_store=True)), HistoryRewritten((user("x"),), 0), opened())
    assert to_change(run, COMMIT).version == 2
    again = reload(run, to_change(run, COMMIT))
    assert again.envelope.transcript == run.envelope.transcript
    assert again.envelope.chat == RunChat("c", "s", own_store=True)


def test_where_its_chat_is_written_a_run_is_due() -> None:
    """By the commit that ends or suspends it, and by no other of a run that waits; without a chat by none."""
    for chat, due in ((CHAT, 0), (None, None)):
        run = after(queued(chat=chat), opened(), replied("done"), Finished("completed", output="done", has_output=True))
        assert run.due_in_ms == due


def test_the_place_in_a_compacted_history_is_that_of_its_row() -> None:
    """A guardrail that rewrites the newest message finds it behind what was folded away."""
    kept = Kept(queued(chat=CHAT))
    for turn in range(1, 4):
        kept.run = after(kept.run, opened(turn), replied(f"reply {turn}"), NotesFolded(0, messages=(user(f"more {turn}"),)))
        kept.save()
    summary = (user("[Summary of the conversation so far]\n\nmuch"),)
    kept.run = after(kept.run, HistoryPruned("tool-results", Compaction(1, 0, 0, 1, 5, 0, summary), 10, 5))
    history = list(kept.run.history)
    assert len(history) == len(kept.rows[0]) - 4 + 1
    history[-1] = user("redacted")
    kept.run = after(kept.run, HistoryRewritten(tuple(history), len(history) - 1))
    kept.save()
    assert [message.text for message in kept.transcript] == [
        *("go", "reply 1", "more 1", "reply 2", "more 2", "reply 3", "redacted")
    ]
