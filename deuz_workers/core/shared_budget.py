"""Budgets that runs share with others: of a user, an organisation, a thread; for life or for a rolling window of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from deuz_workers.core.usage import Budget
from deuz_workers.errors import ConfigurationError

DEFAULT_BUCKETS = 12
"""A window of an hour then gives back what was used in steps of five minutes."""
MAX_BUCKETS = 400
"""They stand in the scope's row, which every reservation writes: 10 KB of it."""
MAX_WINDOW_MS = 10 * 366 * 86_400_000
MAX_KEY_LENGTH = 200
NO_LIMIT = Budget()
RESERVED = "run:"
"""Begins the keys of budgets that belong to one run."""


@dataclass(frozen=True, slots=True)
class Window:
    """The newest `ms` milliseconds by the database's clock, in `buckets` parts of equal length.

    What was used leaves bucket by bucket: what counts was used within `ms` at most and within a bucket less at least.
    """

    ms: int
    buckets: int = DEFAULT_BUCKETS

    def __post_init__(self) -> None:
        """Raises `ConfigurationError`."""
        if type(self.buckets) is not int or not 1 <= self.buckets <= MAX_BUCKETS:
            raise ConfigurationError(f"a window has 1 to {MAX_BUCKETS} buckets, not {self.buckets!r}")
        if type(self.ms) is not int or not self.buckets <= self.ms <= MAX_WINDOW_MS:
            raise ConfigurationError(
                f"a window lasts from one millisecond a bucket to {MAX_WINDOW_MS} ms, not {self.ms!r}; "
                "budgets without a window are for life"
            )


@dataclass(frozen=True, slots=True)
class SharedBudget:
    """A scope that the model calls of a run are also charged to, and what this run holds it to.

    The scope itself may have limits too (`set_budget`); the stricter one counts. Two runs may hold one scope to different
    limits, but not to different windows: the first use of a key decides which one it has.
    """

    key: str
    limit: Budget = NO_LIMIT
    window: Window | None = None
    """None: for life."""
    warn_at_percent: int | None = None
    """Of the limit: a reservation that lifts what is used to it or above is told, once per run. None: as the scope says, else
    the setting `budget_warn_percent`."""
    as_stored: bool = False
    """The scope is charged as it is; a key alone means that."""
    inherited: bool = False
    """A part of the ledger of the run above, to which runs in its execution context are charged. Given by that context, not by
    people: its key belongs to that run."""

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for what cannot be meant."""
        key = self.key
        if type(key) is not str or not key or len(key) > MAX_KEY_LENGTH or not key.isprintable() or "#" in key:
            raise ConfigurationError(
                f"the key of a shared budget is up to {MAX_KEY_LENGTH} characters of text without '#', not {key!r}"
            )
        if key.startswith(RESERVED) and not self.inherited:
            raise ConfigurationError(f"keys that begin with {RESERVED!r} belong to runs; do not call a shared budget {key!r}")
        percent = self.warn_at_percent
        if percent is not None and (type(percent) is not int or not 1 <= percent <= 100):
            raise ConfigurationError(f"warn_at_percent is a whole number from 1 to 100, not {percent!r}")
        if self.as_stored and (self.limit.is_limited or self.window is not None):
            raise ConfigurationError(f"shared budget {key!r} is charged as it is stored or held to limits, not both")

    def to_record(self) -> dict[str, object]:
        """What it does not say is absent."""
        record: dict[str, object] = {"key": self.key}
        if self.limit.is_limited:
            record["limit"] = [self.limit.tokens, self.limit.usd_micros]
        if self.window is not None:
            record["window"] = [self.window.ms, self.window.buckets]
        if self.warn_at_percent is not None:
            record["warn_at_percent"] = self.warn_at_percent
        if self.as_stored:
            record["as_stored"] = True
        if self.inherited:
            record["inherited"] = True
        return record

    @staticmethod
    def from_record(record: Mapping[str, object]) -> SharedBudget:
        """Raises `ConfigurationError` for a record that is none of ours: a limit that cannot be read is no missing limit."""
        if unknown := record.keys() - {"key", "limit", "window", "warn_at_percent", "as_stored", "inherited"}:
            raise ConfigurationError(f"a shared budget has no {sorted(unknown)}")
        limit = cast("list[int | None]", record.get("limit", [None, None]))
        window = cast("list[int] | None", record.get("window"))
        return SharedBudget(
            cast(str, record["key"]),
            Budget(*limit),
            None if window is None else Window(*window),
            cast("int | None", record.get("warn_at_percent")),
            record.get("as_stored") is True,
            record.get("inherited") is True,
        )


def tightened(mine: tuple[SharedBudget, ...], given: tuple[SharedBudget, ...]) -> tuple[SharedBudget, ...]:
    """What a run is held to that was held to `mine`, in the order of their keys: more keys, and of each the stricter limits.

    A window stays as it is where there is one; that of a key which was charged as it is stored is what `given` says.
    """
    found = {one.key: one for one in mine}
    for one in given:
        found[one.key] = _tighter(found[one.key], one) if one.key in found else one
    return tuple(sorted(found.values(), key=lambda one: one.key))


def _tighter(mine: SharedBudget, given: SharedBudget) -> SharedBudget:
    limit = Budget(_lower(mine.limit.tokens, given.limit.tokens), _lower(mine.limit.usd_micros, given.limit.usd_micros))
    percent = _lower(mine.warn_at_percent, given.warn_at_percent)
    as_stored = mine.as_stored and given.as_stored
    window = given.window if mine.as_stored else mine.window
    return SharedBudget(mine.key, limit, None if as_stored else window, percent, as_stored, mine.inherited)


def _lower(mine: int | None, theirs: int | None) -> int | None:
    return min((limit for limit in (mine, theirs) if limit is not None), default=None)


def shared_keys(shared: tuple[SharedBudget, ...]) -> tuple[str, ...]:
    """In the order in which reservations lock them: after those of the tree, by key."""
    return tuple(sorted(budget.key for budget in shared))
