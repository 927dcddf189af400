"""Between a process and a server: messages take their time, get lost, and arrive although their sender has died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from deuz_workers.testing.virtual.process import VirtualProcess

T = TypeVar("T")


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing: an operation of a server in memory."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    call.close()
    raise AssertionError("a server in memory waited for something")


async def ask(
    process: VirtualProcess,
    name: str,
    operation: Callable[[], Coroutine[Any, Any, T]],
    *,
    unreachable: Callable[[], BaseException | None],
    lost: Callable[[], BaseException | None],
    settles: bool = False,
) -> T:
    """Send `operation` to its server and wait for the answer.

    It is carried out in one moment, also when its sender died or froze meanwhile. `unreachable`: an error if the server cannot
    be reached when the message would arrive. `lost`: an error if its answer gets lost. `settles`: it is an operation of the
    store, which is committed before its answer arrives.
    """
    world = process.world
    await process.point(f"before {name}")
    answer: asyncio.Future[T] = world.loop.create_future()

    def arrive() -> None:
        if world.trace is not None:
            world.trace(f"{world.clock.monotonic_ms()} {process.name} {name}")
        error = unreachable()
        if error is not None:
            world.outside_later(0.001, _refuse, answer, error)
            return
        try:
            value = at_once(operation())
        except Exception as refusal:  # noqa: BLE001 - the server's answer is an error
            world.outside_later(world.fate.delay_s(), _refuse, answer, refusal)
            return
        error = lost()
        if error is not None:
            world.outside_later(world.fate.delay_s(), _refuse, answer, error)
        else:
            world.outside_later(world.fate.delay_s() + (world.dialect.linger_s() if settles else 0.0), answered, value)

    def answered(value: T) -> None:
        if settles:
            world.dialect.settle()
        _give(answer, value)

    world.outside_later(world.fate.delay_s(), arrive)
    await process.point(f"sent {name}")
    value = await answer
    await process.point(f"after {name}")
    return value


def _give(answer: asyncio.Future[T], value: T) -> None:
    if not answer.done():  # whoever asked was cancelled
        answer.set_result(value)


def _refuse(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
