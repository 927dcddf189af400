"""The state of a run as a client keeps it, folded from the parts of its stream. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

AgentStatus = Literal["idle", "running", "completed", "suspended", "stopped", "failed"]

NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class AgentState:
    """Of one run. Fields of another status than `status` are empty."""

    run_id: str | None = None
    seq: int = 0
    """Number of the newest frame that was applied; older ones have no effect."""
    status: AgentStatus = "idle"
    phase: str | None = None
    step: int = 0
    attempt: int = 0
    """Which request for the final answer is under way, 0 before the first."""
    active_agent: str | None = None
    """Name of the agent that the run was handed over to; None: its own."""
    partial: Any = None
    """The typed answer as far as it is written, as plain data; nothing vouches for it."""
    output: Any = None
    """Of a completed run."""
    pending_approvals: tuple[Mapping[str, Any], ...] = ()
    pending_client_calls: tuple[Mapping[str, Any], ...] = ()
    reason: str | None = None
    stop_details: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    """Calls that have ended: `toolCallId`, `toolName`, `step`, `isError`, `outcome`."""
    warnings: tuple[Mapping[str, Any], ...] = field(default=())


EMPTY = AgentState()


def agent_state_from_parts(parts: Iterable[Mapping[str, Any]], state: AgentState = EMPTY) -> AgentState:
    """`state` after these parts: `data-agent` frames in the order of their numbers; all other parts have no effect.

    A frame that was applied before, or is older than one that was, changes nothing; of a kind that is not known
    here only the number counts.
    """
    for part in parts:
        if part.get("type") == "data-agent" and isinstance(part.get("data"), Mapping):
            state = _apply(state, cast("Mapping[str, Any]", part["data"]))
    return state


def _apply(state: AgentState, data: Mapping[str, Any]) -> AgentState:
    seq = data.get("seq")
    if not isinstance(seq, int) or seq <= state.seq:
        return state
    state = replace(state, seq=seq, run_id=data.get("runId", state.run_id))
    match data.get("kind"):
        case "phase":
            attempt, step = int(data.get("attempt", 0)), int(data.get("step", 0))
            partial = state.partial if (attempt, step) == (state.attempt, state.step) else None
            running = replace(_kept(state), seq=seq, status="running")
            return replace(running, phase=data.get("phase"), step=step, attempt=attempt, partial=partial)
        case "draft":
            return replace(state, partial=data.get("partial"), attempt=int(data.get("attempt", 0)))
        case "discard":
            return replace(state, partial=None) if data.get("step") == state.step else state
        case "tool":
            return replace(state, tools=(*state.tools, _without_place(data)))
        case "handoff":
            return replace(state, active_agent=data.get("toAgent"))
        case "warning":
            return replace(state, warnings=(*state.warnings, _without_place(data)))
        case "state":
            return _ended(state, data)
        case _:
            return state


def _ended(state: AgentState, data: Mapping[str, Any]) -> AgentState:
    status = data.get("status")
    base = replace(_kept(state), step=state.step)
    match status:
        case "completed":
            return replace(base, status="completed", output=data.get("output"))
        case "suspended":
            approvals, calls = data.get("pendingApprovals", ()), data.get("pendingClientCalls", ())
            return replace(base, status="suspended", pending_approvals=tuple(approvals), pending_client_calls=tuple(calls))
        case "stopped":
            return replace(base, status="stopped", reason=data.get("reason"), stop_details=data.get("stopDetails"))
        case "failed":
            return replace(base, status="failed", error=data.get("error"))
        case _:
            return state


def _kept(state: AgentState) -> AgentState:
    """What is of the whole run."""
    return AgentState(state.run_id, state.seq, tools=state.tools, warnings=state.warnings, active_agent=state.active_agent)


def _without_place(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in data.items() if name not in ("kind", "runId", "seq")}
