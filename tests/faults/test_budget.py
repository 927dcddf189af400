"""A short round of `budget`."""

from __future__ import annotations

import pytest

from tests.faults.budget import CAP_CALLS, press
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("LED-016", "DWK-004", "FR-32")
@pytest.mark.timeout(240)
def test_a_cap_holds_while_workers_are_killed(pool: Pool) -> None:
    """64 workers and a budget worth ten calls: never above it, and every call that lost its worker is a hold that is listed."""
    figures = press(pool, kills=True, seed=1)
    print(figures)
    assert figures.kills > 0
    assert figures.broken == []
    assert figures.settled + figures.unknown <= CAP_CALLS
