"""The stretches of a long run that are measured, and what is read at their edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

WINDOWS: Mapping[int, tuple[int, int]] = {10: (5, 15), 100: (75, 125), 500: (125, 900), 1_000: (900, 1_000)}
"""First and last turn of the stretch around a turn; wide enough that a step's share of rarer work is in it. The long one in the
middle is what the floor's chain, as long and without a stop, is compared with."""

Figures = dict[str, float]
"""By name of the figure; the names are those of `table.ROWS`."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Counters at a moment when a run stood at a gate. What a store does not have is 0."""

    came_ns: int
    """When the run came to the gate, by the machine's monotonic clock."""
    went_ns: int
    commits: int
    wal_bytes: int
    row_bytes: int
    head_bytes: int


def windows_within(turns: int) -> Mapping[int, tuple[int, int]]:
    return {at: window for at, window in WINDOWS.items() if window[1] <= turns}


def gates_of(turns: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(edge for window in windows_within(turns).values() for edge in window))


def figures_of(edges: Mapping[int, Edge], *, idle_wal_bytes_per_s: float = 0.0) -> Figures:
    """What a turn cost within each window whose edges are there."""
    figures: Figures = {}
    for at, (first, last) in WINDOWS.items():
        if last not in edges:
            continue
        begin, end, turns = edges[first], edges[last], last - first
        seconds = (end.came_ns - begin.went_ns) / 1e9
        figures[f"ms_per_turn_at_{at}"] = seconds * 1000 / turns
        figures[f"row_bytes_per_turn_at_{at}"] = (end.row_bytes - begin.row_bytes) / turns
        figures[f"wal_bytes_per_turn_at_{at}"] = (end.wal_bytes - begin.wal_bytes - idle_wal_bytes_per_s * seconds) / turns
        figures["commits_per_turn"] = (end.commits - begin.commits) / turns
        figures["head_bytes"] = end.head_bytes
    return figures


def medians(repeats: Sequence[Figures]) -> Figures:
    """Of every figure, over repeats."""
    return {name: median(figures[name] for figures in repeats if name in figures) for name in _names(repeats)}


def _names(repeats: Iterable[Figures]) -> list[str]:
    return list(dict.fromkeys(name for figures in repeats for name in figures))
