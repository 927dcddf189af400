"""Calls that do not run, and what the model is told instead of a result."""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.core.delegation import depth_of
from deuz_workers.core.effects import PlannedCall
from deuz_workers.core.events import CallFailed, CallRejected, Event
from deuz_workers.core.handoff import refusal
from deuz_workers.core.outcomes import CallOutcome
from deuz_workers.core.run import Run
from deuz_workers.ports.tool import Tool


@dataclass(frozen=True, slots=True)
class Rejection:
    """A call that does not run, and what the model is told instead of a result."""

    text: str
    outcome: CallOutcome
    reason: str | None = None

    @staticmethod
    def of_denial(reason: str | None) -> Rejection:
        return Rejection(f"Tool call denied. Reason: {reason or 'No reason given.'}", "denied", reason)

    def event(self, planned: PlannedCall) -> Event:
        """A call that was interrupted has begun, and fails; any other never ran."""
        call = planned.call
        if planned.action == "start":
            return CallRejected(call.call_id, call.name, self.text, self.outcome, self.reason)
        return CallFailed(call.call_id, self.text, self.outcome, self.reason)


def not_made(planned: PlannedCall, tool: Tool | None, run: Run, *, is_first: bool) -> Rejection | None:
    """The call is a transfer, and the run stays with its agent (HND-003, HND-007). `is_first`: of those of its turn."""
    if tool is None or tool.transfers_to is None:
        return None
    refused = refusal(run.envelope.handoffs, run.step, run.envelope.limits.max_handoffs, is_first=is_first)
    return None if refused is None else Rejection(refused[0], "transfer-refused", refused[1])


def too_deep(planned: PlannedCall, tool: Tool | None, run: Run) -> Rejection | None:
    """The run of a delegated call would be deeper below the root than its tool allows (CHD-008)."""
    delegation = None if tool is None else tool.delegation
    if delegation is None or depth_of(run.envelope) < delegation.max_depth:
        return None
    text = f"{planned.call.name} cannot be asked from here: agents are delegated to {delegation.max_depth} levels deep at most."
    return Rejection(text + " Do it yourself.", "error", "max_depth")
