"""Memories over SQL; `SqlStore` is this too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from deuz_workers.core.codec import decode, digest, encode
from deuz_workers.core.memory import MemoryQuery, MemoryRecord, MemoryScope, ranked
from deuz_workers.errors import CodecError, StoreContendedError
from deuz_workers.ports.memory import MemoryStore
from deuz_workers.store.dialect import Clash, Row

MOST_READ = 1_000
"""Memories of a scope that one search looks through, the newest: it ranks them here and needs no index of their words."""
MOST_CLASHES = 5
"""Of one write, with others that write the same words."""


class SqlMemory(MemoryStore, Protocol):
    """The part of a SQL store that knows them."""

    async def _fetch(
        self, operation: str, params: Mapping[str, object], connection: Any = None
    ) -> Sequence[Row]: ...  # of the store

    async def find_memories(self, scope: str, within: MemoryScope, query: MemoryQuery) -> tuple[MemoryRecord, ...]:
        asked = {"scope": scope, **_ids(within), "at_ms": query.now_ms, "limit": MOST_READ}
        return ranked(map(_record_of, await self._fetch("find_memories", asked)), query)

    async def write_memories(self, scope: str, records: Sequence[MemoryRecord]) -> None:
        latest = {(record.scope.key, record.text_digest): record for record in records}
        if latest:
            await self._write(scope, tuple({record.record_id: record for record in latest.values()}.values()))

    async def _write(self, scope: str, records: tuple[MemoryRecord, ...]) -> None:
        """Words that one of them leaves and another one takes are written in two statements."""
        for _ in range(MOST_CLASHES):
            try:
                await self._fetch("write_memories", _rows(scope, records))
            except Clash:
                continue
            return
        if len(records) == 1:
            text = "others wrote the same memory again and again; nothing was written, try again"
            raise StoreContendedError(text, operation="write_memories")
        for record in records:
            await self._write(scope, (record,))

    async def delete_memories(self, scope: str, record_ids: Sequence[str]) -> None:
        if record_ids:
            await self._fetch("delete_memories", {"scope": scope, "record_id": list(record_ids)})

    async def count_memories(self, scope: str, operation_id: str) -> int:
        rows = await self._fetch("count_memories", {"scope": scope, "operation_id": operation_id})
        return int(rows[0]["count"])

    async def delete_expired_memories(self, scope: str, within: MemoryScope, now_ms: int | None = None) -> int:
        rows = await self._fetch("delete_expired_memories", {"scope": scope, **_ids(within), "at_ms": now_ms})
        return int(rows[0]["count"])


def _ids(within: MemoryScope) -> dict[str, object]:
    ids = within.ids
    return {"id_name": list(ids), "id_value": list(ids.values())}


def _rows(scope: str, records: Sequence[MemoryRecord]) -> dict[str, object]:
    ids = [(record.record_id, name, value) for record in records for name, value in record.scope.ids.items()]
    return {
        "scope": scope,
        "record_id": [record.record_id for record in records],
        "within_digest": [digest(record.scope.ids) for record in records],
        "text_digest": [record.text_digest for record in records],
        "operation_id": [record.operation_id for record in records],
        "body": [encode(_body(record)) for record in records],
        "created_at_ms": [record.created_at_ms for record in records],
        "updated_at_ms": [record.updated_at_ms for record in records],
        "expires_at_ms": [record.expires_at_ms for record in records],
        "id_record": [record_id for record_id, _, _ in ids],
        "id_name": [name for _, name, _ in ids],
        "id_value": [value for _, _, value in ids],
    }


def _body(record: MemoryRecord) -> dict[str, object]:
    body: dict[str, object] = {"text": record.text, "ids": record.scope.to_record(), "metadata": dict(record.metadata)}
    if record.vector is not None:
        body |= {"vector": list(record.vector), "embedded_by": record.embedded_by}
    return body


def _record_of(row: Row) -> MemoryRecord:
    body = decode(row["body"])
    if not isinstance(body, Mapping):
        raise CodecError("what is stored of a memory is no record")
    stored = cast("Mapping[str, Any]", body)
    vector = stored.get("vector")
    return MemoryRecord(
        row["record_id"],
        str(stored["text"]),
        MemoryScope.from_record(stored["ids"]),
        row["created_at_ms"],
        row["updated_at_ms"],
        stored["metadata"],
        row["expires_at_ms"],
        None if vector is None else tuple(float(number) for number in vector),
        stored.get("embedded_by"),
    )
