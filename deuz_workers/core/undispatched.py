"""Calls of a reply that was refused or cut off, which never run."""

from __future__ import annotations

from deuz_workers.core.draft import Draft
from deuz_workers.core.messages import Message, ToolResultPart


def answer_undispatched(draft: Draft, finish_reason: str) -> None:
    """Each is answered, so that the history can be continued."""
    text = "Not dispatched: the reply was " + ("refused." if finish_reason == "content_filter" else "cut off.")
    draft.append(
        Message(
            "tool",
            tuple(
                ToolResultPart(call.call_id, call.name, text, True, None, call.provider_call_id, "not-dispatched")
                for call in draft.open_calls
            ),
        )
    )
