"""Short rounds of `children`."""

from __future__ import annotations

import pytest

from tests.faults.children import torment
from tests.workers.agents import TRACES
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("SUB-010")
@pytest.mark.timeout(240)
def test_many_children_on_one_worker(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a run of its own, the parent resumes once and is loaded at most three times; the worker does other things too."""
    monkeypatch.setenv(TRACES, str(pool.traces))
    figures = torment(pool, children=40, kills=0, cancels=1, seed=1)
    print(figures)
    assert figures.broken == []
    assert figures.talk_s < figures.seconds


@pytest.mark.timeout(240)
def test_the_worker_dies_while_its_children_are_at_work(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and nothing happens twice."""
    monkeypatch.setenv(TRACES, str(pool.traces))
    figures = torment(pool, children=40, kills=1, cancels=0, seed=2)
    print(figures)
    assert (figures.kills, figures.broken) == (1, [])
