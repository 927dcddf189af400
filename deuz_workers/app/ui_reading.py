"""Reading a UI stream in Python: from the lines of a server-sent-event response to its parts. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from deuz_workers.errors import CodecError


@dataclass(frozen=True, slots=True)
class UiFrame:
    """One event. `seq`: its id, to be sent as `Last-Event-ID` when the stream is opened again; None: it is not recorded."""

    seq: int | None
    part: Mapping[str, Any] | None
    """None: `[DONE]`, the leg is over."""

    @property
    def is_done(self) -> bool:
        return self.part is None


class UiReader:
    """Takes the bytes of a response as they come, and gives whole frames; what an earlier response gave is left out."""

    def __init__(self, last_seq: int = 0) -> None:
        """`last_seq`: the newest frame that the caller has."""
        self.last_seq = last_seq
        self._rest = b""
        self._id: int | None = None
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[UiFrame]:
        """Raises `CodecError` for an event that is no part."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [frame for line in lines for frame in self._take(line.rstrip(b"\r").decode())]

    def _take(self, line: str) -> Iterator[UiFrame]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            yield from self._event()
        elif name == "id":
            self._id = int(value) if value.isascii() and value.isdigit() else None
        elif name == "data":
            self._data.append(value)

    def _event(self) -> Iterator[UiFrame]:
        seq, data = self._id, "\n".join(self._data)
        had_data, self._id, self._data = bool(self._data), None, []
        if not had_data:
            return
        if data == "[DONE]":
            self.last_seq = max(self.last_seq, seq or 0)
            yield UiFrame(seq, None)
            return
        if seq is not None and seq <= self.last_seq:
            return
        self.last_seq = max(self.last_seq, seq or 0)
        yield UiFrame(seq, _part(data))


def read_ui_frames(chunks: Iterable[bytes], last_seq: int = 0) -> Iterator[UiFrame]:
    """The frames of a whole response. Raises `CodecError`."""
    reader = UiReader(last_seq)
    for chunk in chunks:
        yield from reader.feed(chunk)


def _part(data: str) -> Mapping[str, Any]:
    try:
        part = json.loads(data)
    except ValueError:
        part = None
    if not isinstance(part, dict) or not isinstance(cast("dict[str, Any]", part).get("type"), str):
        raise CodecError("an event of the stream is no part: not a JSON object with a type")
    return cast("dict[str, Any]", part)
