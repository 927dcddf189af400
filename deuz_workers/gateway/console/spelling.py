"""How pages spell values: whatever is in a text, what is read is what is there."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_KEPT = "\n\t"
_JOINERS = "\u200c\u200d"
"""Needed to write Persian and to join emoji; they turn nothing around."""
_LAST_MS = 253_402_300_799_000
"""The end of the year 9999, behind which no calendar reaches."""


def visible(text: object) -> str:
    """The text with everything spelled out that could hide or reorder what stands beside it: controls, marks of direction,
    halves of surrogate pairs."""
    given = text if isinstance(text, str) else str(text)
    if given.isascii() and given.isprintable():
        return given
    return "".join(f"⟨U+{ord(char):04X}⟩" if _hides(char) else char for char in given.replace("\r\n", "\n"))


def _hides(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in _KEPT and char not in _JOINERS


def clipped(text: str, most: int) -> str:
    """At most so many characters, and how many there were more."""
    return text if len(text) <= most else f"{text[:most]}… {len(text) - most:,} more characters"


def pretty(value: object) -> str:
    """JSON over several lines, which says the same to a program; what could hide or reorder its text is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return text if text.isascii() else "".join(_escaped(char) if _hides(char) else char for char in text)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) != 0x7F else "\\u007f"


def duration(ms: int) -> str:
    """`340 ms`, `4.2 s`, `3 min`, `5 h`, `2 d`."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    unit_ms, unit = next(pair for pair in _UNITS if ms >= pair[0])
    return f"{ms / unit_ms:.0f} {unit}"


def money(micros: int | None) -> str:
    """Of millionths of a US dollar; an unknown price is not zero."""
    if micros is None:
        return "unknown"
    return f"${micros / 1_000_000:,.4f}" if micros < 1_000_000 else f"${micros / 1_000_000:,.2f}"


def number(value: int) -> str:
    return f"{value:,}"


def counted(value: int, what: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{value:,} {what}" if value == 1 else f"{value:,} {what}s"


def moment(ms: int) -> str:
    """Unix time as people read it, in UTC; the script turns it into theirs."""
    return _at(ms).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(ms: int) -> str:
    return _at(ms).isoformat(timespec="seconds").replace("+00:00", "Z")


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(min(ms, _LAST_MS) / 1_000, UTC)
