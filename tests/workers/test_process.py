"""The parts of a worker process, without a worker."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading

import pytest

from deuz_workers.app.loop_thread import LoopThread
from deuz_workers.errors import ConfigurationError
from deuz_workers.workers.drain import DrainFlag, Urgency


def test_a_child_sees_what_its_parent_was_asked() -> None:
    """The flag crosses the fork in both directions of time: what is set later is seen too."""
    flag = DrainFlag()
    ready, told = os.pipe()
    go, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = flag.urgency
        os.write(told, b"x")
        os.read(go, 1)
        os._exit(0 if (before, flag.urgency) == (Urgency.NONE, Urgency.DRAIN) else 1)
    os.read(ready, 1)
    flag.ask_again()
    os.write(tell, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for end in (ready, told, go, tell):
        os.close(end)


def test_urgency_only_grows() -> None:
    """A third request changes nothing, and nothing takes one back."""
    flag = DrainFlag()
    seen = [flag.urgency]
    for _ in range(3):
        flag.ask_again()
        seen.append(flag.urgency)
    flag.ask(Urgency.DRAIN)
    assert [*seen, flag.urgency] == [Urgency.NONE, Urgency.DRAIN, Urgency.HURRY, Urgency.HURRY, Urgency.HURRY]


class Signalled(BaseException):
    """What a signal handler raises in the waiting thread."""


def test_an_interrupted_wait_leaves_the_work_running() -> None:
    """A step goes on when the thread that waits for it is told to leave: its outcome is to be recorded."""
    loop = LoopThread()
    began, finished, go = threading.Event(), threading.Event(), threading.Event()
    outcome: list[str] = []

    async def step() -> None:
        began.set()
        await asyncio.to_thread(go.wait)
        finished.set()

    def wait() -> None:
        try:
            loop.run(step(), outlive=True)
        except Signalled:
            outcome.append("left")

    thread = threading.Thread(target=wait)
    thread.start()
    assert began.wait(10)
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Signalled))
    thread.join(10)
    assert outcome == ["left"]
    assert not finished.is_set()
    go.set()
    assert finished.wait(10)
    loop.stop()


def test_the_loop_does_not_wait_for_itself() -> None:
    """Called on its own thread it refuses with a sentence instead of standing still."""
    loop = LoopThread()

    async def nothing() -> None:
        """Never runs."""

    async def mistaken() -> None:
        loop.run(nothing())

    with pytest.raises(ConfigurationError, match="event loop"):
        loop.run(mistaken())
    loop.stop()


def test_a_stopped_loop_starts_again() -> None:
    """What ran on it was cancelled; the next call has a new one."""
    loop = LoopThread()
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def which() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop.spawn(forever())
    first = loop.run(which())
    loop.stop()
    assert cancelled.is_set()
    assert loop.run(which()) is not first
    loop.stop()
