"""Which run, turn and attempt a process is at work on, for log lines that are written meanwhile.

Bound once at the start of a step: whatever is logged below it, by user code and libraries too, can be told by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass

from deuz_workers.core.run import Run


@dataclass(slots=True)
class LogPlace:
    scope: str
    run: str
    turn: int = 0
    """0: none has begun, or it is not known yet."""
    attempt: int = 0
    """Of the call of that turn."""


_PLACE: ContextVar[LogPlace | None] = ContextVar("deuz_log_place", default=None)


def log_place() -> LogPlace | None:
    """Where the calling code is; None outside of steps."""
    return _PLACE.get()


@contextlib.contextmanager
def at_run(scope: str, run_id: str) -> Generator[None]:
    token = _PLACE.set(LogPlace(scope, run_id))
    try:
        yield
    finally:
        _PLACE.reset(token)


def note_place(run: Run) -> None:
    """The run has got to the turn that it is at now."""
    if (place := _PLACE.get()) is not None:
        place.turn, place.attempt = run.step, run.envelope.checkpoint.attempts or place.attempt
