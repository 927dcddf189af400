"""Redis is flushed under running workers."""

from __future__ import annotations

import pytest

from tests.faults.flush import flush_between
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("LSE-014")
@pytest.mark.timeout(200)
def test_after_a_flush_the_dead_are_taken_over_and_the_living_are_not(pool: Pool) -> None:
    """A dead worker's run goes on under its key; a tool that runs elsewhere keeps its outcome, and no end is counted for it."""
    after = flush_between(pool)
    print(f"taken over {after.taken_over_s:.2f} s after the flush")
    assert (after.dead.status, len(after.dead_starts)) == ("completed", 2)
    assert (after.living.status, len(after.living_starts)) == ("completed", 1)
    assert after.living.unknown_effects == ()
    assert after.living_ends == ()
