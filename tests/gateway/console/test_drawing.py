"""Pure parts of pages: where tasks stand, what a journal tells, how values are spelled."""

from __future__ import annotations

import json
import re
from unicodedata import category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deuz_workers.app.run_event import RunEvent
from deuz_workers.core.receipts import Receipt
from deuz_workers.gateway.console.picture import HEIGHT, MOST_IN_A_COLUMN, WIDTH, picture
from deuz_workers.gateway.console.spelling import clipped, duration, iso, moment, money, pretty, visible
from deuz_workers.gateway.console.timeline import Call, Note, timeline
from deuz_workers.ports.swarm_rows import TaskRow
from tests.gateway.console.markup import HIDING


def row(number: int, *ups: int) -> TaskRow:
    after = tuple(f"t{up}" for up in ups)
    return TaskRow(f"t{number}", f"s/t{number}", "agent", "a", "pending", len(ups), 0, 0, 0, None, None, after)


graphs = st.integers(1, 25).flatmap(
    lambda count: st.tuples(*(st.sets(st.integers(0, max(number - 1, 0)), max_size=3) for number in range(count)))
)


@settings(max_examples=50)
@given(graphs)
def test_every_task_stands_right_of_what_it_waits_for(ups: tuple[set[int], ...]) -> None:
    """No two stand on each other, and all of them within the picture, whatever the graph."""
    tasks = [row(number, *(up for up in found if up < number)) for number, found in enumerate(ups)]
    drawn = picture(tasks)
    places = {node.task.task_id: (node.x, node.y) for node in drawn.nodes}
    for task in tasks:
        x, y = places[task.task_id]
        assert all(places[up][0] + WIDTH <= x for up in task.depends_on)
        assert 0 <= x <= drawn.width - WIDTH
        assert 0 <= y <= drawn.height - HEIGHT
    for (x, y), (u, v) in ((one, two) for a, one in places.items() for b, two in places.items() if a < b):
        assert abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT
    assert len(drawn.lines) == sum(len(task.depends_on) for task in tasks)


def test_a_wide_swarm_is_no_tower() -> None:
    """Tasks of one depth stand in several columns."""
    drawn = picture([row(0), *(row(number, 0) for number in range(1, 36))])
    assert drawn.height < (MOST_IN_A_COLUMN + 1) * (HEIGHT + 20)
    assert picture([]).nodes == ()


def test_a_picture_of_what_others_wait_for_each_other_ends() -> None:
    """No swarm is such a graph; whoever looks at a broken one sees something."""
    assert len(picture([row(1, 2), row(2, 1), row(3, 9)]).nodes) == 3


def events(*given: tuple[str, dict[str, object]]) -> list[RunEvent]:
    return [RunEvent(number, kind, 1_000 * number, data) for number, (kind, data) in enumerate(given, 1)]


def test_a_journal_is_turns_with_their_calls() -> None:
    """In order, each call once, with what its receipt says; what is unknown is told as it stands."""
    turns = timeline(
        events(
            ("run.inputs", {"count": 1}),
            ("model.called", {"step": 1, "attempt": 1, "model": "m"}),
            ("model.failed", {"step": 1, "error": "overloaded", "retry_in_ms": 2_000}),
            ("model.called", {"step": 1, "attempt": 2, "model": "m"}),
            ("model.replied", {"step": 1, "finish_reason": "tool_calls", "input_tokens": 5, "output_tokens": 7}),
            ("tool.started", {"step": 1, "call_id": "c", "tool": "pay", "attempt": 1}),
            ("tool.rejected", {"step": 1, "call_id": "d", "tool": "pay", "outcome": "denied"}),
            ("tool.completed", {"step": 1, "call_id": "c", "tool": "pay"}),
            ("turn.answered", {"step": 1, "calls": 2}),
            ("run.of.tomorrow", {"step": 1, "x": 7}),
            ("model.called", {"step": 2, "attempt": 1, "model": None}),
        ),
        {(1, "c"): Receipt(1, "c", 2, "completed", "pay", attempt=3)},
        {1: "text"},
    )
    assert [turn.step for turn in turns] == [0, 1, 2]
    first = turns[1]
    assert (first.calls_of_model, first.text, first.took, first.is_open) == (2, "text", "3.0 s", False)
    assert (first.input_tokens, first.output_tokens) == (5, 7)
    found = [(entry.call_id, entry.state, entry.outcome, entry.attempt) for entry in first.entries if isinstance(entry, Call)]
    assert found == [("c", "done", None, 3), ("d", "failed", "denied", 1)]
    assert next(entry.took for entry in first.entries if isinstance(entry, Call)) == "2.0 s"
    notes = [entry.text for entry in first.entries if isinstance(entry, Note)]
    assert notes == ["A model call failed (overloaded), again in 2.0 s", "run.of.tomorrow: x 7"]
    assert turns[2].is_open


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("run.handed_off", {"step": 1, "call_id": "c", "from": "clerk", "to": "boss"}, "Handed over from clerk to boss"),
        ("run.budgets_narrowed", {"keys": ["k"]}, "May do or spend less from here on"),
        ("memory.recalled", {"status": "completed", "count": 2}, "2 memories recalled"),
        ("memory.recalled", {"status": "failed", "count": None}, "memory.recalled: status failed"),
        ("verification.ended", {"step": 1, "verdict": "rejected"}, "The answer was verified: rejected"),
        ("call.denied", {"call_id": "c", "by": "ann"}, "c denied by ann"),
        ("run.failed", {"reason": None, "error": "api_key=abcdefgh"}, "Failed: api_key=***"),
        ("model.failed", {"error": "x", "model": "a", "next_model": "b"}, "A model call failed (x), goes on with b"),
    ],
)
def test_what_happened_is_said_in_words(kind: str, data: dict[str, object], words: str) -> None:
    """And without what looks like a secret."""
    [turn] = timeline(events((kind, data)), {}, {})
    assert [entry.text for entry in turn.entries if isinstance(entry, Note)] == [words]


def test_a_wait_says_how_long_it_was() -> None:
    """From the suspension to the answers."""
    given = events(("model.called", {"step": 1}), ("run.suspended", {"items": ["a", "b"]}), ("run.resumed", {"answers": 2}))
    [turn] = timeline(given, {}, {})
    assert [(entry.text, entry.tone) for entry in turn.entries if isinstance(entry, Note)] == [
        ("Waits for 2 answers", "wait"),
        ("Goes on with 2 answers, after 1.0 s", "good"),
    ]


def test_a_journal_that_begins_in_the_middle_is_shown_from_there() -> None:
    """Without the turns before."""
    [turn] = timeline(events(("run.resumed", {"answers": 2}), ("run.completed", {"reason": None})), {}, {})
    assert [entry.text for entry in turn.entries if isinstance(entry, Note)] == ["Goes on with 2 answers", "Completed"]


@given(st.text(st.characters(codec=None)))
def test_nothing_in_a_text_hides(text: str) -> None:
    """No control, no mark of direction and no half of a pair is left, line ends and joiners apart; JSON still says the same."""
    assert all(category(char) not in HIDING or char in "\n\t\u200c\u200d" for char in visible(text))
    spelled = pretty({text: text})
    assert json.loads(spelled) == json.loads(json.dumps({text: text}))
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f]", visible(text) + spelled)


def test_amounts_are_spelled() -> None:
    """With units; an unknown price is not zero."""
    assert [duration(ms) for ms in (0, 999, 1_500, 60_000, 7_200_000)] == ["0 ms", "999 ms", "1.5 s", "1 min", "2 h"]
    assert [money(micros) for micros in (None, 0, 1_234, 12_000_000)] == ["unknown", "$0.0000", "$0.0012", "$12.00"]
    assert clipped("x" * 12, 10) == "x" * 10 + "… 2 more characters"


def test_a_time_behind_all_calendars_is_their_last() -> None:
    """One such expiry among what waits in a scope would else be the end of the page for everybody."""
    assert (moment(10**15), iso(10**15)) == ("9999-12-31 23:59:59 UTC", "9999-12-31T23:59:59Z")
    assert iso(1_000) == "1970-01-01T00:00:01Z"
