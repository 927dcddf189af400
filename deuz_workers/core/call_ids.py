"""Ids of tool calls: the provider's, where they tell the calls of a turn apart, else ours."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from deuz_workers.core.messages import Message, ToolUsePart

MAX_CALL_ID_CHARS = 128
"""Of an id that is kept: it stands in rows, journals, approvals and command lines. Those in use have up to 64; the index of
receipts takes 2,700 bytes."""


def identify_calls(message: Message, step: int) -> Message:
    """The message with a call id on every call that no other call of the turn has (RCP-001).

    The provider's id where it is there, plain and unique, else `s<step>c<place>`. The provider's is kept beside it, to be
    echoed, unless it has characters that may not survive the way back: then both the call and its result carry ours.
    """
    given = Counter(part.call_id for part in message.parts if isinstance(part, ToolUsePart))
    parts = list(message.parts)
    ordinal = 0
    for place, part in enumerate(parts):
        if not isinstance(part, ToolUsePart):
            continue
        ordinal += 1
        if not _is_plain_id(part.call_id) or given[part.call_id] > 1:
            own = f"s{step}c{ordinal}"
            while own in given:
                own += "_"
            echoed = part.call_id if part.call_id.isprintable() else ""
            parts[place] = replace(part, call_id=own, provider_call_id=echoed or None)
    return replace(message, parts=tuple(parts))


def _is_plain_id(call_id: str) -> bool:
    return 0 < len(call_id) <= MAX_CALL_ID_CHARS and call_id.isascii() and call_id.isprintable()
