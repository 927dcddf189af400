"""When a run is told that a budget it spends from is nearly used up (WIN-007): once per scope and dimension.

What was told stands in the run's own record, so that it is told once however many processes take its steps. A scope that
was below its threshold again in the meantime is told anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from deuz_workers.core.change import ScopeUse

Dimension = Literal["tokens", "usd"]


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """A model call was admitted that lifts what counts in a scope to its threshold or above."""

    key: str
    """Of the scope."""
    dimension: Dimension
    percent: int
    """Of the limit, rounded down; above 100 where calls used more than was reserved for them."""
    scope: str = ""
    run_id: str = ""
    """Of the run that was told."""


def stood(
    charged: Iterable[ScopeUse], warned: frozenset[tuple[str, str]]
) -> tuple[tuple[BudgetWarning, ...], frozenset[tuple[str, str]]]:
    """What is new to a run that was told of `warned`, and of what it has been told afterwards."""
    fresh: list[BudgetWarning] = []
    told = set(warned)
    for use in charged:
        dimensions: tuple[tuple[Dimension, int | None, int | None], ...] = (
            ("tokens", use.used.tokens, use.limit.tokens),
            ("usd", use.used.usd_micros, use.limit.usd_micros),
        )
        for dimension, used, limit in dimensions:
            if used is None or not limit:
                continue
            if used * 100 < limit * use.warn_percent:
                told.discard((use.key, dimension))
            elif (use.key, dimension) not in told:
                told.add((use.key, dimension))
                fresh.append(BudgetWarning(use.key, dimension, used * 100 // limit))
    return tuple(fresh), frozenset(told)
