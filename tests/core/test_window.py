"""How long a queue gets, whose its places are, and when it is allowed to be longer."""

from __future__ import annotations

import pytest

from deuz_workers.core.window import MOST_SPARE, Look, Window, open_places, spare_places


class Queue:
    """A queue, and a process that feeds it while `backlog` runs wait; the size is kept beside the queue."""

    def __init__(self, least: int, most: int) -> None:
        self.window = Window(least, most)
        self.size = least

    def look(self, waiting: int, backlog: int = 1_000) -> int:
        """A look at the queue, and what was fed after it."""
        self.size = max(self.window.fit(Look(waiting, self.size)), waiting)
        look = Look(waiting, self.size)
        self.window.see(look)
        added = min(look.room, backlog)
        if added:
            self.window.fed(added)
        return added


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16, 64, 500])
def test_some_places_are_kept(size: int) -> None:
    """A quarter, at least one where there are two, and never so many that steps could not go on."""
    assert open_places(size) + spare_places(size) == size
    assert open_places(size) >= 1
    assert 0 <= spare_places(size) <= MOST_SPARE
    assert (spare_places(size) > 0) == (size > 1)


@pytest.mark.parametrize(("waiting", "room", "spare"), [(0, 6, 2), (5, 1, 2), (6, 0, 2), (7, 0, 1), (8, 0, 0), (30, 0, 0)])
def test_open_places_are_taken_first(waiting: int, room: int, spare: int) -> None:
    """Of a window of eight two are kept; what others put into the queue leaves less room, and never less than none."""
    look = Look(waiting, 8)
    assert (look.room, look.spare) == (room, spare)


def test_a_queue_is_filled_up_to_its_open_places_and_not_beyond() -> None:
    """What waits already is counted."""
    queue = Queue(8, 100)
    assert [queue.look(waiting) for waiting in (0, 8, 5, 6)] == [6, 0, 1, 0]
    assert queue.size == 8


def test_a_window_that_is_emptied_between_two_looks_is_doubled() -> None:
    """Up to a bound, as long as more waits than was fed."""
    queue = Queue(8, 100)
    sizes: list[int] = []
    for _ in range(6):
        queue.look(0)
        sizes.append(queue.size)
    assert sizes == [8, 16, 32, 64, 100, 100]


def test_a_window_that_nobody_empties_goes_back() -> None:
    """Step by step to its least size, and never below what waits."""
    queue = Queue(8, 100)
    for _ in range(4):
        queue.look(0)
    waiting = queue.size
    while waiting > 8:
        waiting -= 1
        queue.look(waiting, backlog=0)
        assert queue.size >= waiting
    assert queue.size == 8


def test_a_queue_that_could_be_fed_in_full_does_not_grow() -> None:
    """Everything that waited got a place, so no worker lacks anything."""
    queue = Queue(8, 100)
    for _ in range(5):
        assert queue.look(0, backlog=3) == 3
        assert not queue.window.is_short
    assert queue.size == 8


@pytest.mark.parametrize("waiting", [0, 5])
def test_a_window_is_short_while_more_may_wait(waiting: int) -> None:
    """That is when it is looked at again soon."""
    queue = Queue(5, 5)
    queue.look(waiting)
    assert queue.window.is_short
    queue.look(2, backlog=1)
    assert not queue.window.is_short
