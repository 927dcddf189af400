"""Rates: how many calls, and tokens of model calls, may begin per minute, over all workers.

A rate is a bucket that fills by the database's clock up to `BURST_MS` worth and that every effect takes from before it begins,
so that in any minute no more begins than the limit and a sixth of it. What asks for more than the bucket holds may begin when
that is full, and the others wait until it has filled up again. Of a model call the estimate is taken, and what it did not use
given back. A model call whose provider asks to wait shuts the buckets that it took from until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

RateKind = Literal["key", "tool", "model"]
RATE_KINDS: tuple[RateKind, ...] = get_args(RateKind)
BURST_MS = 10_000
"""A bucket that is full lets so much of a minute's worth begin at once, one call at least."""
MOST_PER_MINUTE = 10**9
MOST_AT_A_TIME = 1_000
"""Each is a lease, and whoever looks for a free one may have to ask for all."""


@dataclass(frozen=True, slots=True)
class RateName:
    """What a rate is of: a concurrency key of a scope, or a tool or a model of the whole pool."""

    kind: RateKind
    name: str
    scope: str = ""
    """Of a key; empty for the others."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if not self.scope else f"{self.kind}:{self.name} of {self.scope}"


@dataclass(frozen=True, slots=True)
class Rate:
    """The limits of one name; None: that is not limited."""

    of: RateName
    calls_per_minute: int | None = None
    tokens_per_minute: int | None = None
    at_a_time: int | None = None
    """Calls of a tool that run at the same time."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one effect, or several of a batch, take of a rate."""

    of: RateName
    calls: int = 1
    tokens: int = 0
