"""Which waiting runs get the next places in a queue (architecture D13).

The broker is first in, first out and knows no tenant, so it holds few doorbells, and what enters it is chosen here: by
priority, then from the scope of which the fewest runs are at work, then by age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that could begin and for which nobody has rung."""

    run: bytes
    key: Hashable
    """What is treated fairly: queue and scope."""
    priority: int
    since_ms: int
    running: int
    """Runs of the same key that are at work, or were rung for and have not begun."""


def choose(waiting: Iterable[Waiting], room: int, spare: int = 0) -> list[bytes]:
    """The runs that get a place, best first: `room` of them, and up to `spare` that are the first of their key.

    So a scope of which nothing runs begins although others fill the queue, and a priority does not shut it out.
    """
    turns: Counter[Hashable] = Counter()
    ranked: list[tuple[tuple[int, int, int, bytes], bool]] = []
    for run in sorted(waiting, key=lambda run: (-run.priority, run.since_ms, run.run)):
        turns[run.key] += 1
        share = run.running + turns[run.key]
        ranked.append(((-run.priority, share, run.since_ms, run.run), share == 1))
    ranked.sort()
    chosen = [order[3] for order, _ in ranked[: max(0, room)]]
    firsts = sorted((order[0], order[2], order[3]) for order, is_first in ranked if is_first)
    taken = set(chosen)
    return chosen + [run for _, _, run in firsts[:spare] if run not in taken]
