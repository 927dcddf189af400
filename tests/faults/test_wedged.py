"""A step that will not end."""

from __future__ import annotations

import pytest

from deuz_workers.app.deuz import Deuz
from tests.faults import wedged_agents
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def sticky(pool: Pool) -> Deuz:
    pool.module = "tests.faults.wedged_agents:app"
    return Deuz([wedged_agents.app.agents["sticky"]], settings=pool.settings)


def test_a_worker_whose_loop_is_blocked_leaves(pool: Pool, sticky: Deuz) -> None:
    """Once the step is past its limit the process ends with a code of its own, and the run goes on in the next one."""
    worker = pool.start()
    handle = sticky.enqueue("sticky", "gate")
    pool.wait_for_lines("stick")
    assert worker.ended() == 70
    assert worker.said("worker_wedged labels=stick blocked=True")
    pool.go("gate")
    pool.start()
    assert handle.result(30).status == "completed"
    sticky.close()


def test_a_child_whose_loop_is_blocked_is_replaced(pool: Pool, sticky: Deuz) -> None:
    """The other children and their parent go on, and so does the run."""
    worker = pool.start("prefork")
    handle = sticky.enqueue("sticky", "gate")
    stuck = int(pool.wait_for_lines("stick")[0].split()[1])
    worker.wait_for("worker_wedged")
    pool.go("gate")
    assert handle.result(30).status == "completed"
    assert worker.process.poll() is None
    wait_until(lambda: stuck not in worker.children, "the end of the child, which its parent has to notice")
    sticky.close()
