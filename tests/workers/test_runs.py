"""Runs on real workers with real servers, on every pool."""

from __future__ import annotations

import pytest

from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kind", ["threads", "prefork", "solo"])
def test_a_run_of_several_turns_completes_on_every_pool(pool: Pool, kind: str) -> None:
    """Every tool ran once, the run is completed, and nothing is left in the broker."""
    pool.start(kind)
    handle = pool.app.enqueue("worker", "6 turns please")
    result = handle.result(30)
    assert (result.status, result.text) == ("completed", "done")
    assert len(pool.lines("write")) == 4
    assert len(pool.lines("read")) == 2
