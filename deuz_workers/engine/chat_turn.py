"""When a step writes the chat of its run: behind the commit that suspends or ends it, or where an executor died before."""

from __future__ import annotations

import logging
from typing import Literal

from deuz_workers.core.change import FINAL, Head
from deuz_workers.core.run import Run
from deuz_workers.core.transcript import transcript_length
from deuz_workers.engine.gear import Gear
from deuz_workers.engine.hold import Hold
from deuz_workers.engine.projecting import LONGEST_MS, Projected, chat_of, project
from deuz_workers.errors import CheckpointVersionError, CodecError, StoreUnavailableError
from deuz_workers.ports.store import RunStore

log = logging.getLogger(__name__)

MARGIN_MS = 60_000
"""For what our own store is asked beside the chat store."""


async def chat_after_end(gear: Gear, head: Head, hold: Hold) -> Literal["nobody", "unreadable", "over"] | None:
    """The chat of an ended run that is still due is written; otherwise why not, and the run stays due."""
    chat = chat_of(head)
    if chat is None:
        return None
    if chat.own_store and gear.chats is None:
        log.warning("step_without_chat_store run=%s", head.run_id)
        await gear.store.put_off(
            head.scope, head.run_id, gear.settings.nobody_postpone_ms, gear.settings.nobody_postpone_max_ms
        )
        return "nobody"
    try:
        await _projected(gear, head, hold, late=True)
    except (CheckpointVersionError, CodecError) as error:
        await gear.store.postpone(head.scope, head.run_id, gear.settings.unclean_back_off_max_ms)
        log.error("run_unreadable run=%s error=%s message=%s", head.run_id, error.code, error.message)
        return "unreadable"
    return "over" if hold.state == "lost" else None


def lacks_chat_store(gear: Gear, run: Run) -> bool:
    """The chat of the run is kept where this process does not know: it is another binding (BND-005)."""
    lacks = run.envelope.chat is not None and run.envelope.chat.own_store and gear.chats is None
    if lacks:
        log.warning("step_without_chat_store run=%s", run.envelope.run_id)
    return lacks


async def only_chat_is_due(gear: Gear, head: Head, run: Run, hold: Hold) -> bool:
    """A suspended run was due for its chat alone, and that is done."""
    if run.envelope.chat is None or head.status != "suspended":
        return False
    is_due = head.due_in_ms is not None and head.due_in_ms <= 0
    if not is_due or not head.open_items or head.wake_seq > head.seen_seq or head.is_to_end:
        return False
    projected = await _projected(gear, head, hold, late=True)
    return projected is not None and not projected.due


async def chat_after_leg(gear: Gear, head: Head, before: Run, run: Run, hold: Hold) -> Projected | None:
    """This step brought the run from `before` to its end or to where it waits; None: its chat is as it was, or left due."""
    envelope = run.envelope
    if envelope.chat is None or not (envelope.is_final or envelope.status == "suspended"):
        return None
    if not envelope.is_final and transcript_length(envelope) <= transcript_length(before.envelope):
        return None
    try:
        return await _projected(gear, head, hold, late=head.status in FINAL)
    except (StoreUnavailableError, CodecError) as error:
        log.warning("chat_left_due run=%s error=%s", envelope.run_id, error.code)
        return None


async def _projected(gear: Gear, head: Head, hold: Hold, *, late: bool) -> Projected | None:
    hold.extend(LONGEST_MS + MARGIN_MS, "chat")
    store: RunStore = gear.store
    name = (head.scope, head.run_id)
    return await project(store, gear.chats, name, "due" if late else "leg", lambda: hold.state != "lost")
