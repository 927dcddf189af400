"""What a seed stands for: a scenario, and what goes wrong in it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from deuz_workers.testing.virtual.faults import IN_CALLS, Faults
from deuz_workers.testing.virtual.process import Role
from tests.simulation.scenarios import ENGINE, SMALL, VARIANTS, scenario

QUARANTINE = Role("default.quarantine", 1)
POOLS = (
    (Role(), Role(), QUARANTINE),
    (Role(), Role(), QUARANTINE),
    (Role(slots=4), QUARANTINE),
    (Role(slots=1), Role(slots=1), Role(slots=1), QUARANTINE),
)
"""Processes of a schedule: threads in two of them or in one, or one step at a time in three."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed stands for."""

    seed: int
    kind: str
    variant: int
    profile: str
    faults: Faults
    sweeps: bool = True
    roles: tuple[Role, ...] = POOLS[0]
    step_turns: int = 1
    is_crowded: bool = False
    """Played on Postgres, see `crowded_plan_of`."""

    @property
    def window(self) -> int:
        """Doorbells that a queue holds."""
        return (1, 4, 16)[self.seed % 3]

    @property
    def is_strict(self) -> bool:
        """Nobody dies, stands still or is taken for dead: nothing may be found in the middle, and no person is asked."""
        return self.faults.keeps_processes and not self.faults.lost_lease_answers and self.kind != "poison"


PROFILES: Mapping[str, int] = {
    "calm": 3,
    "lossy store": 2,
    "flushes": 2,
    "bad bells": 2,
    "deaths": 4,
    "freezes": 2,
    "lies": 2,
    "everything": 3,
}
"""Kinds of faults, and how often each is drawn."""
HARD_PROFILES: Mapping[str, int] = {
    "lossy store": 2,
    "flushes": 1,
    "bad bells": 2,
    "deaths": 6,
    "freezes": 2,
    "lies": 3,
    "everything": 4,
}
"""Of schedules with random agents."""
SHARE_OF_AGENTS = 0.4
"""Of schedules with random agents; the others have scenarios of one kind each."""
AGENTS, BLOCK = 16, 400
"""So many scenarios with random agents among so many seeds in a row: each is played without faults too, once a process."""


def plan_of(seed: int) -> Plan:
    draw = random.Random(f"plan {seed}")
    has_agents = draw.random() < SHARE_OF_AGENTS
    profiles = HARD_PROFILES if has_agents else PROFILES
    profile = draw.choices(list(profiles), weights=list(profiles.values()))[0]
    if has_agents:
        kind, variant = ENGINE, seed // BLOCK * AGENTS + draw.randrange(AGENTS)
    else:
        kind, variant = draw.choice(SMALL), draw.randrange(VARIANTS)
        while profile == "calm" and scenario(kind, variant).has_timers:
            kind, variant = draw.choice(SMALL), draw.randrange(VARIANTS)
    until_ms = draw.randint(300, 5_000)
    slow, slowest_ms = draw.choice(((0.05, 50), (0.3, 100), (0.4, 400)))
    match profile:
        case "calm":
            faults = Faults(slow=slow, slowest_ms=slowest_ms)
        case "lossy store":
            faults = Faults(lost_answers=0.15, unsent=0.1, impatient=False, slow=slow, slowest_ms=slowest_ms, until_ms=until_ms)
        case "flushes":
            faults = Faults(flushes=draw.randint(1, 3), slow=slow, slowest_ms=slowest_ms, until_ms=until_ms)
        case "bad bells":
            faults = Faults(
                lost_bells=0.4, doubled_bells=0.4, late_bells=0.3, slow=slow, slowest_ms=slowest_ms, until_ms=until_ms
            )
        case "deaths":
            faults = Faults(deaths=draw.randint(1, 6 if has_agents else 4), slow=slow, slowest_ms=slowest_ms, until_ms=until_ms)
        case "freezes":
            faults = Faults(freezes=draw.randint(1, 4), doubled_bells=0.2, slow=slow, slowest_ms=slowest_ms, until_ms=until_ms)
        case "lies":
            faults = Faults(
                lies=True,
                deaths=draw.randint(0, 2),
                doubled_bells=0.5,
                lost_answers=0.05,
                slow=slow,
                slowest_ms=slowest_ms,
                until_ms=until_ms,
            )
        case _:
            faults = Faults(
                deaths=draw.randint(0, 3),
                freezes=draw.randint(0, 3),
                drains=draw.randint(0, 2),
                flushes=draw.randint(0, 2),
                lease_outages=draw.randint(0, 1),
                store_outages=draw.randint(0, 1),
                lost_answers=0.05,
                unsent=0.03,
                lost_lease_answers=0.03,
                slow=slow,
                slowest_ms=slowest_ms,
                until_ms=until_ms,
                lost_bells=0.2,
                doubled_bells=0.2,
                late_bells=0.1,
            )
    if has_agents:
        faults = replace(faults, places=IN_CALLS)
    return Plan(seed, kind, variant, profile, faults, profile != "calm", draw.choice(POOLS), draw.choice((1, 1, 3)))


def crowded_plan_of(seed: int) -> Plan:
    """Of the same runs with more who work on them at once: most of the time everybody is granted every lease."""
    plan = plan_of(seed)
    faults = replace(plan.faults, lies=seed % 4 > 0, doubled_bells=0.7)
    return replace(plan, profile=f"{plan.profile}, crowded", faults=faults, sweeps=True, is_crowded=True)
