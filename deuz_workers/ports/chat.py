"""Where conversations are kept: chat stores, an application's or ours, and what a store of runs keeps about them.

A run's chat record is made from its transcript and never read back into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard
from uuid import UUID

from deuz_workers.core.change import MessageRow
from deuz_workers.core.chat import ChatRecord, ChatState


class ChatStore(Protocol):
    """Records by chat id. What it raises fails no run: the write is made up for later."""

    async def load_chat(self, chat_id: str) -> ChatRecord | None:
        """The record, whatever its scope; one with `deleted` for a chat that was deleted; None: there never was one."""
        ...

    async def save_chat(self, record: ChatRecord) -> object:
        """The record takes the place of the one that is there, whole; what it returns is not looked at."""
        ...


class ConditionalChatStore(ChatStore, Protocol):
    """One that writes nothing over what its caller has not read."""

    async def write_chat(self, record: ChatRecord, expected: int | None) -> object:
        """Atomic: the record is written if the stored one has the revision `expected`; None: if there is none.

        Raises `RevisionConflictError`, and nothing was written. What it returns is not looked at.
        """
        ...


def is_conditional(store: ChatStore) -> TypeGuard[ConditionalChatStore]:
    return callable(getattr(store, "write_chat", None))


@dataclass(frozen=True, slots=True)
class ChatKept:
    """Outcome of `ChatRows.keep_chat_state`. `kept` False: another one wrote it meanwhile, and nothing was written."""

    kept: bool
    due: bool
    """The run has work at once."""


class ChatRows(Protocol):
    """Part of :class:`~deuz_workers.ports.store.RunStore`, with what is said there about every operation.

    Its `load_chat`, `save_chat` and `write_chat` make it a conditional chat store too: every record has a revision, which each
    write raises by one. A record of another scope is not written over, nor one that was deleted.
    """

    async def load_chat(self, chat_id: str) -> ChatRecord | None:
        """Raises `CodecError` for a record of another build."""
        ...

    async def save_chat(self, record: ChatRecord) -> int:
        """The new revision. Raises `RevisionConflictError` where the chat was deleted or is of another scope."""
        ...

    async def write_chat(self, record: ChatRecord, expected: int | None) -> int:
        """The new revision. Raises `RevisionConflictError`, also where the chat was deleted or is of another scope."""
        ...

    async def delete_chat(self, chat_id: str, scope: str) -> bool:
        """Nothing is left of it but that it was there, so that no run writes it again; False: there is none in the scope."""
        ...

    async def chat_state(self, rid: UUID) -> ChatState:
        """How far the chat of a run has come; the first state where nothing was kept yet."""
        ...

    async def keep_chat_state(
        self,
        rid: UUID,
        state: ChatState,
        *,
        revision: int,
        open_items: int,
        wake_seq: int,
        due_in_ms: int | None,
    ) -> ChatKept:
        """Write the state behind the one with its number, and when the run is due next: nothing more is to be written.

        `due_in_ms` counts only for a run that ended or is suspended and is as it was read: at that revision, with so many open
        items, with no newer input, not parked; otherwise its due time stays. It is never later than the deadline.
        """
        ...

    async def all_messages(self, rid: UUID) -> Sequence[tuple[int, MessageRow]]:
        """Every row of messages with its epoch, in order, also of epochs that a rewrite has ended."""
        ...
