"""Chats, and how far runs have come in writing theirs, over SQL; `SqlStore` is this too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from deuz_workers.core.change import MessageRow
from deuz_workers.core.chat import ChatRecord, ChatState, record_body, record_of
from deuz_workers.errors import RevisionConflictError
from deuz_workers.ports.chat import ChatKept
from deuz_workers.store.dialect import Clash, Row

READS = frozenset(("all_messages", "chat_state", "load_chat"))


class SqlChats(Protocol):
    """The part of a SQL store that knows them."""

    async def _fetch(
        self, operation: str, params: Mapping[str, object], connection: Any = None
    ) -> Sequence[Row]: ...  # of the store

    async def load_chat(self, chat_id: str) -> ChatRecord | None:
        rows = await self._fetch("load_chat", {"chat_id": chat_id})
        return record_of(chat_id, rows[0]["scope"], rows[0]["revision"], rows[0]["body"]) if rows else None

    async def save_chat(self, record: ChatRecord) -> int:
        return self._revision_of(await self._fetch("save_chat", _given(record)), record)

    async def write_chat(self, record: ChatRecord, expected: int | None) -> int:
        try:
            rows = await self._fetch("write_chat", {**_given(record), "expected": expected})
        except Clash:  # a second writer of a new chat was faster
            rows = ()
        return self._revision_of(rows, record)

    @staticmethod
    def _revision_of(rows: Sequence[Row], record: ChatRecord) -> int:
        if not rows:
            text = f"chat {record.chat_id!r} was written or deleted by somebody else, or is of another scope; read it again"
            raise RevisionConflictError(text, chat_id=record.chat_id)
        return rows[0]["revision"]

    async def delete_chat(self, chat_id: str, scope: str) -> bool:
        return bool(await self._fetch("delete_chat", {"chat_id": chat_id, "scope": scope}))

    async def chat_state(self, rid: UUID) -> ChatState:
        rows = await self._fetch("chat_state", {"rid": rid})
        return ChatState.from_body(rows[0]["seq"], rows[0]["body"]) if rows else ChatState()

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
        read = {"revision": revision, "open_items": open_items, "wake_seq": wake_seq, "due_in_ms": due_in_ms}
        given = {"rid": rid, "seq": state.seq, "body": state.to_body(), **read}
        rows = await self._fetch("keep_chat_state", given)
        return ChatKept(bool(rows[0]["kept"]), bool(rows[0]["due"])) if rows else ChatKept(kept=False, due=False)

    async def all_messages(self, rid: UUID) -> Sequence[tuple[int, MessageRow]]:
        rows = await self._fetch("all_messages", {"rid": rid})
        return [(row["epoch"], MessageRow(row["seq"], row["body"])) for row in rows]


def _given(record: ChatRecord) -> dict[str, object]:
    return {"chat_id": record.chat_id, "scope": record.scope, "body": record_body(record)}
