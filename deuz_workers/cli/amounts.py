"""Times, tokens and money as people read them."""

from __future__ import annotations

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def duration(ms: float) -> str:
    """`340 ms`, `4.2 s`, `3 min`, `5 h`, `2 d`."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    unit_ms, unit = next(pair for pair in _UNITS if ms >= pair[0])
    return f"{ms / unit_ms:.0f} {unit}"


def ago(then_ms: int, now_ms: int) -> str:
    """How long before `now_ms`; both Unix time in milliseconds by one clock."""
    return f"{duration(max(0, now_ms - then_ms))} ago"


def tokens(count: int) -> str:
    return f"{count:,}"


def money(micros: int | None) -> str:
    """Of millionths of a US dollar; an unknown price is not zero."""
    if micros is None:
        return "unknown"
    return f"${micros / 1_000_000:,.4f}" if micros < 1_000_000 else f"${micros / 1_000_000:,.2f}"


def cost(micros: int | None) -> str:
    """`money` in a sentence, where a bare `unknown` would leave open what of."""
    return "cost unknown" if micros is None else money(micros)


def counted(number: int, what: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
