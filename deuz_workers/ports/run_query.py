"""Which runs a listing shows, and a page of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast, get_args

from deuz_workers.core.change import Head, RunKind, RunStatus
from deuz_workers.errors import ConfigurationError

NO_TAGS: Mapping[str, str] = MappingProxyType({})
MOST_IN_A_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class RunQuery:
    """All given filters must hold. Order: newest `status_at` first; `cursor` continues after the last row of a page."""

    scope: str | None = None
    status: tuple[RunStatus, ...] = ()
    kind: tuple[RunKind, ...] = ("agent", "swarm")
    agent: str | None = None
    queue: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: NO_TAGS)
    parked: bool | None = None
    limit: int = 50
    cursor: str | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for what no listing could mean."""
        for name in ("scope", "agent", "queue", "cursor"):
            _expect(name, getattr(self, name), isinstance(getattr(self, name), str | None), "text, or None")
        for name, known in (("status", get_args(RunStatus)), ("kind", get_args(RunKind))):
            given: object = getattr(self, name)
            listed = isinstance(given, tuple | list | set | frozenset) and all(one in known for one in cast(Any, given))
            _expect(name, given, listed, f"a tuple of any of {', '.join(known)}")
            object.__setattr__(self, name, tuple(cast(Any, given)))
        tags = cast(object, self.tags)
        texts = isinstance(tags, Mapping) and all(isinstance(text, str) for pair in cast(Any, tags).items() for text in pair)
        _expect("tags", tags, texts, "a mapping of texts to texts")
        _expect("parked", self.parked, self.parked is None or type(self.parked) is bool, "True, False or None")
        in_range = type(self.limit) is int and 1 <= self.limit <= MOST_IN_A_PAGE
        _expect("limit", self.limit, in_range, f"a whole number from 1 to {MOST_IN_A_PAGE}")


def _expect(name: str, given: object, fits: bool, wanted: str) -> None:
    if not fits:
        raise ConfigurationError(f"{name} of a query is {wanted}, not {repr(given)[:80]}")


@dataclass(frozen=True, slots=True)
class RunPage:
    heads: tuple[Head, ...]
    cursor: str | None
    """None on the last page."""


def run_query(given: object) -> RunQuery:
    """The query; None asks for all. Raises `ConfigurationError` for what is none."""
    if not isinstance(given, RunQuery | None):
        raise ConfigurationError(f"runs are listed by a RunQuery, not a {type(given).__name__}")
    return given or RunQuery()
