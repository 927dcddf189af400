"""A short round of `swarm`."""

from __future__ import annotations

import pytest

from tests.faults.swarm import torment
from tests.workers.agents import TRACES
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("SWM-026")
@pytest.mark.timeout(300)
def test_a_graph_on_workers_that_die(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers, two of which are killed, and a Redis that is emptied: the right result, a dense journal, nothing twice."""
    monkeypatch.setenv(TRACES, str(pool.traces))
    figures = torment(pool, width=120, kills=2, seed=1)
    print(figures)
    assert figures.broken == []
    assert (figures.kills, figures.flushes) == (2, 1)
