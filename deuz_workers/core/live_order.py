"""Live parts of a run in the order of its commits, whatever processes they came from and however these were overtaken.

Every commit tells one part at least, so a revision that is missing is a part that is under way, or lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from deuz_workers.core.live import LivePart


class LiveOrder:
    """`revision`: of the run when its reader came; what is told of later ones is expected."""

    def __init__(self, revision: int = 0) -> None:
        self._seen = revision
        self._held: list[LivePart] = []

    @property
    def is_waiting(self) -> bool:
        """Parts are held back until an earlier one comes, or `give_up`."""
        return bool(self._held)

    def came_at(self, revision: int) -> None:
        """What was told of this revision and earlier ones is not expected any more."""
        self._seen = max(self._seen, revision)

    def take(self, parts: Iterable[LivePart]) -> list[LivePart]:
        """Those that may be shown now. A part of a commit is held back while one of an earlier commit is missing."""
        ready: list[LivePart] = []
        for part in parts:
            if part.kind in ("dropped", "lost") or part.epoch <= self._seen + 1:
                self._seen = max(self._seen, part.epoch)
                ready.append(part)
            else:
                self._held.append(part)
        return [*ready, *self._follow()]

    def give_up(self) -> list[LivePart]:
        """The missing part does not come: what was held back, behind a part that says so."""
        if not self._held:
            return []
        self._held.sort(key=lambda part: part.epoch)
        self._seen = self._held[0].epoch
        return [LivePart("lost"), *self._follow()]

    def _follow(self) -> list[LivePart]:
        """What was held back and follows what was shown; in the order of commits, and within one as it came."""
        self._held.sort(key=lambda part: part.epoch)
        count = 0
        for part in self._held:
            if part.epoch > self._seen + 1:
                break
            self._seen = max(self._seen, part.epoch)
            count += 1
        shown, self._held = self._held[:count], self._held[count:]
        return shown
