"""What responses hold, in the snake_case of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from deuz_workers.app.pending import PendingApproval, PendingClientCall
from deuz_workers.app.results import AgentResult, UnknownEffect
from deuz_workers.app.run_event import RunEvent
from deuz_workers.app.swarm_result import SwarmStatus, swarm_status
from deuz_workers.app.ui_parts import error_record, jsonable
from deuz_workers.core.change import Head, RunKind, RunStatus, TaskStatus
from deuz_workers.core.redaction import redact_all
from deuz_workers.ports.store import SwarmSnapshot


class Problem(BaseModel):
    """RFC 9457. `code` is the one that the error has in Python; `retry` says whether the same request can succeed later."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retry: Literal["never", "later", "now"]


class Started(BaseModel):
    run_id: str
    scope: str


class RunRecord(BaseModel):
    """A run as listings show it."""

    run_id: str
    scope: str
    kind: RunKind
    agent: str
    status: RunStatus
    parked: str | None
    queue: str
    priority: int
    revision: int
    turns: int
    tokens: int
    cost_micros: int | None = Field(description="None: some call had no known price.")
    created_at_ms: int


class RunsPage(BaseModel):
    runs: list[RunRecord]
    cursor: str | None = Field(description="Of the next page; None on the last.")


class ApprovalRecord(BaseModel):
    approval_id: str
    tool_call_id: str
    tool_name: str
    arguments: Any
    step: int
    token: str | None
    people: list[str]
    needed: int
    approved_by: list[str]
    expires_in_ms: int | None


class ClientCallRecord(BaseModel):
    item_id: str
    tool_call_id: str
    tool_name: str
    arguments: Any
    step: int


class EffectRecord(BaseModel):
    """An interrupted call, of which nobody knows whether it had its effect."""

    effect_id: str
    tool_call_id: str
    tool_name: str
    arguments: Any
    step: int
    attempt: int
    approval_id: str | None
    token: str | None


class ErrorRecord(BaseModel):
    name: str | None = None
    code: str | None = None
    message: str


class RunDetail(RunRecord):
    """`has_report`: it has ended, or waits for somebody; the fields below are empty before."""

    has_report: bool
    output: Any = None
    reason: str | None = None
    stop_details: Any = None
    error: ErrorRecord | None = None
    pending_approvals: list[ApprovalRecord] = Field(default_factory=list[ApprovalRecord])
    pending_client_calls: list[ClientCallRecord] = Field(default_factory=list[ClientCallRecord])
    unknown_effects: list[EffectRecord] = Field(default_factory=list[EffectRecord])


class EventRecord(BaseModel):
    seq: int
    type: str
    at_ms: int
    data: dict[str, Any]


class EventsPage(BaseModel):
    events: list[EventRecord]


class Resumed(BaseModel):
    """`resumed` False: something was left open, so nothing was stored."""

    resumed: bool
    warnings: list[str]
    run: RunDetail


class Answered(BaseModel):
    item_id: str
    open_items: int
    still_needed: int


class Accepted(BaseModel):
    """False: it had ended before."""

    accepted: bool


class Pruned(BaseModel):
    pruned: int


class Ticket(BaseModel):
    ticket: str
    expires_at_ms: int


class TaskRecord(BaseModel):
    task_id: str
    run_id: str
    kind: RunKind
    agent: str
    status: TaskStatus
    depends_on: list[str]
    tokens: int
    cost_micros: int | None
    started_at_ms: int | None
    ended_at_ms: int | None


class SwarmRecord(BaseModel):
    run_id: str
    scope: str
    name: str
    status: SwarmStatus
    slots: int
    open: int
    ready: int
    running: int
    tasks: list[TaskRecord]


class Health(BaseModel):
    status: Literal["ok"] = "ok"


def run_fields(head: Head) -> dict[str, Any]:
    return {
        "run_id": head.run_id,
        "scope": head.scope,
        "kind": head.kind,
        "agent": head.agent,
        "status": head.listed_status,
        "parked": head.parked,
        "queue": head.queue,
        "priority": head.priority,
        "revision": head.revision,
        "turns": head.model_step,
        "tokens": head.tokens,
        "cost_micros": head.cost_micros,
        "created_at_ms": head.created_at_ms,
    }


def run_detail(head: Head, result: AgentResult[Any] | None) -> RunDetail:
    """`result` None: the run has nothing to report yet."""
    if result is None:
        return RunDetail(**run_fields(head), has_report=False)
    return RunDetail(
        **run_fields(head),
        has_report=True,
        output=jsonable(result.value),
        reason=result.reason,
        stop_details=None if result.stop_details is None else redact_all(jsonable(dict(result.stop_details))),
        error=None if result.error is None else ErrorRecord.model_validate(error_record(result.error)),
        pending_approvals=[_approval(item) for item in result.pending_approvals],
        pending_client_calls=[_client_call(item) for item in result.pending_client_calls],
        unknown_effects=[_effect(item) for item in result.unknown_effects],
    )


def event_record(event: RunEvent) -> EventRecord:
    data: Mapping[str, Any] = redact_all(jsonable(dict(event.data)))  # pyright: ignore[reportAssignmentType] - of a mapping
    return EventRecord(seq=event.seq, type=event.type, at_ms=event.at_ms, data=dict(data))


def swarm_record(head: Head, snapshot: SwarmSnapshot) -> SwarmRecord:
    return SwarmRecord(
        run_id=head.run_id,
        scope=head.scope,
        name=head.agent,
        status=swarm_status(head, snapshot),
        slots=snapshot.slots,
        open=snapshot.open,
        ready=snapshot.ready,
        running=snapshot.running,
        tasks=[
            TaskRecord(
                task_id=task.task_id,
                run_id=task.run_id,
                kind=task.kind,
                agent=task.agent,
                status=task.status,
                depends_on=list(task.depends_on),
                tokens=task.tokens,
                cost_micros=task.cost_micros,
                started_at_ms=task.started_at_ms,
                ended_at_ms=task.ended_at_ms,
            )
            for task in snapshot.tasks
        ],
    )


def _approval(item: PendingApproval) -> ApprovalRecord:
    return ApprovalRecord(
        approval_id=item.approval_id,
        tool_call_id=item.tool_call_id,
        tool_name=item.tool_name,
        arguments=jsonable(dict(item.arguments)),
        step=item.step,
        token=item.token,
        people=list(item.people),
        needed=item.needed,
        approved_by=list(item.approved_by),
        expires_in_ms=item.expires_in_ms,
    )


def _client_call(item: PendingClientCall) -> ClientCallRecord:
    return ClientCallRecord(
        item_id=item.item_id,
        tool_call_id=item.tool_call_id,
        tool_name=item.tool_name,
        arguments=jsonable(dict(item.arguments)),
        step=item.step,
    )


def _effect(effect: UnknownEffect) -> EffectRecord:
    return EffectRecord(
        effect_id=effect.effect_id,
        tool_call_id=effect.tool_call_id,
        tool_name=effect.tool_name,
        arguments=jsonable(dict(effect.arguments)),
        step=effect.step,
        attempt=effect.attempt,
        approval_id=effect.approval_id,
        token=effect.token,
    )
