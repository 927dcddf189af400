"""Three of the points of `points`, at which most would be lost."""

from __future__ import annotations

import pytest

from tests.faults.points import pass_all
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("STF-011")
@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_at_a_commit_loses_nothing(pool: Pool) -> None:
    """Behind the receipts of calls that begin, ahead of the answers of a suspension, and behind the answered turn."""
    for passage in pass_all(pool, ("after receipts", "before resumed", "after answered")):
        assert passage.broken == [], str(passage)
