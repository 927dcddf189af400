"""Threads of sync tools: no deadlock over depths, nothing that keeps the process alive, nobody waits for what was given up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator

import pytest

from deuz_workers.errors import ToolError
from deuz_workers.tools.threads import ToolThreads

WAIT_S = 60


@contextlib.contextmanager
def loop_elsewhere() -> Generator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own, as a worker process has it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until the condition holds; the test's own time limit is the deadline."""
    while not condition():  # noqa: ASYNC110 - no event tells what a thread did last
        await asyncio.sleep(0)


async def test_a_call_has_its_result() -> None:
    """The function runs in a daemon thread that is called after the pool and, meanwhile, after the tool."""
    threads = ToolThreads()
    thread = await threads.call("pay", threading.current_thread)
    assert thread.daemon
    name = await threads.call("pay", lambda: threading.current_thread().name)
    assert name == "deuz-tool-0-1:pay"
    await until(lambda: thread.name == "deuz-tool-0-1")


async def test_threads_are_used_again_and_at_most_so_many() -> None:
    """One after the other needs one thread; many at once never more than the limit, the others wait their turn."""
    threads = ToolThreads(max_threads=3)
    assert len({await threads.call("t", threading.get_ident) for _ in range(20)}) == 1
    lock, running, most = threading.Lock(), 0, 0
    barrier = threading.Barrier(3)

    def work() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(WAIT_S)
        with lock:
            running -= 1
        return threading.get_ident()

    assert len(set(await asyncio.gather(*(threads.call("t", work) for _ in range(30))))) == 3
    assert most == 3


@pytest.mark.parametrize("depths", [1, 2, 5])
def test_a_tool_that_starts_a_run_never_waits_for_its_own_thread(depths: int) -> None:
    """With one thread per depth, tools that block on tools inside them all finish: each depth has threads of its own."""
    threads = ToolThreads(max_threads=1)
    with loop_elsewhere() as loop:

        def nested(left: int) -> str:
            if left == 0:
                return threading.current_thread().name
            inner = threads.call("inner", lambda: nested(left - 1))
            return asyncio.run_coroutine_threadsafe(inner, loop).result(WAIT_S)

        async def both() -> list[str]:
            return await asyncio.gather(*(threads.call("outer", lambda: nested(depths)) for _ in range(2)))

        names = asyncio.run_coroutine_threadsafe(both(), loop).result(WAIT_S)
    assert {name.split("-")[2] for name in names} == {str(depths)}


async def test_cancelling_a_running_call_returns_at_once_and_accounts_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on without a place in the pool, is named and counted, and is gone from the count when it ends."""
    threads = ToolThreads(max_threads=1)
    begun, release = threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        release.wait(WAIT_S)

    with caplog.at_level(logging.INFO, "deuz_workers.tools.threads"):
        call = asyncio.create_task(threads.call("pay", stuck))
        await until(begun.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert threads.abandoned() == {"pay": 1}
        assert await threads.call("other", lambda: "free") == "free"
        release.set()
        await until(lambda: not threads.abandoned())
        await until(lambda: len(caplog.records) == 2)
    told = [(record.message, record.__dict__["tool"]) for record in caplog.records]
    assert told == [("tool_abandoned", "pay"), ("abandoned_tool_ended", "pay")]


async def test_a_waiting_call_gets_the_place_of_an_abandoned_one() -> None:
    """Calls that queue behind a stuck one begin as soon as nobody waits for that any more."""
    threads = ToolThreads(max_threads=1)
    begun, release = threading.Event(), threading.Event()
    stuck = asyncio.create_task(threads.call("stuck", lambda: (begun.set(), release.wait(WAIT_S))))
    await until(begun.is_set)
    waiting = asyncio.create_task(threads.call("next", lambda: "ran"))
    await asyncio.sleep(0)
    stuck.cancel()
    assert await waiting == "ran"
    release.set()
    await until(lambda: not threads.abandoned())


async def test_a_call_that_is_cancelled_before_it_begins_never_begins() -> None:
    """It is taken out of the queue and counted nowhere."""
    threads = ToolThreads(max_threads=1)
    begun, release, ran = threading.Event(), threading.Event(), threading.Event()
    first = asyncio.create_task(threads.call("first", lambda: (begun.set(), release.wait(WAIT_S))))
    await until(begun.is_set)
    second = asyncio.create_task(threads.call("second", ran.set))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    await first
    await threads.call("third", lambda: None)
    assert not ran.is_set()
    assert threads.abandoned() == {}


async def test_an_idle_thread_keeps_nothing_alive() -> None:
    """Results and arguments of a call are free once it is over."""

    class Big:
        pass

    threads = ToolThreads()
    reference = weakref.ref(await threads.call("t", Big))

    def is_free() -> bool:
        gc.collect()
        return reference() is None

    await until(is_free)


async def test_leaving_the_process_from_a_thread_is_an_error_of_the_call() -> None:
    """SystemExit and KeyboardInterrupt in a thread end neither the thread nor the loop."""
    threads = ToolThreads()
    for error in (SystemExit(1), KeyboardInterrupt()):

        def leave(error: BaseException = error) -> None:
            raise error

        with pytest.raises(ToolError, match=type(error).__name__):
            await threads.call("t", leave)
    assert await threads.call("t", lambda: 7) == 7


STUCK = """
import asyncio, threading
from deuz_workers.tools.threads import THREADS

async def main():
    begun = threading.Event()
    call = asyncio.create_task(THREADS.call("stuck", lambda: (begun.set(), threading.Event().wait())))
    while not begun.is_set():
        await asyncio.sleep(0)
    call.cancel()

asyncio.run(main())
print("left")
"""


FORKED = """
import asyncio, os, warnings
from deuz_workers.tools.threads import THREADS

warnings.simplefilter("ignore")
asyncio.run(THREADS.call("parent", lambda: None))
child = os.fork()
if child == 0:
    print(asyncio.run(THREADS.call("child", lambda: "from the child")), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("left")
"""


@pytest.mark.parametrize(("script", "said"), [(STUCK, "left\n"), (FORKED, "from the child\nleft\n")], ids=["stuck", "forked"])
def test_processes_end_and_children_work(script: str, said: str) -> None:
    """A tool that never returns does not keep its process; a forked child starts threads of its own."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


async def test_an_outcome_for_a_closed_loop_is_dropped() -> None:
    """A loop that ended meanwhile costs the thread nothing: it takes the next call."""
    threads = ToolThreads(max_threads=1)
    begun, release = threading.Event(), threading.Event()

    def leave_early() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(threads.call("t", lambda: (begun.set(), release.wait(WAIT_S))))
        loop.run_until_complete(asyncio.sleep(0))
        begun.wait(WAIT_S)
        task._log_destroy_pending = False  # pyright: ignore
        loop.close()

    await asyncio.to_thread(leave_early)
    release.set()
    assert await threads.call("t", lambda: 7) == 7
