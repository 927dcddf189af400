"""How many doorbells a queue holds while more runs wait than there is room for (architecture D13).

About one per slot, so that what comes later and is entitled to go first waits for one step at most. Nobody counts the slots of
all workers: a queue that was filled and is found empty at the next look was too short for them, and its window is doubled; one
that is found half full is long enough, and its window goes back.
"""

from __future__ import annotations


class Window:
    """Of one queue, as one process feeds it."""

    def __init__(self, least: int, most: int) -> None:
        """`least`: slots of a worker. `most`: equal to `least` for a window that stays as it is."""
        self._least = least
        self._most = max(least, most)
        self._room = 0
        self.size = least
        self.is_short = False
        """The last look left no room, so that more may wait than was fed."""

    def look(self, waiting: int) -> int:
        """Doorbells that fit beside the `waiting` ones; the size follows from what became of those that were fed before."""
        if waiting == 0 and self.is_short and self._room > 0:
            self.size = min(self._most, self.size * 2)
        elif waiting > self.size // 2:
            self.size = max(self._least, self.size * 3 // 4)
        self._room = max(0, self.size - waiting)
        self.is_short = self._room == 0
        return self._room

    def fed(self, count: int) -> None:
        """`count` doorbells were added after the last look."""
        self.is_short = count >= self._room
