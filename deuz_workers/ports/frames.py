"""Journals of what readers of runs were shown, so that whoever comes back is shown the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class FrameRow:
    """One frame. `seq` counts from 1 without gaps; `body` is JSON as it is sent."""

    seq: int
    body: str


@runtime_checkable
class FrameStore(Protocol):
    """Each operation is atomic. What cannot be reached raises `StoreUnavailableError`."""

    async def append_frames(self, scope: str, stream_id: str, after: int, bodies: Sequence[str]) -> bool:
        """All of them behind number `after`, or none where the newest has another number: somebody else has written."""
        ...

    async def read_frames(self, scope: str, stream_id: str, after: int, limit: int) -> tuple[FrameRow, ...]:
        """Those above `after`, in order."""
        ...

    async def last_frame(self, scope: str, stream_id: str) -> FrameRow | None: ...

    async def delete_frames(self, scope: str, stream_id: str) -> None:
        """The stream is empty. Those named by the rid or id of a run also go when that is pruned."""
        ...
