"""When the id of a tool call alone names a request for approval."""

from __future__ import annotations

from deuz_workers.core.run import Run


def names_one_call(run: Run, call_id: str) -> bool:
    """The run used the id once: one call in the history, one request under it (APR-007).

    Requests are counted in the checkpoint, so that a history that was cut down does not make an id look unique (APR-008).
    Whoever asks has loaded the whole run, so that a compacted one does not either (CMP-009).
    """
    calls = sum(call.call_id == call_id for message in run.transcript for call in message.tool_uses)
    return calls == 1 and run.envelope.checkpoint.approval_request_counts.get(call_id, 0) <= 1
