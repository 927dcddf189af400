"""What goes on in a run, told to whoever collects traces and metrics. Nothing of a run depends on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from deuz_workers.core.messages import ToolUsePart
from deuz_workers.core.run import Run

Ended = Callable[[object], None]
"""Called once with what came of a call, before its block ends."""


class Telemetry(Protocol):
    """Called on the loop of the step; never waits and never raises."""

    @property
    def is_on(self) -> bool: ...

    def carried(self) -> str | None:
        """What the caller is part of, as a W3C `traceparent`; None: nothing."""
        ...

    def continuing(self, trace: str | None) -> AbstractContextManager[None]:
        """In the block `carried` gives `trace`; None, and what is no `traceparent`: as without the block."""
        ...

    def step(self, run: Run, created_at_ms: int, waited_since_ms: int | None) -> AbstractContextManager[None]:
        """In the block one step of `run`; times are Unix times by the store's clock.

        `waited_since_ms`: since when the run waits, for its first step or for answers; None: it does not.
        """
        ...

    def model_call(self, run: Run, model: str) -> AbstractContextManager[Ended]:
        """In the block the call that the newest commit of `run` admitted; ended with its event, None for nobody knows."""
        ...

    def tool_call(self, run: Run, call: ToolUsePart) -> AbstractContextManager[Ended]:
        """In the block a tool executes; ended with what it returned. A block that is left by an error ended by it."""
        ...

    def saved(self, run: Run) -> None:
        """A commit of everything unsaved in `run` was applied."""
        ...


def _ignored(outcome: object) -> None:
    pass


_NOTHING: AbstractContextManager[None] = nullcontext()
_UNTOLD: AbstractContextManager[Ended] = nullcontext(_ignored)


class NoTelemetry:
    """A `Telemetry` that nobody collects: each call hands out an object that was made before."""

    is_on = False

    def carried(self) -> None:
        return None

    def continuing(self, trace: str | None) -> AbstractContextManager[None]:
        return _NOTHING

    def step(self, run: Run, created_at_ms: int, waited_since_ms: int | None) -> AbstractContextManager[None]:
        return _NOTHING

    def model_call(self, run: Run, model: str) -> AbstractContextManager[Ended]:
        return _UNTOLD

    def tool_call(self, run: Run, call: ToolUsePart) -> AbstractContextManager[Ended]:
        return _UNTOLD

    def saved(self, run: Run) -> None:
        pass
