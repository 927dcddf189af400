"""Writing a run's chat: after the commit that suspends or ends it, never in one transaction with it (CHT-007).

That commit leaves the run due, and what this module keeps of its outcome takes that back. So a death in between is found by
the sweep. Only the holder of the run's lease comes here; of two that believe they are it, each finds what the other wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

from deuz_workers.core.change import FINAL, Head
from deuz_workers.core.chat import (
    ChatRecord,
    ChatState,
    Occasion,
    RunChat,
    fingerprint,
    ids_of,
    is_owed,
    judge,
    kept_ids,
    texts_of,
)
from deuz_workers.core.codec import decode
from deuz_workers.core.envelope import decode_body
from deuz_workers.core.messages import Message, message_from_record
from deuz_workers.core.receipts import fold_receipts
from deuz_workers.core.run import Run, read_run, resolved
from deuz_workers.core.transcript import transcript_length, whole_transcript
from deuz_workers.engine.user_code import Broken, LimitPassed, outcome_of
from deuz_workers.engine.weight import HEAVY_SIZE, message_size
from deuz_workers.errors import CodecError, DeuzError, RevisionConflictError, StoreError, StoreUnavailableError, as_record
from deuz_workers.ports.chat import ChatStore, is_conditional
from deuz_workers.ports.store import Loaded, RunStore

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_MS = 15_000
"""For one call of a chat store."""
TRIES = 3
"""Of reading a chat and writing it where somebody else writes it too (CHT-017)."""
LONGEST_MS = 2 * TRIES * CALL_MS
"""For all of it."""


@dataclass(frozen=True, slots=True)
class Projected:
    state: ChatState
    due: bool
    """The run has work at once."""


async def project(
    store: RunStore,
    chats: ChatStore | None,
    name: tuple[str, str],
    occasion: Occasion,
    may_write: Callable[[], bool] = lambda: True,
) -> Projected | None:
    """The chat of a run that ended or waits has its transcript, or it is kept why not; None: that was not for this call to do.

    `chats`: of the application, None where it has none. Nothing is raised for what a chat store raises; where it is this very
    `store`, `StoreUnavailableError` is, and the run stays due. Raises `CheckpointVersionError`, `CodecError`.
    """
    loaded = await store.load(*name)
    if loaded is None:
        return None
    head = loaded.head
    run = read_run(head, loaded.messages, loaded.receipts)
    chat, rests = run.envelope.chat, head.status in FINAL or head.status == "suspended" or head.parked is not None
    target = store if chat is None or not chat.own_store else chats
    if chat is None or not rests or target is None:
        return None
    state, length = await store.chat_state(head.rid), transcript_length(run.envelope)
    may_begin = head.parked is None or state.status == "failed"
    if may_begin and is_owed(state, length, occasion):
        told = await _written(target, store, run, await read_transcript(store, loaded, run), state, occasion, may_write)
        if told is None:
            return None
    elif occasion == "asked" and not head.has_work:
        return Projected(state, due=False)
    else:
        told = state
    if told.status not in ("saved", state.status):
        log.warning("chat_not_written run=%s chat=%s status=%s", head.run_id, chat.chat_id, told.status)
    kept = await store.keep_chat_state(
        head.rid,
        told,
        revision=head.revision,
        open_items=head.open_items,
        wake_seq=head.wake_seq,
        due_in_ms=await _due_in_ms(store, loaded, run),
    )
    return Projected(told if kept.kept else await store.chat_state(head.rid), kept.due)


async def read_transcript(store: RunStore, loaded: Loaded, run: Run) -> tuple[Message, ...]:
    """All messages as they were said, from before every rewrite on. `run`: read from `loaded`, which is whole."""
    rewrites = run.envelope.transcript
    if not rewrites:
        return whole_transcript({0: run.transcript}, ())
    receipts = fold_receipts(loaded.receipts)
    epochs: dict[int, list[Message]] = {}
    for epoch, row in await store.all_messages(run.envelope.rid):
        epochs.setdefault(epoch, []).append(resolved(message_from_record(decode(row.body)), receipts))
    unsaved = (tuple(resolved(message, receipts) for message in rewrite.before) for rewrite in rewrites)
    return whole_transcript(
        epochs, [replace(rewrite, before=before) for rewrite, before in zip(rewrites, unsaved, strict=True)]
    )


async def _due_in_ms(store: RunStore, loaded: Loaded, run: Run) -> int | None:
    """When the run is to be looked at next, its chat apart."""
    head, policy = loaded.head, run.envelope.policy
    if head.status in FINAL:
        return 0 if run.has_children or head.phase == "extracting" else None
    if head.wake_seq > head.seen_seq or not head.open_items:
        return 0
    times = [item.expires_in_ms for item in loaded.items if item.answer is None]
    if policy.deadline_ms is not None:
        times.append(policy.deadline_ms - await store.now_ms())
    return min((max(0, in_ms) for in_ms in times if in_ms is not None), default=None)


async def _written(
    chats: ChatStore,
    store: RunStore,
    run: Run,
    messages: tuple[Message, ...],
    state: ChatState,
    occasion: Occasion,
    may_write: Callable[[], bool],
) -> ChatState | None:
    """The state after the attempt; None: the lease is gone, so that another executor has to do it."""
    chat = run.envelope.chat
    assert chat is not None
    is_ours = chats is store
    error: Exception | None = None
    for _ in range(TRIES):
        try:
            stored = await _asked(lambda: chats.load_chat(chat.chat_id), is_ours=is_ours)
            _check(stored)
        except DeuzError as failure:
            return _failed(state, failure, is_ours=is_ours)
        look = _Look(chat, run.envelope.run_id, messages, state, occasion, stored)
        heavy = sum(map(message_size, (*messages, *(stored.messages if stored else ())))) > HEAVY_SIZE
        state, record = await asyncio.to_thread(look.decide) if heavy else look.decide()
        if record is None:
            return state
        if not may_write():
            return None
        try:
            await _asked(partial(_save, chats, record, None if stored is None else stored.revision), is_ours=is_ours)
        except RevisionConflictError as conflict:
            error = conflict
            if not is_conditional(chats):
                break
        except DeuzError as failure:
            return _failed(state, failure, is_ours=is_ours)
        else:
            return state.moved("saved", cursor=len(messages), found=fingerprint(record))
    assert error is not None
    return _failed(state, error)


def _check(stored: object) -> None:
    """Of a store of the application's. Raises `StoreError` for what is neither a record nor None."""
    if stored is None:
        return
    if not isinstance(stored, ChatRecord):
        raise StoreError(f"the chat store gave a {type(stored).__name__} where a ChatRecord was asked for")
    messages, ids = cast("tuple[object, object]", (stored.messages, stored.message_ids))
    if not (_all_of(Message, messages) and _all_of(str, ids) and len(stored.messages) == len(stored.message_ids)):
        raise StoreError("the chat store gave a ChatRecord that is not made of messages with an id each")


def _all_of(kind: type, values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in cast("Sequence[object]", values))


async def _save(chats: ChatStore, record: ChatRecord, expected: int | None) -> None:
    if is_conditional(chats):
        await chats.write_chat(record, expected)
    else:
        await chats.save_chat(record)


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the stored chat, and what follows from it. Long transcripts are compared off the loop."""

    chat: RunChat
    run_id: str
    messages: Sequence[Message]
    state: ChatState
    occasion: Occasion
    stored: ChatRecord | None

    def decide(self) -> tuple[ChatState, ChatRecord | None]:
        """The state as it is by now, and the record that is to be written; without one the attempt has ended."""
        texts, stored, state = texts_of(self.messages), self.stored, self.state
        if state.kept_ids is None:
            state = replace(state, kept_ids=kept_ids(stored, texts, self.chat.scope))
        judgement = judge(stored, texts, self.chat, state, self.occasion)
        if judgement == "keep":
            return state.moved("saved", cursor=len(texts), found=fingerprint(stored)), None
        if judgement != "write":
            return state.moved(judgement), None
        ids = ids_of(self.run_id, len(texts), state.kept_ids or ())
        revision = 0 if stored is None else stored.revision
        record = ChatRecord(self.chat.chat_id, self.chat.scope, tuple(self.messages), ids, revision)
        return replace(state, found=fingerprint(stored)), record


def _failed(state: ChatState, error: Exception, *, is_ours: bool = False) -> ChatState:
    """Raises `error` where the store of the runs itself is away: it is asked again as soon as it is back."""
    if is_ours and isinstance(error, StoreUnavailableError):
        raise error
    return state.moved("failed", error=as_record(error))


async def _asked(call: Callable[[], Awaitable[T]], *, is_ours: bool) -> T:
    """What a chat store returns. Raises `DeuzError`: its own, or one that says nothing of what it raised but the kind."""
    if is_ours:
        return await call()
    try:
        return await outcome_of(call, CALL_MS)
    except LimitPassed:
        raise StoreUnavailableError(f"the chat store did not answer within {CALL_MS} ms") from None
    except Broken as broken:
        if isinstance(broken.error, DeuzError):
            raise broken.error from None
        raise StoreError(f"the chat store failed with a {type(broken.error).__name__}") from None


def chat_of(head: Head) -> RunChat | None:
    """Of a run whose record need not be readable here."""
    if head.version != 2:
        return None
    try:
        given = decode_body(head.body).get("chat")
        return None if given is None else RunChat.from_record(cast("Mapping[str, object]", given))
    except (CodecError, KeyError, TypeError, AttributeError):
        return None
