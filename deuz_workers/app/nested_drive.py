"""Driving a run that was started in the execution context of another one: it ends when that one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from deuz_workers.app.async_handle import AsyncHandle
from deuz_workers.app.nesting import home_of, link_of
from deuz_workers.app.results import AgentResult
from deuz_workers.errors import ConfigurationError, LeaseLost, StoreError
from deuz_workers.ports.execution import Execution
from deuz_workers.ports.signal import Signal

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz


async def held_to(
    execution: Execution, app: Deuz, run_id: Callable[[], str], work: Coroutine[Any, Any, AgentResult[Any]]
) -> AgentResult[Any]:
    """What `work` returns, which drives the run `run_id`. When the call ends in whose context it was started, the run is
    cancelled and driven to its end; when the lease of the run above is lost, it is left to be resumed.

    Raises `LeaseLost`, `ConfigurationError`, and what `work` does.
    """
    try:
        signal = link_of(execution).signal
        if app.store is not home_of(execution).store:
            raise ConfigurationError("a run in an execution context is stored where the run above is; leave `store` out")
    except BaseException:
        work.close()
        raise
    driving, told = asyncio.ensure_future(work), asyncio.ensure_future(signal.wait_async())

    async def end() -> None:
        """`driving` has ended: with the run cancelled, or left as it is where the run above goes on elsewhere."""
        if ends_below(signal):
            try:
                await AsyncHandle(app.access, execution.scope, run_id()).cancel(f"run above: {signal.reason}")
            except StoreError:
                driving.cancel()
        else:
            driving.cancel()
        await asyncio.wait((driving,))

    try:
        await asyncio.wait((driving, told), return_when=asyncio.FIRST_COMPLETED)
        if not driving.done():
            await end()
        if driving.cancelled():
            signal.raise_if_set()
        return await driving
    except asyncio.CancelledError:
        if not driving.done():
            await end()
        raise
    finally:
        told.cancel()


def ends_below(signal: Signal) -> bool:
    """What happened above ends what was started below: a cancel, or that the call took too long."""
    return signal.is_set and not isinstance(signal.reason, LeaseLost)
