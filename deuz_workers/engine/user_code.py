"""Calls of user code: whatever comes out of one is the failure of that call, and of nothing else.

It runs in a task of its own. So a cancellation that it causes is none of the step's, and what would end the event loop with
every other run of the process (`SystemExit`, `KeyboardInterrupt`) does not get there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import NoneType
from typing import Any, Generic, TypeVar

from deuz_workers.core.codec import decode, encode
from deuz_workers.engine.weight import is_heavy
from deuz_workers.errors import CodecError, SimulatedDeath
from deuz_workers.ports.signal import Signal

T = TypeVar("T")

GRACE_S = 30.0
"""For a coroutine that was cancelled to clean up, as long as for a function in a thread (`tools.threads`). A lease is vouched
for longer than that (`engine.leg.MARGIN_MS`)."""

_LEFT: set[asyncio.Task[Any]] = set()
"""Cancelled and not ended yet: the loop itself keeps no task alive."""

log = logging.getLogger(__name__)


class Broken(Exception):
    """User code raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class LimitPassed(Exception):
    """User code took too long and was cancelled. `left`: it has not ended, and goes on with nobody to hear what it returns."""

    def __init__(self, *, left: bool = False) -> None:
        super().__init__()
        self.left = left


class _Outcome(Generic[T]):
    """A result that is on its way out of a task."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


async def outcome_of(
    call: Callable[[], Awaitable[T]],
    limit_ms: int,
    until: Signal | None = None,
    on_limit: Callable[[], None] | None = None,
) -> T:
    """What `call` returns. It is cancelled when the limit has passed or `until` is set, and waited for `GRACE_S` then.

    `on_limit` is called before it is cancelled because of the limit. A coroutine that swallows the cancellation is left as a
    function in a thread is: it goes on, and what it returns counts for nothing.

    Raises `Broken`, `LimitPassed`, and the reason of `until`.
    """
    work = asyncio.ensure_future(_contained(call))
    told = None if until is None else asyncio.ensure_future(until.wait_async())
    tasks: list[asyncio.Task[Any]] = [work] if told is None else [work, told]
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        if work not in done:
            if not done and on_limit is not None:
                on_limit()
            ended = await _ended(work)
            if not ended or work.cancelled():
                if until is not None:
                    until.raise_if_set()
                raise LimitPassed(left=not ended)
    finally:
        for task in tasks:
            if not task.done():
                task.add_done_callback(look_at_end)
                task.cancel()
    return _result(work)


async def apart(call: Callable[[], Awaitable[T]]) -> T:
    """What `call` returns, however long it takes; it is cancelled when the caller is, and waited for `GRACE_S` then.

    Raises `Broken`.
    """
    work = asyncio.ensure_future(_contained(call))
    try:
        await asyncio.wait((work,))
    finally:
        if not work.done():
            await _ended(work)
    return _result(work)


async def _ended(work: asyncio.Task[Any]) -> bool:
    """Cancel it; whether it ended in time. One that did not is kept alive here until it does."""
    work.cancel()
    _LEFT.add(work)
    work.add_done_callback(_LEFT.discard)
    work.add_done_callback(look_at_end)
    await asyncio.wait((work,), timeout=GRACE_S)
    if not work.done():
        log.warning("coroutine_left after_s=%d left=%d", GRACE_S, len(_LEFT))
    return work.done()


def _result(work: asyncio.Task[_Outcome[T]]) -> T:
    if work.cancelled():
        raise Broken(asyncio.CancelledError("nobody but the call itself had cancelled it"))
    return work.result().value


async def _contained(call: Callable[[], Awaitable[T]]) -> _Outcome[T]:
    task = asyncio.current_task()
    try:
        return _Outcome(await call())
    except (asyncio.CancelledError, SimulatedDeath):
        raise
    except BaseException as error:
        if isinstance(error, GeneratorExit) and not _is_running(task):
            raise
        raise Broken(error) from error


def is_end_of(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """The error ends the whole task, which somebody cancelled or closed; otherwise user code that it awaited raised it."""
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return isinstance(error, SimulatedDeath) or (isinstance(error, GeneratorExit) and not _is_running(task))


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    """False for a coroutine that is closed, because nobody will go on with it."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


def look_at_end(task: asyncio.Task[Any]) -> None:
    """Looks at how a task ended that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


async def stored_form(value: object, max_bytes: int) -> object:
    """The value as it reads back from its receipt, so that a live result and a resumed one are the same.

    Raises `CodecError`, and `Broken` where its own code did: a serializer, a property.
    """

    def form() -> object:
        try:
            text = encode(value, max_bytes=max_bytes)
            return value if type(value) in (str, bool, int, float, NoneType) else decode(text)
        except CodecError:
            raise
        except BaseException as error:  # its own class, so that it may cross from one thread to another
            raise Broken(error) from error

    return await asyncio.to_thread(form) if is_heavy(value) else form()
