"""Journals of UI streams: where recorded parts are kept for readers who come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.frames import FrameRow, FrameStore
from deuz_workers.ports.store import RunStore

PAGE = 500
"""Frames that are read at once."""


class UiJournal(Protocol):
    """One stream. Of two writers of one number the second is refused, and writes nothing."""

    async def append(self, seq: int, parts: Sequence[str]) -> bool:
        """The first of the parts gets the number `seq`, which has to follow the newest; False: it does not."""
        ...

    async def read(self, from_seq: int) -> tuple[FrameRow, ...]:
        """A page of parts from that number on, in order; empty where there are none."""
        ...

    async def last(self) -> FrameRow | None:
        """The newest part."""
        ...

    async def delete(self) -> None:
        """It is empty."""
        ...


class StoredJournal:
    """A `UiJournal` in the store of the runs, as stream `stream_id` of a scope."""

    def __init__(self, store: RunStore, scope: str, stream_id: str) -> None:
        """Raises `ConfigurationError` for a store of yours that keeps no frames."""
        if not isinstance(store, FrameStore):
            raise ConfigurationError(
                f"{type(store).__name__} keeps no frames of streams; give it the methods of ports.frames.FrameStore"
            )
        self._store: FrameStore = store
        self._scope = scope
        self._stream_id = stream_id

    async def append(self, seq: int, parts: Sequence[str]) -> bool:
        return await self._store.append_frames(self._scope, self._stream_id, seq - 1, parts)

    async def read(self, from_seq: int) -> tuple[FrameRow, ...]:
        return await self._store.read_frames(self._scope, self._stream_id, from_seq - 1, PAGE)

    async def last(self) -> FrameRow | None:
        return await self._store.last_frame(self._scope, self._stream_id)

    async def delete(self) -> None:
        await self._store.delete_frames(self._scope, self._stream_id)
