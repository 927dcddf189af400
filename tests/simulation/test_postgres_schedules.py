"""Schedules on a real Postgres, statement by statement in two sessions, of which the second finds the locks of the first."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from deuz_workers.testing.virtual.two_sessions import TwoSessions, postgres_of
from tests.simulation.plan import crowded_plan_of
from tests.simulation.schedule import Verdict, play

FIRST = int(os.environ["DEUZ_SIMULATION_FIRST"])
COUNT = int(os.environ.get("DEUZ_SIMULATION_COUNT", "4000")) // 100
"""`python -m tests.simulation --postgres --count 500` plays more."""
PARTS = 4


@pytest.fixture
def two_sessions(migrated_postgres_dsn: str) -> Iterator[TwoSessions]:
    """Of a database of this test's own."""
    sessions = TwoSessions(migrated_postgres_dsn)
    yield sessions
    sessions.close()


def played(sessions: TwoSessions, seed: int) -> Verdict:
    return play(crowded_plan_of(seed), None, postgres_of(sessions, seed))


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_of_two_sessions_end_as_they_would_without_faults(two_sessions: TwoSessions, part: int) -> None:
    """Wherever a statement finds the locks of another, and whoever believes to be alone: the same ends as on SQLite.

    `python -m tests.simulation --postgres --seed N` replays one.
    """
    seeds = range(FIRST + part, FIRST + COUNT, PARTS)
    failed = [verdict for seed in seeds if (verdict := played(two_sessions, seed)).wrong]
    assert not failed, "\n".join([f"{len(failed)} schedules failed: {[it.plan.seed for it in failed]}", *map(str, failed[:3])])


def test_a_seed_replays_what_two_sessions_did(two_sessions: TwoSessions) -> None:
    """The same statements come upon the same open transactions, and as many of them wait for a lock."""
    found: list[object] = []
    for _ in range(2):
        waits, overlaps = two_sessions.waits, two_sessions.overlaps
        verdicts = [played(two_sessions, seed) for seed in (15, 19, 24)]
        told = [(verdict.turns, verdict.passed_ms, verdict.met, verdict.ends, verdict.wrong) for verdict in verdicts]
        found.append((told, two_sessions.waits - waits, two_sessions.overlaps - overlaps))
    assert two_sessions.overlaps > 0
    assert found[0] == found[1]
