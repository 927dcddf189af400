"""The parts of the UI wire: what a browser is sent of a run, in the camelCase of the documented wire.

Parts of a chat stream (`start`, `start-step`, `text-start`, `text-delta`, `text-end`, `finish-step`, `finish`) go out as in any
other; `data-agent` frames carry what only a durable run has. Nothing private is a part: no prompt, no transcript, no result of
a tool, no receipt, no amount of money. `docs/gateway.md` lists them all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from deuz_workers.app.pending import PendingApproval, PendingClientCall
from deuz_workers.app.results import AgentResult
from deuz_workers.core.redaction import redact, redact_all

WIRE_VERSION = "v2"
"""Stated by the response header `x-deuz-stream`."""
DONE = "done"
"""Type of the record that ends a leg; on the wire it is `[DONE]`, and nothing where another leg follows."""

Part = Mapping[str, Any]


def agent_part(kind: str, **fields: object) -> Part:
    """A `data-agent` frame; `numbered` adds the run and its number."""
    return {
        "type": "data-agent",
        "data": {"kind": kind, **{name: value for name, value in fields.items() if value is not None}},
    }


def numbered(part: Part, run_id: str, seq: int | None) -> Part:
    """As it is recorded under `seq`; None: it is not."""
    if part["type"] != "data-agent":
        return part
    place = {"runId": run_id} if seq is None else {"runId": run_id, "seq": seq}
    return {"type": "data-agent", "data": {**place, **part["data"]}}


def encode_part(part: Part) -> str:
    """JSON in one line of ASCII."""
    return json.dumps(part, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def jsonable(value: object) -> object:
    """What JSON can say of a value: bytes as base64, NaN and infinities as null, what it does not know as its type's name."""
    try:
        return _finite(_plain(value))
    except (PydanticSerializationError, TypeError, ValueError, RecursionError):
        return None


def _plain(value: object) -> object:
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants", fallback=lambda one: type(one).__name__)
    except UnicodeEncodeError:  # half of a surrogate pair in a name; whoever approves is to see the rest all the same
        return json.loads(json.dumps(value, default=jsonable))


def state_part(result: AgentResult[Any]) -> Part:
    """How a leg ended: the status, and what belongs to that status alone."""
    match result.status:
        case "completed":
            part = agent_part("state", status="completed")
            return {**part, "data": {**part["data"], "output": jsonable(result.value)}}
        case "suspended":
            return agent_part(
                "state",
                status="suspended",
                pendingApprovals=[_approval(item) for item in result.pending_approvals],
                pendingClientCalls=[_client_call(item) for item in result.pending_client_calls],
            )
        case "stopped":
            details = None if result.stop_details is None else redact_all(jsonable(dict(result.stop_details)))
            return agent_part("state", status="stopped", reason=result.reason, stopDetails=details)
        case "failed":
            return agent_part("state", status="failed", error=error_record(result.error or {}))


def error_record(error: Mapping[str, object]) -> Mapping[str, object]:
    """Name, code and redacted message of a stored error; its other fields stay inside."""
    shown = {name: str(error[name]) for name in ("name", "code") if error.get(name) is not None}
    return {**shown, "message": redact(str(error.get("message", "")))}


def _approval(item: PendingApproval) -> Mapping[str, object]:
    return {
        "approvalId": item.approval_id,
        "toolCallId": item.tool_call_id,
        "toolName": item.tool_name,
        "input": jsonable(dict(item.arguments)),
        "step": item.step,
        "people": list(item.people),
        "needed": item.needed,
        "approvedBy": list(item.approved_by),
    }


def _client_call(item: PendingClientCall) -> Mapping[str, object]:
    return {
        "itemId": item.item_id,
        "toolCallId": item.tool_call_id,
        "toolName": item.tool_name,
        "input": jsonable(dict(item.arguments)),
        "step": item.step,
    }


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in cast("dict[object, object]", value).items()}
    if isinstance(value, list):
        return [_finite(item) for item in cast("list[object]", value)]
    return value
