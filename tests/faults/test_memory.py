"""Workers that die behind the end of a run: another one finds the extraction and brings it to its end."""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import cast

import pytest

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.core.memory import MemoryQuery
from deuz_workers.ports.memory import MemoryStore
from tests.faults.remembering_agents import ANN, application
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def client(pool: Pool) -> Generator[Deuz]:
    """Of the pool, whose workers remember."""
    pool.module = "tests.faults.remembering_agents:app"
    client = application(pool.app.settings)
    yield client
    client.close()


@pytest.mark.spec("MEM-032", "MEM-014")
@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_a_worker_killed_behind_the_end_leaves_the_extraction_to_another(pool: Pool, client: Deuz, kind: str) -> None:
    """The run is completed and has nothing to report yet; nobody but the sweep looks for it. The next worker asks again, the
    fact is stored once, and the handle that waited has its result."""
    worker = pool.start(kind)
    handle = client.enqueue("clerk", "go")
    [first] = pool.wait_for_lines("asked")
    envelope = handle.envelope()
    assert envelope.memory is not None
    assert envelope.memory.extraction is not None
    assert (envelope.status, envelope.phase, envelope.memory.extraction.status) == ("completed", "extracting", "pending")
    worker.kill()
    pool.start(kind)
    second = pool.wait_for_lines("asked", 2)[1]
    assert first.split()[0] == second.split()[0] == "facts"
    assert first != second
    pool.go("facts")
    result = handle.result(60)
    assert (result.status, result.output) == ("completed", "done")
    envelope = handle.envelope()
    assert envelope.memory is not None
    assert envelope.memory.extraction is not None
    assert (envelope.phase, envelope.memory.extraction.status, envelope.memory.extraction.mutations) == ("loop", "completed", 1)
    store = cast(MemoryStore, client.store)
    found = LOOP.run(store.find_memories("default", ANN, MemoryQuery("tea")))
    assert [record.text for record in found] == ["likes tea"]
    assert [line.split()[0] for line in pool.lines("asked")] == ["facts", "facts", "changes"]
    wait_until(lambda: LOOP.run(client.leases.peek(f"run:default/{handle.run_id}")).ms_left is None, "the lease is given back")


@pytest.mark.spec("MEM-032")
def test_a_worker_that_drains_hands_the_extraction_on(pool: Pool, client: Deuz) -> None:
    """Past its grace the question is ended and the lease given back: another worker asks again. It does so at the doorbell, or,
    where the memory of the lease server is younger than a lease, in a later pass of the sweep."""
    worker = pool.start(drain_grace_ms=100)
    handle = client.enqueue("clerk", "go")
    pool.wait_for_lines("asked")
    pool.start()
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    pool.wait_for_lines("asked", 2)
    pool.go("facts")
    assert handle.result(60).status == "completed"
    envelope = handle.envelope()
    assert envelope.memory is not None
    assert envelope.memory.extraction is not None
    assert (envelope.memory.extraction.status, envelope.memory.extraction.attempts) == ("completed", 2)
    assert [line.split()[0] for line in pool.lines("asked")] == ["facts", "facts", "changes"]
