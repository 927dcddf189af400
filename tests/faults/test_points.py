"""Every point of `points`: before and after each kind of commit."""

from __future__ import annotations

import pytest

from tests.faults.killing_store import POINTS
from tests.faults.points import pass_all
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("STF-011")
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_at_a_commit_loses_nothing(pool: Pool, point: str) -> None:
    """Another one brings the run to the answer of a run without faults, and no effect happens twice that nobody allowed."""
    [passage] = pass_all(pool, (point,))
    assert passage.broken == [], str(passage)
