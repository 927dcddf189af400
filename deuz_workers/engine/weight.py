"""What is too much to encode on the event loop, where every other run of the process waits (architecture D8)."""

from __future__ import annotations

HEAVY_SIZE = 65_536
"""Characters or bytes of one text."""
HEAVY_ENTRIES = 100
"""Of one collection; what lies deeper is not looked at."""


def is_heavy(value: object) -> bool:
    """Encoding this leaves the loop. What is neither a plain value nor a builtin collection may be of any size."""
    match value:
        case str() | bytes() | bytearray():
            return len(value) > HEAVY_SIZE
        case list() | dict() | tuple() | set() | frozenset():
            return len(value) > HEAVY_ENTRIES
        case bool() | int() | float() | None:
            return False
        case _:
            return True
