"""What goes wrong in a schedule: how much of it, and when, drawn from the seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Doom = Literal["death", "freeze"]
PLACES = (
    *("before commit",) * 3,
    *("sent commit",) * 2,
    *("after commit",) * 3,
    *("before effect", "after effect") * 2,
    *("before model", "after model") * 2,
    *("before verify", "after verify"),
    *("before ring", "after ring") * 2,
    *("before renew", "after renew"),
    *("before release", "sent release", "after release") * 2,
    *("before acquire", "sent acquire", "after acquire"),
    *("before load", "after load"),
    *("after record_unclean_end", "after park", "after fill_slots", "before fill_slots", "before settle_swarm"),
    *("after sweep", "before ripen", "after ripen", "after postpone", "after block_downstream", "after cancel_tasks"),
)
"""Moments at which a process may die or freeze, the more often listed the more often drawn."""
IN_CALLS = (
    *PLACES,
    *("before effect", "after effect") * 8,
    *("before commit", "after commit") * 2,
    "before thread",
    "after thread",
)
"""The same, with those more often that leave the effect of a call unknown."""
LATEST = (1, 3, 12)
"""Up to so many times a place is passed before it is fatal, one of these."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What may happen in a schedule until it is told to be quiet. Shares are from 0 to 1, times in milliseconds."""

    deaths: int = 0
    freezes: int = 0
    drains: int = 0
    flushes: int = 0
    """The lease server forgets everything."""
    lease_outages: int = 0
    store_outages: int = 0
    lost_bells: float = 0.0
    doubled_bells: float = 0.0
    late_bells: float = 0.0
    lost_answers: float = 0.0
    """Of the store: the operation was applied, and nobody says so."""
    unsent: float = 0.0
    """Of the store: the connection broke before anything was sent."""
    places: tuple[str, ...] = PLACES
    """Of deaths and freezes."""
    impatient: bool = True
    """Some processes give an operation of the store up at its first failure, and leave the rest to the engine."""
    lost_lease_answers: float = 0.0
    lies: bool = False
    """The lease server grants everybody everything."""
    slow: float = 0.05
    """Messages between a process and a server that take up to `slowest_ms`."""
    slowest_ms: int = 50
    until_ms: int = 4_000
    """Afterwards nothing goes wrong any more, but that only the sweep is heard."""

    @property
    def keeps_processes(self) -> bool:
        """No process dies or stands still, and none is taken for dead."""
        return not (self.deaths or self.freezes or self.lies or self.lease_outages or self.store_outages or self.drains)


@dataclass(slots=True)
class Fate:
    """The points at which processes of one schedule die or freeze."""

    faults: Faults
    chance: random.Random
    quiet: bool = False
    met: list[str] = field(default_factory=lambda: list[str]())
    """What happened, in order."""
    _passed: Counter[str] = field(default_factory=lambda: Counter[str]())
    _due: dict[tuple[str, int], Doom] = field(default_factory=lambda: dict[tuple[str, int], Doom]())

    def __post_init__(self) -> None:
        dooms: tuple[tuple[Doom, int], ...] = (("freeze", self.faults.freezes), ("death", self.faults.deaths))
        for what, many in dooms:
            for _ in range(many):
                self._due[self.chance.choice(self.faults.places), self.chance.randint(1, self.chance.choice(LATEST))] = what

    def at(self, place: str) -> Doom | None:
        """What happens to the process that is here."""
        if self.quiet or not self._due:
            return None
        self._passed[place] += 1
        return self._due.pop((place, self._passed[place]), None)

    def happens(self, share: float) -> bool:
        return share > 0 and not self.quiet and self.chance.random() < share

    def delay_s(self) -> float:
        """Of one message, seconds."""
        draw = self.chance.random()
        if draw < 0.5:
            return 0.0
        if self.faults.slow and draw > 1 - self.faults.slow:
            return self.chance.uniform(0, self.faults.slowest_ms) / 1_000
        return draw / 1_000

    def tell(self, what: str) -> None:
        self.met.append(what)
