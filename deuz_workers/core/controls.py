"""What operators said about everything that begins, as a process last read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from deuz_workers.core.brake import Brake
from deuz_workers.core.rate import RateName

NO_SLOTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Controls:
    now_ms: int
    """Unix time in milliseconds by the store's clock, when they were read."""
    brakes: tuple[Brake, ...] = ()
    rates: frozenset[RateName] = frozenset()
    """Tools and models that have one."""
    has_key_rates: bool = False
    """Some concurrency key has a rate. They may be many, so which is asked when something of a key begins."""

    tool_slots: Mapping[str, int] = field(default_factory=lambda: NO_SLOTS)
    """Of tools of which only so many calls run at a time."""

    def is_limited(self, name: RateName) -> bool:
        """It has a rate, or may have one."""
        return self.has_key_rates if name.kind == "key" else name in self.rates
