"""How urgently a worker is asked to end, told to all of its processes at once."""

from __future__ import annotations

import mmap
from enum import IntEnum


class Urgency(IntEnum):
    """What was asked for so far; it only grows."""

    NONE = 0
    DRAIN = 1
    """No new step. Tools are waited for, model calls up to the grace period."""
    HURRY = 2
    """The grace period is over at once: model calls end now."""


class DrainFlag:
    """One byte of anonymous memory that a parent and the children it forks later share.

    Setting it takes no lock and wakes nobody, so a signal handler may do it at any moment; the processes look at it.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    @property
    def urgency(self) -> Urgency:
        return Urgency(self._memory[0])

    def ask(self, urgency: Urgency) -> None:
        """At least `urgency` from now on."""
        if urgency > self._memory[0]:
            self._memory[0] = urgency

    def ask_again(self) -> None:
        """The next urgency: whoever asks a second time is in a hurry."""
        self.ask(Urgency(min(self._memory[0] + 1, Urgency.HURRY)))
