"""Chains of steps that only doorbells drive."""

from __future__ import annotations

import time

import pytest

from tests.workers.pool import Pool

pytestmark = pytest.mark.processes
CHAINS, STEPS = 8, 1_000


@pytest.mark.timeout(400)
def test_eight_chains_of_a_thousand_steps_never_stand_still(pool: Pool) -> None:
    """With the sweep switched off, no doorbell of 8,000 is lost on a pool of 16 threads.

    Each step is rung before anybody can know that the one before it gave its lease back, unless the release comes first: rung
    the other way round, all chains stand still within a few steps.
    """
    pool.switch_sweep_off()
    pool.start("threads", concurrency=16, events=False)
    began = time.monotonic()
    handles = [pool.app.enqueue("empty", f"{STEPS} steps") for _ in range(CHAINS)]
    assert {handle.result(300).status for handle in handles} == {"completed"}
    print(f"{CHAINS * STEPS / (time.monotonic() - began):.0f} steps a second")
