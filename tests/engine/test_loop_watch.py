"""The watch over an event loop: silent while it ticks, one line when it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from deuz_workers.engine.heartbeat import Heartbeat
from deuz_workers.engine.loop_watch import BLOCKED_MS, LoopWatch
from deuz_workers.engine.system_clock import SystemClock
from deuz_workers.leases import memory_leases
from deuz_workers.ports.leases import Lease
from tests.fake_clock import FakeClock

PATIENCE_S = 20.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_a_ticking_loop_is_not_mentioned(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """However much time passes between looks, a loop that answered is fine."""
    watch = LoopWatch(asyncio.get_running_loop(), clock, lambda: ["tool:x"])
    for _ in range(5):
        assert watch.look()
        await asyncio.sleep(0)
        clock.advance(BLOCKED_MS)
    assert caplog.records == []


async def test_a_blocked_loop_is_reported_once(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """After a second the log names what runs and where the loop is; again only after it ticked."""
    watch = LoopWatch(asyncio.get_running_loop(), clock, lambda: ["tool:x", "step"])
    watch.look()
    await asyncio.sleep(0)  # it ticks once, so that its thread is known
    for _ in range(2):
        watch.look()
        for _ in range(4):
            clock.advance(BLOCKED_MS // 2)
            watch.look()
        await asyncio.sleep(0)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(" at=")[0] for message in messages] == [
        f"loop_blocked blocked_ms={BLOCKED_MS} labels=tool:x,step",
        f"loop_ticked_again blocked_ms={2 * BLOCKED_MS}",
    ] * 2
    assert "loop_watch.py" in messages[0]


def test_a_closed_loop_is_watched_no_more(clock: FakeClock) -> None:
    """The watch ends with its loop."""
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop, clock, list[str])
    assert watch.look()
    loop.close()
    assert not watch.look()
    assert not LoopWatch(loop, clock, list[str]).look()


@pytest.fixture
def heartbeat() -> Generator[Heartbeat]:
    heartbeat = Heartbeat(memory_leases(), 30_000, SystemClock())
    yield heartbeat
    heartbeat.stop()


async def test_the_heartbeat_watches_a_loop(heartbeat: Heartbeat, caplog: pytest.LogCaptureFixture) -> None:
    """A tool that blocks the loop of its process is named in the log while it still blocks."""
    lease = Lease("run:a/1", "me", 1, "epoch", 30_000, "none")
    heartbeat.hold(lease, limit_ms=60_000, on_lost=lambda: None, on_cancel=lambda: None, label="tool:blocks")
    heartbeat.watch(asyncio.get_running_loop())
    reported = threading.Event()
    caplog.handler.addFilter(lambda record: reported.set() or True)
    assert reported.wait(PATIENCE_S)  # on the loop's own thread: it is blocked until then
    assert "labels=tool:blocks" in caplog.records[0].getMessage()
