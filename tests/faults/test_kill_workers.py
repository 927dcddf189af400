"""A short round of `kill_workers`."""

from __future__ import annotations

import pytest

from tests.faults.kill_workers import torment
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.timeout(240)
def test_no_promise_is_broken_while_workers_are_killed(pool: Pool) -> None:
    """Every run completes or names what nobody knows; no effect happens twice, idempotent ones keep their key."""
    figures = torment(pool, runs=8, turns=6, seed=1)
    print(figures)
    assert figures.kills > 0
    assert figures.broken == []
    assert figures.completed + figures.parked == 8
