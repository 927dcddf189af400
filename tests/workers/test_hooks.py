"""What an application registers with an agent runs in the worker that takes the step."""

from __future__ import annotations

import os

import pytest

from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.spec("TCX-005")
def test_a_worker_makes_the_context_of_a_run_itself(pool: Pool) -> None:
    """Neither value travels in the queue: the worker's own function gets run id and tags, and its value reaches the tool."""
    pool.start("threads")
    handle = pool.app.enqueue("contextual", "2 turns please", tags={"name": "ann"})
    assert handle.result(30).status == "completed"
    lines = [line.rpartition(" ") for line in pool.lines("whoami")]
    assert [text for text, _, _ in lines] == [f"ann of {handle.run_id}"] * 2
    assert str(os.getpid()) not in {pid for _, _, pid in lines}


@pytest.mark.spec("PRP-009")
def test_a_hook_that_is_registered_with_an_agent_runs_in_its_worker(pool: Pool) -> None:
    """The message names the run alone; `prepare_step` is asked in the worker, and its plan holds there."""
    pool.start("threads")
    assert pool.app.enqueue("prepared", "go").result(30).text == "done"
    lines = [line.split() for line in pool.lines("prepared")]
    assert [step for step, _ in lines] == ["1", "2"]
    assert str(os.getpid()) not in {pid for _, pid in lines}
