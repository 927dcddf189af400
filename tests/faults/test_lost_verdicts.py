"""Answers whose doorbell is lost: they are rows, and a sweep goes on with them."""

from __future__ import annotations

import pytest

from deuz_workers.app.loop_thread import LOOP
from deuz_workers.ports.leases import Lease
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("APR-019")
def test_a_verdict_whose_message_is_lost_is_found_by_the_sweep(pool: Pool) -> None:
    """Stored with what wakes the run, it waits there while nobody sweeps; the sweep resumes with it, and the call runs once."""
    nobody_sweeps = LOOP.run(pool.app.leases.acquire("sweep:default", "0" * 32, 86_400_000, force=True))
    assert isinstance(nobody_sweeps, Lease)
    pool.start()
    handle = pool.app.enqueue("signer", "contract")
    waiting = handle.result(30)
    assert waiting.status == "suspended"
    [asked] = waiting.pending_approvals
    silent = pool.silent()
    assert silent.handle(handle.run_id).approve(asked.approval_id).open_items == 0
    silent.close()
    assert pool.app.enqueue("worker", "2 turns").result(30).status == "completed"
    head = LOOP.run(pool.app.store.head("default", handle.run_id))
    assert head is not None
    assert (head.status, head.has_work, pool.lines("sign")) == ("suspended", True, [])
    LOOP.run(pool.app.leases.release(nobody_sweeps))
    assert handle.result(30).status == "completed"
    assert len(pool.lines("sign")) == 1
