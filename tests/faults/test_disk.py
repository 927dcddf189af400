"""What a long run that is compacted again and again takes on disk, carried out by a process of its own on either backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.test_disk import size_of
from tests.faults.reading_agents import SIZE, TURNS, application
from tests.workers.pool import ROOT, Pool

pytestmark = pytest.mark.processes
MOST = 3 * TURNS * SIZE
"""Three times what the tool returned; what the model said is not even counted."""


@pytest.mark.spec("FR-38")
@pytest.mark.timeout(400)
async def test_on_a_worker_with_postgres(pool: Pool) -> None:
    """Every request was paired and within the window, or the run had failed; no vacuum was asked for."""
    url = pool.settings.database_url
    before = await size_of(url, pool.folder)
    pool.module = "tests.faults.reading_agents:app"
    pool.start(concurrency=1, step_turns=20)
    client = application(pool.app.settings)
    result = await (await client.aio.enqueue("reader", "read everything")).result(300)
    await client.aclose()
    assert (result.status, result.steps, result.output) == ("completed", TURNS + 1, "summarized")
    assert len(result.transcript) == 2 * TURNS + 2
    assert await size_of(url, pool.folder) - before <= MOST


@pytest.mark.spec("FR-38")
@pytest.mark.timeout(400)
async def test_in_a_process_with_a_file(tmp_path: Path) -> None:
    """The same in one SQLite file."""
    file = tmp_path / "runs.db"
    variables = {"DEUZ_DATABASE_URL": f"sqlite:///{file}", "DEUZ_CONFIG": os.devnull, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.reading_agents"],
        env={name: value for name, value in os.environ.items() if not name.startswith("DEUZ_")} | variables,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["completed", str(TURNS + 1), "summarized"], done.stderr[-2000:]
    assert await size_of(f"sqlite:///{file}", file) <= MOST
