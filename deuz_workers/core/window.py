"""How many doorbells a queue holds (architecture D13), and which of its places are for whom.

About one per slot, so that what comes later and is entitled to go first waits for one step at most. Nobody counts the slots of
all workers: a queue that was filled and is found empty at the next look was too short for them, and its window is doubled; one
that is found half full is long enough, and its window goes back. The value that is current is kept beside the queue, where a
doorbell is pushed and the window looked at in one act; it never goes below what waits.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_SPARE = 16
"""More scopes that begin in the same moment wait for the next look."""


def spare_places(size: int) -> int:
    """Places of a window that steps and producers leave alone: the sweep has them for the first run of each scope of which
    nothing runs, and for runs at work whose doorbell was lost. Runs that go on would never let the window empty.
    """
    return 0 if size < 2 else max(1, min(MOST_SPARE, size // 4))


def open_places(size: int) -> int:
    """The places that everybody may take."""
    return size - spare_places(size)


@dataclass(frozen=True, slots=True)
class Look:
    """What is in a queue at one moment."""

    waiting: int
    """Doorbells that nobody has taken yet."""
    size: int
    """Of the window, at least `waiting` unless somebody else's messages lie in the queue."""
    may_feed: bool = True
    """Nobody else was told so just before."""

    @property
    def room(self) -> int:
        """Open places that are free."""
        return max(0, open_places(self.size) - self.waiting)

    @property
    def spare(self) -> int:
        """Free places beside `room`."""
        return max(0, self.size - self.waiting - self.room)


class Window:
    """Of one queue, as one process feeds it."""

    def __init__(self, least: int, most: int) -> None:
        """`least`: slots of a worker. `most`: equal to `least` for a window that stays as it is."""
        self._least = least
        self._most = max(least, most)
        self._room = 0
        self.is_short = False
        """The last look left no room, so that more may wait than was fed."""

    def fit(self, look: Look) -> int:
        """The size that follows from what became of the doorbells that were fed after the look before."""
        if look.waiting == 0 and self.is_short and self._room > 0:
            return max(look.size, min(self._most, look.size * 2))
        if look.waiting > look.size // 2:
            return max(self._least, look.size * 3 // 4)
        return look.size

    def see(self, look: Look) -> None:
        """This look is the last one."""
        self._room = look.room
        self.is_short = self._room == 0

    def fed(self, count: int) -> None:
        """`count` doorbells were added after the last look."""
        self.is_short = count >= self._room
