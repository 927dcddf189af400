"""Runs that are asked for twice, and runs that begin in the middle of another. The same with every driver."""

from __future__ import annotations

from uuid import uuid4

import pytest

from deuz_workers import RunExistsError
from tests.drivers.driver import Driver


@pytest.mark.spec("DST-009")
def test_asking_twice_under_one_key_is_one_run(driver: Driver) -> None:
    """Before it has run and after; the same key with another prompt is refused."""
    key = str(uuid4())
    run = driver.start("talker", idempotency_key=key)
    assert driver.app.enqueue("talker", "go", idempotency_key=key).run_id == run.run_id
    assert driver.result(run).output == "hello"
    assert driver.app.enqueue("talker", "go", idempotency_key=key).run_id == run.run_id
    with pytest.raises(RunExistsError):
        driver.app.enqueue("talker", "something else", idempotency_key=key)


@pytest.mark.spec("DST-009")
def test_a_fork_goes_on_from_a_turn_and_repeats_nothing(driver: Driver) -> None:
    """The tools of the turns before it do not run again; those of later turns do, for the new run."""
    run = driver.start("worker")
    result = driver.result(run)
    fork = driver.app.fork(run.run_id, 1)
    driver.started.append(fork)
    again = driver.result(fork)
    assert (again.status, again.output, again.steps) == ("completed", "done", 4)
    assert driver.effects(fork) == ["stumble"]
    assert [message.text for message in again.messages] == [message.text for message in result.messages]
