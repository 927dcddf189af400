"""How long a queue may be."""

from __future__ import annotations

import pytest

from deuz_workers.core.window import Window


def look(window: Window, waiting: int, backlog: int = 1_000) -> int:
    """Look at a queue with so many doorbells, fill it from the backlog; how many were added."""
    room = window.look(waiting)
    added = min(room, backlog)
    if room:
        window.fed(added)
    return added


def test_a_queue_is_filled_up_to_its_window_and_not_beyond() -> None:
    """What steps at work put there takes room like everything else."""
    window = Window(10, 100)
    assert [look(window, waiting) for waiting in (0, 10, 7, 25, 10)] == [10, 0, 3, 0, 0]
    assert window.size == 10


def test_a_window_that_is_emptied_between_two_looks_is_doubled() -> None:
    """Up to its bound, for short steps would find nothing to do otherwise."""
    window = Window(10, 100)
    assert [look(window, 0) for _ in range(6)] == [10, 20, 40, 80, 100, 100]


def test_a_window_that_nobody_empties_goes_back() -> None:
    """What is fed waits for about one step only."""
    window = Window(10, 100)
    for _ in range(5):
        look(window, 0)
    for _ in range(20):
        look(window, window.size)
    assert window.size == 10


def test_a_queue_that_is_short_because_nothing_waits_stays_as_it_is() -> None:
    """It is emptied all the time, and never short of room."""
    window = Window(10, 100)
    for _ in range(5):
        assert look(window, 0, backlog=3) == 3
        assert not window.is_short
    assert window.size == 10


@pytest.mark.parametrize("waiting", [5, 0])
def test_whether_more_may_wait_is_known_after_each_look(waiting: int) -> None:
    """It does when everything that fitted was used, and when nothing fitted."""
    window = Window(5, 5)
    look(window, waiting)
    assert window.is_short
    look(window, 3, backlog=1)
    assert not window.is_short
