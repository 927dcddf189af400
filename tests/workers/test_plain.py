"""Workers without Celery: processes over one SQLite file, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.store import migrate
from tests.faults import hostile_agents
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.fixture
async def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Pool]:
    """A pool over a file, without broker and Redis; no worker yet."""
    monkeypatch.setenv("DEUZ_CONFIG", "/dev/null")
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    await migrate(url)
    pool = Pool(tmp_path, Settings(database_url=url, lease_ttl_ms=2_000))
    yield pool
    pool.close()


def test_runs_complete_on_two_processes_over_one_file(plain: Pool) -> None:
    """Every run completes, every tool ran once, and no broker was there."""
    plain.start(concurrency=3)
    plain.start(concurrency=3)
    handles = [plain.app.enqueue("worker", "4 turns") for _ in range(12)]
    assert {handle.result(30).status for handle in handles} == {"completed"}
    keys = [line.split()[0] for line in plain.lines("write")]
    assert len(keys) == len(set(keys)) == 12 * 3


def test_a_plain_worker_drains(plain: Pool) -> None:
    """A tool in flight ends and its outcome is saved before the process ends with 0; another worker goes on from there."""
    worker = plain.start()
    handle = plain.app.enqueue("holder", "gate")
    plain.wait_for_lines("hold")
    worker.signal(signal.SIGTERM)
    worker.wait_for("worker_draining")
    plain.go("gate")
    assert worker.ended() == 0
    assert handle.status() == "running"
    plain.start()
    assert handle.result(30).status == "completed"
    assert len(plain.lines("hold")) == 1


def test_a_plain_worker_that_dies_is_taken_over(plain: Pool) -> None:
    """Another process repeats the idempotent tool under the same key once the lease has lapsed."""
    first = plain.start()
    handle = plain.app.enqueue("again", "gate")
    plain.wait_for_lines("hold")
    first.kill()
    plain.start()
    plain.wait_for_lines("hold", 2)
    plain.go("gate")
    assert handle.result(30).status == "completed"
    assert len({line.split()[0] for line in plain.lines("hold")}) == 1


def test_a_plain_worker_whose_loop_was_ended_says_so(plain: Pool) -> None:
    """With a code of its own, though the user's was 0; the run goes on in the next one."""
    plain.module = "tests.faults.hostile_agents:app"
    app = Deuz(hostile_agents.agents, settings=plain.settings)
    worker = plain.start()
    handle = app.enqueue("leaver", "gate")
    plain.wait_for_lines("leave")
    assert worker.ended() == 70
    assert worker.said("loop_died error=SystemExit at=hostile_agents.py:")
    plain.go("gate")
    plain.start()
    assert handle.result(30).status == "completed"
    app.close()
