"""From live parts to events, as a pure rule: dead attempts, late and lost parts, and what the result puts right."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers.app.drafts import NOTHING_YET, Drafts
from deuz_workers.app.results import AgentResult, ResultWarning
from deuz_workers.app.stream_events import (
    Discard,
    Missed,
    OutputDraft,
    OutputElement,
    PartEvent,
    PhaseEvent,
    StreamEvent,
    TextDelta,
    WarningPart,
)
from deuz_workers.app.stream_view import StreamView
from deuz_workers.core.live import LiveKind, LivePart
from deuz_workers.core.messages import assistant, user
from deuz_workers.core.usage import Usage
from deuz_workers.tools.output import Output


def part(kind: LiveKind, epoch: int, step: int = 1, **data: object) -> LivePart:
    return LivePart(kind, step, epoch, data)


def begin(epoch: int, step: int = 1, phase: str = "loop", attempt: int = 1, output_attempt: int = 0) -> LivePart:
    return part("begin", epoch, step, phase=phase, attempt=attempt, output_attempt=output_attempt)


def text(epoch: int, written: str, step: int = 1) -> LivePart:
    return part("text", epoch, step, text=written)


def result(answer: str, status: Any = "completed", steps: int = 1, **given: Any) -> AgentResult[Any]:
    messages = (user("hi"), assistant(answer)) if answer else (user("hi"),)
    return AgentResult(status, "r", "default", "x", messages, Usage(), steps, answer, **given)


def view(output: Output | None = None) -> StreamView:
    return StreamView(lambda: output)


def shown(events: list[StreamEvent]) -> str:
    """Of the newest turn, to a reader who drops what they are told to."""
    written = ""
    for event in events:
        match event:
            case PartEvent(TextDelta(fragment)):
                written += fragment
            case Discard():
                written = ""
            case _:
                pass
    return written


def discards(events: list[StreamEvent]) -> int:
    return sum(isinstance(event, Discard) for event in events)


def test_a_new_attempt_at_the_turn_discards_what_the_dead_one_wrote() -> None:
    """Its epoch is a later one; nobody said how the first one ended."""
    made = view()
    events = made.take([begin(1), text(1, "dead"), begin(4, attempt=2), text(4, "alive"), part("reply", 5)])
    events += made.finish(result("alive"))
    assert (shown(events), discards(events)) == ("alive", 1)


def test_what_a_dead_attempt_still_writes_is_not_shown() -> None:
    """A frozen worker wakes and goes on with its answer beside its successor, and after it."""
    made = view()
    events = made.take(
        [begin(1), text(1, "dead"), begin(4), text(1, " more"), text(4, "alive"), part("reply", 5), text(1, "!")]
    )
    events += made.take([text(4, "?"), begin(1)])
    assert shown(events) == "alive"


def test_a_commit_that_ends_a_call_and_begins_the_next_shows_both() -> None:
    """What the second one writes is discarded when it fails too, although both have one epoch."""
    seen = view()
    events = seen.take([begin(1), text(1, "He"), part("void", 2), begin(2, attempt=2), text(2, "Wo"), part("void", 3)])
    assert [event for event in events if isinstance(event, Discard)] == [Discard(1), Discard(1)]
    assert [event.call_attempt for event in events if isinstance(event, PhaseEvent)] == [1, 2]
    assert shown([*events, *seen.take([begin(4, attempt=3), text(4, "Done")])]) == "Done"


def test_a_call_that_failed_is_discarded_at_once_and_one_without_text_is_not() -> None:
    """There is nothing to drop where nothing was shown."""
    made = view()
    events = made.take([begin(1), text(1, "half"), part("void", 2)])
    assert discards(events) == 1
    assert discards(made.take([begin(3), part("void", 4), begin(5), text(5, "whole")])) == 0


def test_the_answer_of_an_earlier_turn_is_never_discarded() -> None:
    """The next turn begins when it is saved, even if this reader was not told."""
    made = view()
    assert discards(made.take([begin(1), text(1, "one"), begin(4, 2), part("void", 5, 2)])) == 0


def test_a_saved_answer_is_not_discarded_by_what_comes_later() -> None:
    """A repeated or failing later call of the same turn number cannot exist; a stray part does nothing."""
    made = view()
    assert discards(made.take([begin(1), text(1, "one"), part("reply", 2), part("void", 3), begin(4, 2)])) == 0


@pytest.mark.parametrize("lost", ["beginning", "middle", "all", "reply", "attempt"])
def test_whatever_was_lost_the_text_at_the_end_is_the_result_s(lost: str) -> None:
    """Fragments, whole calls, or a repeat: the reader who does as told has the answer."""
    parts = {
        "beginning": [text(1, " b")],
        "middle": [begin(1), text(1, "a"), part("reply", 2)],
        "all": list[LivePart](),
        "reply": [begin(1), text(1, "a b")],
        "attempt": [begin(1), text(1, "dead end")],
    }[lost]
    made = view()
    events = made.take(parts)
    events += made.finish(result("a b"))
    assert shown(events) == "a b"


def test_an_answer_that_was_shown_whole_is_not_shown_again() -> None:
    """Neither discarded nor repeated."""
    made = view()
    made.take([begin(1), text(1, "a b"), part("reply", 2)])
    assert [event.type for event in made.finish(result("a b"))] == ["result"]


def test_a_run_that_ends_in_the_middle_of_an_answer_discards_it() -> None:
    """Cancelled, or its worker died and nobody could go on; an answer that was saved stays, even if its saving was not told."""
    for status, answer, count in (("stopped", "", 1), ("failed", "", 1), ("suspended", "half", 0)):
        made = view()
        made.take([begin(1), text(1, "half")])
        assert discards(made.finish(result(answer, status))) == count


def test_the_answer_of_a_suspended_run_s_earlier_turn_is_left_alone() -> None:
    """The newest turn asked for a tool without a word."""
    made = view()
    made.take([begin(1), text(1, "one"), part("reply", 2), begin(3, 2), part("reply", 4, 2)])
    assert [event.type for event in made.finish(result("one", "suspended", 2))] == ["result"]


def test_losses_are_said() -> None:
    """Of the writer's, with their number, and of the channel."""
    assert view().take([part("dropped", 0, count=3), part("lost", 0)]) == [Missed("dropped", 3), Missed("lost")]


def test_a_warning_is_told_once_however_often_it_comes() -> None:
    """On the way and in the result."""
    made = view()
    events = made.take([part("warning", 1, setting="chat", message="m"), part("warning", 2, setting="chat", message="m")])
    events += made.finish(result("", warnings=(ResultWarning("chat", "m"), ResultWarning("mcp", "n"))))
    warned = [event.part.warning for event in events if isinstance(event, PartEvent) and isinstance(event.part, WarningPart)]
    assert [(warning.type, warning.setting, warning.message) for warning in warned] == [
        ("warning", "chat", "m"),
        ("warning", "mcp", "n"),
    ]


def test_drafts_start_anew_with_a_repeated_call_of_the_same_attempt() -> None:
    """The text of the dead call is no part of the next draft."""
    made = view(Output(list[int]))
    events = made.take([begin(1, phase="finalizing", output_attempt=1), text(1, '{"value": [1, 2, ')])
    events += made.take([begin(4, phase="finalizing", output_attempt=1), text(4, '{"value": [3, 4]}')])
    elements = [event for event in events if isinstance(event, OutputElement)]
    assert [(one.index, one.element, one.attempt) for one in elements] == [(0, 1, 1), (0, 3, 1), (1, 4, 1)]
    assert [event.value for event in events if isinstance(event, OutputDraft)] == [[1, 2], [3, 4]]


def test_a_draft_that_was_lost_is_made_of_the_result() -> None:
    """As the text is."""
    made = view(Output(list[int]))
    events = made.finish(result('{"value": [3]}'))
    assert [(event.value, event.attempt) for event in events if isinstance(event, OutputDraft)] == [([3], 1)]


@pytest.mark.parametrize("fence", ["", "```json\n", "```\n", "  ```json\r\n"])
def test_drafts_of_an_answer_in_a_fence(fence: str) -> None:
    """Written letter by letter, with and without; what is no JSON is no draft."""
    written = f'{fence}{{"value": [{{"a": "x"}}, {{"a": "yz"}}]}}' + ("\n```" if fence else "")
    made, values, elements = Drafts(Output(list[dict[str, str]])), list[object](), list[Any]()
    for letter in written:
        draft, found = made.add(letter)
        values += [] if draft is NOTHING_YET else [draft]
        elements += found
    assert values[-1] == [{"a": "x"}, {"a": "yz"}]
    assert elements == [(0, {"a": "x"}), (1, {"a": "yz"})]
    assert [{"a": "x"}, {"a": "y"}] in values
    assert Drafts(None).add("I am sorry") == (NOTHING_YET, [])


def test_an_element_is_shown_when_nothing_of_it_can_follow() -> None:
    """1 may become 12: the last one waits for the end of the list."""
    made = Drafts(Output(list[int]))
    assert [made.add(piece)[1] for piece in ('{"value": [1', "2", ", 3", "]", "}")] == [[], [], [(0, 12)], [], [(1, 3)]]
