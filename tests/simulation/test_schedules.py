"""Thousands of seeded schedules, each of which ends as it would have without faults."""

from __future__ import annotations

import os

import pytest

from tests.simulation.plan import plan_of
from tests.simulation.schedule import Verdict, play

FIRST = int(os.environ["DEUZ_SIMULATION_FIRST"])
"""The first seed, another one in every test run, see `tests.conftest`; the last line of the run names it."""
COUNT = int(os.environ.get("DEUZ_SIMULATION_COUNT", "4000"))
PARTS = 50
"""So that several test processes share them, and none takes long on a machine that is busy."""
SHOWN = 3
"""Failures that are shown whole."""


def seeds_of(part: int) -> range:
    return range(FIRST + part, FIRST + COUNT, PARTS)


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_end_as_they_would_without_faults(part: int) -> None:
    """Whatever dies, freezes, lies, forgets or gets lost: the same final envelope, no unsafe effect twice, nothing unswept.

    `DEUZ_SIMULATION_FIRST` and `DEUZ_SIMULATION_COUNT` choose other seeds; `python -m tests.simulation --seed N` replays one.
    """
    failed = [verdict for seed in seeds_of(part) if (verdict := play(plan_of(seed))).wrong]
    assert not failed, "\n".join(
        [f"{len(failed)} schedules failed: {[it.plan.seed for it in failed]}", *map(str, failed[:SHOWN])]
    )


def trace(verdict: Verdict) -> tuple[object, ...]:
    return verdict.turns, verdict.passed_ms, verdict.met, verdict.ends, verdict.wrong


@pytest.mark.parametrize("profile", ["everything", "lies", "freezes", "flushes"])
def test_a_seed_replays_its_schedule(profile: str) -> None:
    """Played again, a seed gives the same callbacks at the same times: a printed seed is all that a failure needs."""
    seeds = [seed for seed in range(200) if plan_of(seed).profile == profile][:8]
    assert len(seeds) == 8
    assert [trace(play(plan_of(seed))) for seed in seeds] == [trace(play(plan_of(seed))) for seed in seeds]
