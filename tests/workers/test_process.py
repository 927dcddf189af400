"""The parts of a worker process, without a worker."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP, LoopThread
from deuz_workers.app.settings import Settings
from deuz_workers.core.change import Bell
from deuz_workers.errors import ConfigurationError
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import call
from deuz_workers.store import migrate
from deuz_workers.tools.decorator import tool
from deuz_workers.workers.drain import DrainFlag, Urgency
from deuz_workers.workers.process import WorkerProcess


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


class Recorder:
    """A doorbell that remembers what was rung."""

    def __init__(self) -> None:
        self.rung: list[Bell] = []

    async def ring(self, bells: Sequence[Bell]) -> None:
        self.rung.extend(bells)


@pytest.fixture
def migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of an application over a file."""
    monkeypatch.setenv("DEUZ_CONFIG", "/dev/null")
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    LOOP.run(migrate(url))
    return Settings(database_url=url)


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Deuz]:
    """An application over a file."""
    monkeypatch.setenv("DEUZ_CONFIG", "/dev/null")
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    LOOP.run(migrate(url))
    app = Deuz([Agent("talker", model=MockModel(["done"]))], settings=Settings(database_url=url))
    yield app
    app.close()


def test_a_draining_process_hands_doorbells_on(application: Deuz) -> None:
    """A step that is refused is rung again, for the workers that go on; the run is untouched."""
    recorder = Recorder()
    handle = application.enqueue("talker", "hello")
    flag = DrainFlag()
    process = WorkerProcess(application, flag, queues=["default"], alone=True)
    application.doorbell.add(recorder)
    flag.ask(Urgency.DRAIN)
    process.start()
    bell = Bell("default", handle.run_id, "default", 7)
    while (report := process.step(bell)).end != "refused":
        assert report.end in ("idle", "held", "ended"), "the process had not looked at the flag yet"
    assert bell in recorder.rung
    process.stop()


def test_a_process_executes_steps_from_any_thread(application: Deuz) -> None:
    """The caller waits for the report; a second look finds nothing to do."""
    handle = application.enqueue("talker", "hello")
    process = WorkerProcess(application, DrainFlag(), queues=["default"], alone=True)
    process.start()
    bell = Bell("default", handle.run_id, "default")
    assert [process.step(bell).end, process.step(bell).end] == ["ended", "idle"]
    process.stop()
    assert handle.result(5).status == "completed"


class Held:
    """A doorbell that rings when the test says so."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()
        self.rung: list[Bell] = []

    async def ring(self, bells: Sequence[Bell]) -> None:
        self.asked.set()
        await asyncio.to_thread(self.go.wait)
        self.rung.extend(bells)


def test_a_step_returns_while_its_bells_are_rung_and_the_process_ends_after(migrated: Settings) -> None:
    """Celery knows early that the slot is free; a process that ends, as after a drain, has rung for everything before."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    app = Deuz([Agent("looker", model=MockModel([call("look"), "done"]), tools=[look])], settings=migrated)
    handle = app.enqueue("looker", "hello")
    process = WorkerProcess(app, DrainFlag(), queues=["default"], alone=True)
    process.start()
    held = Held()
    app.doorbell.add(held)
    assert process.step(Bell("default", handle.run_id, "default")).end == "turn"
    assert held.asked.wait(10)
    ending = threading.Thread(target=process.stop)
    ending.start()
    assert held.rung == []
    assert ending.is_alive()
    held.go.set()
    ending.join(10)
    assert [bell.run_id for bell in held.rung] == [handle.run_id]
    app.close()


def test_a_bell_that_fails_is_told_and_the_step_stays_what_it_was(migrated: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """The commit stands and the sweep finds the run; the text of the error stays out of the log."""

    class Broken:
        async def ring(self, bells: Sequence[Bell]) -> None:
            raise ValueError("a secret")

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    app = Deuz([Agent("looker", model=MockModel([call("look"), "done"]), tools=[look])], settings=migrated)
    handle = app.enqueue("looker", "hello")
    process = WorkerProcess(app, DrainFlag(), queues=["default"], alone=True)
    process.start()
    app.doorbell.add(Broken())
    assert process.step(Bell("default", handle.run_id, "default")).end == "turn"
    process.stop()
    assert "ring_failed error=ValueError" in caplog.text
    assert "a secret" not in caplog.text
    app.close()


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
