"""Which run, turn and attempt a process is at work on, for log lines that are written meanwhile.

Bound once at the start of a step: whatever is logged below it, by user code and libraries too, can be told by it.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
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


class at_run:  # a generator would cost a step three times as much
    """In the block this run is worked on."""

    __slots__ = ("_place", "_token")

    def __init__(self, scope: str, run_id: str) -> None:
        self._place = LogPlace(scope, run_id)

    def __enter__(self) -> None:
        self._token: Token[LogPlace | None] = _PLACE.set(self._place)

    def __exit__(self, *error: object) -> None:
        _PLACE.reset(self._token)


def note_place(run: Run) -> None:
    """The run has got to the turn that it is at now."""
    if (place := _PLACE.get()) is not None:
        place.turn, place.attempt = run.step, run.envelope.checkpoint.attempts or place.attempt
