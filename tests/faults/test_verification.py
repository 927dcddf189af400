"""Workers that die in the verifier: the next delivery is the next attempt, about the answer that was paid for."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from deuz_workers.app.deuz import Deuz
from tests.faults.verified_agents import application
from tests.workers.pool import Pool

pytestmark = pytest.mark.processes


@pytest.fixture
def client(pool: Pool) -> Generator[Deuz]:
    """Of the pool, whose workers have a verifier."""
    pool.module = "tests.faults.verified_agents:app"
    client = application(pool.app.settings)
    yield client
    client.close()


@pytest.mark.spec("VER-014", "VER-012", "FIN-017")
@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_a_worker_killed_in_the_verifier_is_one_attempt(pool: Pool, client: Deuz, kind: str) -> None:
    """Stored phase `finalizing` in between. The next worker asks about the same candidate of the same run, under the next
    number, and the model for nothing."""
    worker = pool.start(kind)
    handle = client.enqueue("verified", "go")
    [first] = (line.split() for line in pool.wait_for_lines("verify"))
    envelope = handle.envelope()
    assert (envelope.status, envelope.phase, envelope.checkpoint.verify_attempts) == ("running", "finalizing", 1)
    worker.kill()
    pool.start(kind)
    second = pool.wait_for_lines("verify", 2)[1].split()
    assert (first[:2], first[2], second[2], first[3] != second[3]) == (second[:2], "1", "2", True)
    pool.go("verdict")
    result = handle.result(30)
    assert (result.status, result.output, result.steps) == ("completed", 42, 1)
    checkpoint = handle.envelope().checkpoint
    assert (checkpoint.verify_attempts, checkpoint.output_attempts, checkpoint.verifying) == (2, 1, False)
    assert (len(pool.lines("verify")), len(pool.lines("asked"))) == (2, 1)


@pytest.mark.spec("VER-014", "FIN-017")
def test_a_second_delivery_during_the_verification_is_dropped(pool: Pool, client: Deuz) -> None:
    """Rung for again and again while the verifier is asked: whoever looks finds the run held, and asks nobody."""
    pool.start(concurrency=2)
    handle = client.enqueue("verified", "go")
    pool.wait_for_lines("verify")
    for _ in range(3):
        handle.ring()
        assert client.enqueue("quick", "go").result(30).status == "completed"  # behind the doorbell, in the only free thread
    assert (len(pool.lines("verify")), handle.envelope().checkpoint.verify_attempts) == (1, 1)
    pool.go("verdict")
    assert handle.result(30).output == 42
    checkpoint = handle.envelope().checkpoint
    assert (checkpoint.verify_attempts, checkpoint.output_attempts) == (1, 1)
    assert (len(pool.lines("verify")), len(pool.lines("asked"))) == (1, 1)
    assert {line.split()[3] for line in pool.lines("verify")} != {str(os.getpid())}
