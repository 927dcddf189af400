"""The loop of the synchronous functions, when user code ends it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Generator

import pytest

from deuz_workers.app import loop_thread
from deuz_workers.app.loop_thread import LoopThread
from deuz_workers.errors import DeuzError, LoopDiedError


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Generator[LoopThread]:
    """One that has little patience with what will not end."""
    monkeypatch.setattr(loop_thread, "STOP_TIMEOUT_S", 0.1)
    loop = LoopThread()
    yield loop
    loop.stop()


async def exit_here() -> None:
    sys.exit(3)


async def die() -> None:
    """Start a task that ends the loop, and wait."""
    task = asyncio.create_task(exit_here())
    await asyncio.get_running_loop().create_future()
    await task


async def which() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_everybody_who_waited_is_told(loop: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    """The caller, others that wait, and those whose work does not end when it is cancelled; then there is a new loop."""
    clings = threading.Event()

    async def cling() -> None:
        clings.set()
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue

    first = loop.run(which())
    clinging = loop.spawn(cling())
    assert clings.wait(10)
    with pytest.raises(LoopDiedError):
        loop.run(die())
    assert isinstance(clinging.exception(10), LoopDiedError)
    assert loop.run(which()) is not first
    assert [record.message.partition(" at=")[0] for record in caplog.records if "loop_died" in record.message] == [
        "loop_died error=SystemExit"
    ]


def test_the_owner_of_the_process_is_told_first(loop: LoopThread) -> None:
    """On the thread of the loop, before anything is cancelled."""
    told: list[bool] = []
    waiting = loop.spawn(asyncio.sleep(3_600))
    loop.on_death = lambda: told.append(waiting.done())
    with pytest.raises(LoopDiedError):
        loop.run(die())
    assert told == [False]


def test_what_is_run_may_raise_anything(loop: LoopThread) -> None:
    """`SystemExit` of the coroutine itself is an error for the caller, and the loop goes on."""
    first = loop.run(which())
    with pytest.raises(DeuzError, match="SystemExit"):
        loop.run(exit_here())
    assert loop.run(which()) is first
