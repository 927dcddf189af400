"""A sign of life of the thread that consumes, told to all processes of a worker."""

from __future__ import annotations

import mmap
import struct

_STAMP = struct.Struct("=q")
_LEAVING = _STAMP.size


class Pulse:
    """Nine bytes of anonymous memory that a parent and the children it forks later share: reading and writing take no lock."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _LEAVING + 1)

    def beat(self, now_ms: int) -> None:
        """The consuming thread was here. `now_ms`: monotonic, one clock for all processes of a machine."""
        _STAMP.pack_into(self._memory, 0, now_ms)

    def silent_ms(self, now_ms: int) -> int:
        """Since the last sign of life; 0 before the first."""
        (then_ms,) = _STAMP.unpack_from(self._memory, 0)
        return now_ms - then_ms if then_ms else 0

    @property
    def is_leaving(self) -> bool:
        """The worker ends because it consumes nothing, not because somebody asked it to."""
        return self._memory[_LEAVING] == 1

    def leave(self) -> None:
        self._memory[_LEAVING] = 1
