"""Delegated calls: a run of its own for the call of another run, and what becomes of the call when that run ends.

The child is created in the commit that suspends its parent on the item of the call; its ending commit answers that item. So
there is never a child that nobody waits for, nor an item that nobody will answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import quote
from uuid import UUID

from deuz_workers.core.change import FINAL, ItemRow, MessageRow, NewChild, ParentAnswer
from deuz_workers.core.codec import decode, digest, encode
from deuz_workers.core.envelope import AgentRunEnvelope, encode_body
from deuz_workers.core.events import CallDelegated, CallExecuted, CallFailed, ChildEnded
from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import ToolUsePart, message_to_record, user
from deuz_workers.core.names import run_scope_key, swarm_run_id
from deuz_workers.core.outcomes import CallOutcome
from deuz_workers.core.parent import Parent
from deuz_workers.core.pending_item import ID_DIGITS
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.core.usage import Budget, Usage
from deuz_workers.errors import CodecError

MAX_CHILD_ID_CHARS = 400
"""Of a derived run id; a longer one is replaced by a digest behind the root's. Ids that people choose have up to 512."""


@dataclass(frozen=True, slots=True)
class Delegate:
    """Who is asked, as the process that delegates knows it."""

    agent: str
    limits: Limits = field(default_factory=Limits)
    policy: ExecutionPolicy = NO_POLICY
    budget: Budget | None = None
    concurrency_key: str | None = None
    is_quiet: bool = False
    """Readers of the topmost run are told the result alone."""


def child_run_id(parent: str, agent: str, step: int, call_id: str) -> str:
    """`<parent>/<agent>:<turn>:<call>`, percent-encoded: the same after every repetition, and of no other call (SUB-003)."""
    spelled = f"{parent}/{quote(agent, safe='')}:{step}:{quote(call_id, safe='')}"
    if len(spelled) <= MAX_CHILD_ID_CHARS:
        return spelled
    return f"{swarm_run_id(parent)}/~{digest([parent, agent, step, call_id])}"


def is_below(run_id: str, above: str) -> bool:
    """The first one is a run that the second delegated, directly or through others, as its id says."""
    return run_id.startswith((f"{above}/", f"{swarm_run_id(above)}/~")) and run_id != above


def path_of(envelope: AgentRunEnvelope) -> tuple[str, ...]:
    """Agents from the root's to the run's own."""
    return (*(() if envelope.parent is None else envelope.parent.path), envelope.agent)


def depth_of(envelope: AgentRunEnvelope) -> int:
    """0 for a run that nobody delegated or started from within another one."""
    if envelope.parent is not None:
        return envelope.parent.depth
    return 0 if envelope.nested is None else envelope.nested.depth


def delegated(envelope: AgentRunEnvelope, step: int, call: ToolUsePart, prompt: str, to: Delegate, rid: UUID) -> CallDelegated:
    """The call as a run named `rid` that may do no more than the one of `envelope`, and the item that waits for it (CHD-005).

    Queue, priority, scope and deadline of its row are the parent's, which the store copies.
    """
    run_id = child_run_id(envelope.run_id, to.agent, step, call.call_id)
    bound = {"kind": "child_run", "run_id": envelope.run_id, "step": step, "call_id": call.call_id, "tool": call.name}
    bound |= {"arguments": dict(call.arguments or {}), "child": run_id, "agent": to.agent}
    sealed = digest(bound)
    item = ItemRow(f"{call.call_id}@{sealed[:ID_DIGITS]}", "child_run", encode(bound), sealed)
    own_scope = () if to.budget is None else (run_scope_key(rid),)
    child = AgentRunEnvelope(
        rid,
        envelope.scope,
        run_id,
        "agent",
        to.agent,
        limits=to.limits,
        scopes=(*own_scope, *envelope.scopes),
        shared=envelope.shared,
        policy=envelope.policy.narrowed(to.policy),
        parent=Parent(
            envelope.rid,
            envelope.run_id,
            item.item_id,
            call.call_id,
            step,
            path_of(envelope),
            envelope.run_id if envelope.parent is None else envelope.parent.root,
            to.is_quiet or (envelope.parent is not None and envelope.parent.is_quiet),
            depth_of(envelope) if envelope.parent is None else envelope.parent.above,
        ),
        trace=envelope.trace,
    )
    messages = (MessageRow(0, encode(message_to_record(user(prompt)))),)
    row = NewChild(rid, run_id, to.agent, encode_body(child), messages, 1, to.concurrency_key, to.budget)
    return CallDelegated(call.call_id, call.name, row, item)


def parent_answer(envelope: AgentRunEnvelope) -> ParentAnswer | None:
    """What the ending commit of a delegated run tells its parent; None of a run that goes on, or that nobody delegated."""
    parent = envelope.parent
    if parent is None or envelope.status not in FINAL:
        return None
    record: dict[str, object] = {"child": envelope.run_id, "status": envelope.status, "usage": envelope.usage.to_record()}
    record |= {"settled_cost_micros": envelope.settled_cost_micros}
    if envelope.unknown_tokens:
        record |= {"unknown_tokens": envelope.unknown_tokens, "unknown_cost_micros": envelope.unknown_cost_micros}
    if envelope.unsettled_tokens:
        record["unsettled_tokens"] = envelope.unsettled_tokens
    for name in ("reason", "error", "stop_details"):
        value = getattr(envelope, name)
        if value is not None:
            record[name] = dict(value) if isinstance(value, Mapping) else value
    if envelope.status == "completed":
        record["output"] = envelope.output
    return ParentAnswer(parent.rid, parent.item_id, encode(record))


def call_of(row: ItemRow) -> str | None:
    """Id of the call that an item of a delegated run waits for; None for any other item."""
    if row.kind != "child_run":
        return None
    record = _record(row.body)
    return str(record["call_id"]) if isinstance(record.get("call_id"), str) else None


def child_ended(call: ToolUsePart, answer: str, max_result_bytes: int) -> ChildEnded:
    """The end of a call by the answer of its run. Raises `CodecError` for an answer that is none of ours."""
    said = _record(answer)
    usage = Usage.from_record(cast("Mapping[str, object]", said.get("usage", {})))
    unknown_tokens, unsettled_tokens = said.get("unknown_tokens", 0), said.get("unsettled_tokens", 0)
    return ChildEnded(
        _outcome(call, said, len(answer), max_result_bytes),
        usage,
        _cost(said.get("settled_cost_micros", usage.cost_micros)),
        unknown_tokens if isinstance(unknown_tokens, int) else 0,
        _cost(said.get("unknown_cost_micros", 0)),
        unsettled_tokens if isinstance(unsettled_tokens, int) else 0,
    )


def _outcome(call: ToolUsePart, said: Mapping[str, object], size_bytes: int, max_bytes: int) -> CallExecuted | CallFailed:
    if said.get("status") == "completed":
        if size_bytes > max_bytes:
            text = f"the result of {call.name} takes {size_bytes} bytes, more than the {max_bytes} that it may"
            return CallFailed(call.call_id, text)
        return CallExecuted(call.call_id, said.get("output"))
    if said.get("status") == "failed":
        error = cast("Mapping[str, object]", said.get("error") or {})
        code = error.get("code")
        outcome: CallOutcome = "over-budget" if code in ("budget_exceeded", "missing_reservation") else "child-failed"
        text = f"{call.name} failed: {error.get('name', 'Error')}: {error.get('message', 'no message')}"
        return CallFailed(call.call_id, text, outcome, code if isinstance(code, str) else None)
    reason = said.get("reason")
    if reason == "aborted":
        return CallFailed(call.call_id, f"{call.name} was cancelled before it had an answer.", "cancelled", "aborted")
    text = f"{call.name} was stopped before it had an answer: {reason or 'no reason is recorded'}"
    return CallFailed(call.call_id, text, "child-stopped", reason if isinstance(reason, str) else None)


def _record(body: str) -> Mapping[str, object]:
    record = decode(body)
    if not isinstance(record, Mapping):
        raise CodecError("what is stored of a delegated call is no record")
    return cast("Mapping[str, object]", record)


def _cost(value: object) -> int | None:
    return value if isinstance(value, int) else None
