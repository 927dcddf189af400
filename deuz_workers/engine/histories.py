"""Recent histories of a process, so that a step loads only the rows it has not seen (architecture D3)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from deuz_workers.core.change import Head
from deuz_workers.core.run import Read, Run
from deuz_workers.ports.store import Known


@dataclass(frozen=True, slots=True)
class Remembered:
    known: Known
    read: Read
    revision: int
    """That was saved, as this process knows first hand."""


class Histories:
    """Least recently used first out, bounded by the size of their text. Only saved messages are kept."""

    def __init__(self, max_bytes: int = 64_000_000) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._by_name: OrderedDict[tuple[str, str], tuple[UUID, Remembered]] = OrderedDict()

    def find(self, scope: str, run_id: str) -> Remembered | None:
        entry = self._by_name.get((scope, run_id))
        return entry[1] if entry else None

    def fits(self, remembered: Remembered, head: Head) -> bool:
        """The remembered history is a beginning of what the head counts."""
        entry = self._by_name.get((head.scope, head.run_id))
        known = remembered.known
        if entry is None or entry[0] != head.rid or known.last_seq > head.last_seq:
            return False
        return (known.epoch, known.compactions) == (head.epoch, head.compactions)

    def revision_of(self, head: Head) -> int:
        """The highest revision of the run that this process remembers to be saved; 0 when it remembers none."""
        entry = self._by_name.get((head.scope, head.run_id))
        return entry[1].revision if entry is not None and entry[0] == head.rid else 0

    def keep(self, run: Run) -> None:
        """Remember a saved run, or forget it once it has ended."""
        name = (run.envelope.scope, run.envelope.run_id)
        self.forget(*name)
        if run.envelope.is_final or run.unsaved.any or run.history.size_bytes > self._max_bytes:
            return
        known = Known(run.envelope.epoch, run.envelope.last_seq, run.step, run.compaction.number)
        read = Read(run.history, run.compaction)
        self._by_name[name] = (run.envelope.rid, Remembered(known, read, run.envelope.revision))
        self._size_bytes += run.history.size_bytes
        while self._size_bytes > self._max_bytes:
            self.forget(*next(iter(self._by_name)))

    def forget(self, scope: str, run_id: str) -> None:
        entry = self._by_name.pop((scope, run_id), None)
        if entry is not None:
            self._size_bytes -= entry[1].read.history.size_bytes
