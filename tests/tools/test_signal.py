"""The cancel signal: set once, seen from every thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from deuz_workers.errors import DeadlinePassed, LeaseLost, RunCancelled
from deuz_workers.ports.signal import Signal
from deuz_workers.ports.tool import CancelSignal


def test_it_is_quiet_until_it_is_set() -> None:
    """An unset signal raises nothing and lets a wait run out."""
    signal: CancelSignal = Signal()
    signal.raise_if_set()
    assert (signal.is_set, signal.wait(0)) == (False, False)


def test_the_first_reason_stays() -> None:
    """What came first is why the call ends, and every look raises an error of its own with that reason."""
    signal = Signal()
    signal.set(DeadlinePassed("after 5 s"))
    signal.set(RunCancelled())
    raised: list[DeadlinePassed] = []
    for _ in range(2):
        with pytest.raises(DeadlinePassed, match="after 5 s") as caught:
            signal.raise_if_set()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert signal.is_set
    assert signal.wait(0)


def test_a_waiting_thread_is_woken() -> None:
    """A thread that waits for the signal goes on when another thread sets it."""
    signal, woken = Signal(), threading.Event()
    thread = threading.Thread(target=lambda: signal.wait(60_000) and woken.set())
    thread.start()
    signal.set(LeaseLost())
    thread.join(60)
    assert woken.is_set()


async def test_coroutines_are_woken_from_any_thread() -> None:
    """Several coroutines wait, one gives up, the others go on when a thread sets the signal; later waits return at once."""
    signal = Signal()
    waiting = [asyncio.create_task(signal.wait_async()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.to_thread(signal.set, LeaseLost())
    await asyncio.gather(*waiting[1:])
    assert waiting[0].cancelled()
    await signal.wait_async()


def test_a_closed_loop_does_not_hinder_the_others() -> None:
    """A waiter whose loop is gone is passed over."""
    signal = Signal()
    loop = asyncio.new_event_loop()
    waiter = loop.create_task(signal.wait_async())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    signal.set(LeaseLost())
    assert signal.is_set
    waiter._log_destroy_pending = False  # pyright: ignore
