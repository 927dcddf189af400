"""Server-sent events, read incrementally from bytes that were cut anywhere.

Follows the event stream format of the HTML standard (https://html.spec.whatwg.org/multipage/server-sent-events.html): lines
end in LF, CR or CRLF, `data` lines of one event are joined by LF, comments are skipped, and an event that the stream ends in
the middle of is discarded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """`name` is `message` where the server gave none."""

    name: str
    data: str


class EventReader:
    """Feed it bytes, it returns the events that they complete."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._at_start = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Raises: `UnicodeDecodeError`, for a line that is not UTF-8. (The standard replaces such bytes; arguments of a tool
        call must not be guessed.)"""
        # In the middle of a line: looking through all of it at every chunk would cost the square of its length.
        ends_nothing = not (self._at_start or self._pending.endswith(b"\r") or b"\n" in chunk or b"\r" in chunk)
        self._pending += chunk
        if ends_nothing:
            return []
        if self._at_start and len(self._pending) >= 3:
            self._at_start = False
            if self._pending.startswith(b"\xef\xbb\xbf"):
                del self._pending[:3]
        if not self._at_start or b"\n" in self._pending or b"\r" in self._pending:
            return self._take_lines()
        return []

    def _take_lines(self) -> list[ServerEvent]:
        # A CR at the very end may be the first half of a CRLF: the line waits for the next byte.
        whole, held = (self._pending[:-1], self._pending[-1:]) if self._pending.endswith(b"\r") else (self._pending, b"")
        lines = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._pending = bytearray(lines.pop() + held)
        return [event for line in lines if (event := self._take_line(line.decode("utf-8"))) is not None]

    def _take_line(self, line: str) -> ServerEvent | None:
        if not line:
            event = ServerEvent(self._name or "message", "\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            return event
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None
