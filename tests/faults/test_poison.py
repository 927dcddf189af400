"""A run that kills every process it is executed in, among runs that do no harm."""

from __future__ import annotations

import json

import pytest

from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from tests.workers.pool import Pool, wait_until

pytestmark = pytest.mark.processes
INNOCENT = 63


@pytest.mark.spec("FR-12")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_only_the_run_that_kills_its_process_is_left_to_a_person(pool: Pool, kind: str) -> None:
    """The others complete, whatever their worker died of; it ends in quarantine after five ends, with the evidence."""
    pool.module, client = "tests.faults.poison_agents:app", Deuz(settings=pool.settings)
    concurrency = 64 if kind == "threads" else 2
    worker = pool.start(kind, concurrency=concurrency)
    poison = client.enqueue("poison", "go")
    innocent = [client.enqueue("innocent", "go") for _ in range(INNOCENT)]

    def supervised() -> bool:
        nonlocal worker
        if worker.process.poll() is not None:
            worker = pool.start(kind, concurrency=concurrency)
        head = LOOP.run(client.store.head("default", poison.run_id))
        return head is not None and head.parked is not None

    wait_until(supervised, "the run is in quarantine", 200)
    result = poison.result(30)
    assert (result.status, result.reason) == ("stopped", "quarantine")
    assert {handle.result(60).status for handle in innocent} == {"completed"}
    ends = LOOP.run(client.store.unclean_ends("default", poison.run_id))
    assert [end.number for end in ends] == [1, 2, 3, 4, 5]
    assert [json.loads(end.evidence)["alone"] for end in ends][2:] == [True] * 3, "nothing else was in the process then"
    assert not any(LOOP.run(client.store.unclean_ends("default", handle.run_id)) for handle in innocent)
    assert len(pool.lines("poison")) == 5
    client.close()
    assert len({line.split()[1] for line in pool.lines("poison")}) == 5, "five processes died of it"
