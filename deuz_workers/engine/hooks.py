"""Asking user code beside the path of a call: coroutine functions on the loop, others in a thread, within a limit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deuz_workers.engine.committer import CancelFirst, StepOver
from deuz_workers.engine.stop import Stop
from deuz_workers.engine.user_code import outcome_of
from deuz_workers.errors import Interruption, RunCancelled
from deuz_workers.ports.runtime import Threads


@dataclass(frozen=True, slots=True)
class Hooks:
    """Calls functions of the user's for one step."""

    threads: Threads
    stop: Stop
    limit_ms: int
    """Of one call."""

    async def ask(self, label: str, function: Callable[..., Any], *given: object) -> Any:
        """What `function` returns.

        Raises `Broken` where it raised and `LimitPassed` where it took too long; `CancelFirst` when the run was cancelled
        meanwhile, `StepOver` when the lease is gone.
        """

        async def call() -> Any:
            if inspect.iscoroutinefunction(function):
                return await function(*given)
            value = await self.threads.call(label, lambda: function(*given))
            return await value if inspect.isawaitable(value) else value

        signal = self.stop.signal()
        try:
            return await outcome_of(call, self.limit_ms, signal)
        except RunCancelled:
            raise CancelFirst from None
        except Interruption as ended:
            raise StepOver(str(ended)) from None
        finally:
            self.stop.forget(signal)
