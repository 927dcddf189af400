"""A `traceparent` as text: what a run is part of (W3C Trace Context, level 1, section 3.2, https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple
from uuid import UUID

_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceParent(NamedTuple):
    trace_id: int
    span_id: int
    flags: int

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


def read_trace_parent(text: object) -> TraceParent | None:
    """None for what is none: it comes from outside, and whoever sent it is not told."""
    found = _SHAPE.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    parent = TraceParent(int(found[2], 16), int(found[3], 16), int(found[4], 16))
    return parent if parent.trace_id and parent.span_id else None


def trace_parent_of(rid: UUID) -> TraceParent:
    """Of a run that nobody who was traced has started: every process makes the same, so that it has one trace all the same."""
    return TraceParent(rid.int, int.from_bytes(hashlib.sha256(rid.bytes).digest()[:8]) or 1, 1)
