"""Effects: what `decide` orders. The engine carries them out and reports what happened as events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deuz_workers.core.events import Finished
from deuz_workers.core.messages import ToolUsePart
from deuz_workers.core.pending_item import arguments_digest
from deuz_workers.core.receipts import Receipt


@dataclass(frozen=True, slots=True)
class GatherInputs:
    """A swarm task that has not begun: read what the tasks before it left."""


@dataclass(frozen=True, slots=True)
class CallModel:
    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AskForOutput:
    """The tool loop is over: ask for the final answer."""


@dataclass(frozen=True, slots=True)
class CheckOutput:
    """Does this text have the output type of the run?"""

    text: str


@dataclass(frozen=True, slots=True)
class VerifyCandidate:
    """Has this text the output type of the run, where it has one, and does the verifier accept it?

    The attempt is recorded before the verifier is asked. Ordered again after a death or a refused save, it is the next attempt.
    """

    text: str
    attempt: int
    """From 1, over all candidates of the run."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """`start`: never ran. `rerun`: interrupted, and its tool may be repeated. `again`: interrupted, and somebody allowed it
    once more, so its gate is asked again. `project`: ran, its raw value is recorded. `lost`: it was delegated, and its run is
    not waited for any more."""

    call: ToolUsePart
    action: Literal["start", "rerun", "again", "project", "lost"]
    receipt: Receipt | None
    verdict: Literal["none", "approved", "denied"] = "none"
    denial_reason: str | None = None
    approved_arguments: str | None = None
    """Digest of those that the approval was asked for, where they are not the model's."""

    by: tuple[str, ...] = ()
    """Who gave the verdict of a call that runs again, or a late one: the gate judges whether they may."""
    is_late: bool = False
    """The verdict came when the turn had been taken up; it counts where the gate asks."""

    def is_as_approved(self, arguments: Mapping[str, object] | None) -> bool:
        """Not so where an approval was asked for other arguments than these."""
        return self.approved_arguments in (None, arguments_digest(arguments or {}))


@dataclass(frozen=True, slots=True)
class RunCalls:
    """In this order, side by side; each outcome is committed as it arrives."""

    step: int
    calls: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True)
class AnswerTurn:
    """Append the results of the turn to the history."""


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Effects whose outcome nobody knows: park the run until somebody says."""

    unknown: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class AwaitAnswers:
    """The run is suspended and an item is open."""


@dataclass(frozen=True, slots=True)
class ConductSwarm:
    """One batch of the swarm's own work: block, cancel, or write the final snapshot."""


@dataclass(frozen=True, slots=True)
class Finish:
    ending: Finished


@dataclass(frozen=True, slots=True)
class Nothing:
    """The run has ended."""


@dataclass(frozen=True, slots=True)
class ExtractMemory:
    """The run is completed; what it says is extracted into the memory, or what became of that is found out."""


Effect = (
    GatherInputs
    | CallModel
    | AskForOutput
    | CheckOutput
    | VerifyCandidate
    | RunCalls
    | AnswerTurn
    | Reconcile
    | AwaitAnswers
    | ConductSwarm
    | Finish
    | ExtractMemory
    | Nothing
)
