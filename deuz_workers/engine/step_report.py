"""How a step ended, and what it leaves to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deuz_workers.core.change import Bell
from deuz_workers.engine.leg import LoopEnd
from deuz_workers.errors import DeuzError

StepEnd = (
    LoopEnd
    | Literal[
        "idle",
        "held",
        "young",
        "unknown_run",
        "nobody",
        "other_build",
        "other_tools",
        "unreadable",
        "suspicious",
        "quarantined",
        "over",
        "unreachable",
        "crashed",
        "refused",
    ]
)
"""How a step ended. `over`: the run is somebody else's now; `nobody`: this process does not know its agent; `other_build`: it
knows it otherwise; `other_tools`: its tool servers are away, or offer what the run did not record; `suspicious`: it was rung
for a process that executes nothing beside it; `quarantined`: it is left to a person."""


@dataclass(frozen=True, slots=True)
class StepReport:
    end: StepEnd
    bells: tuple[Bell, ...] = ()
    """What was rung after the lease was given back."""
    error: DeuzError | None = None
    """Why nothing could be done: what a server, the stored record or a defect of ours raised, or who has the run now."""
