"""Frames and access tokens over SQL; `SqlStore` is this too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from deuz_workers.ports.access_tokens import AccessToken, AccessTokenStore
from deuz_workers.ports.frames import FrameRow, FrameStore
from deuz_workers.store.dialect import Clash, Row


class SqlGateway(FrameStore, AccessTokenStore, Protocol):
    """The part of a SQL store that knows them."""

    async def _fetch(
        self, operation: str, params: Mapping[str, object], connection: Any = None
    ) -> Sequence[Row]: ...  # of the store

    async def append_frames(self, scope: str, stream_id: str, after: int, bodies: Sequence[str]) -> bool:
        given = {"scope": scope, "stream_id": stream_id, "after": after, "body": list(bodies)}
        try:
            return bool(await self._fetch("append_frames", given))
        except Clash:
            return False  # a second writer was faster

    async def read_frames(self, scope: str, stream_id: str, after: int, limit: int) -> tuple[FrameRow, ...]:
        asked = {"scope": scope, "stream_id": stream_id, "after": after, "limit": limit}
        return tuple(FrameRow(row["seq"], row["body"]) for row in await self._fetch("read_frames", asked))

    async def last_frame(self, scope: str, stream_id: str) -> FrameRow | None:
        rows = await self._fetch("last_frame", {"scope": scope, "stream_id": stream_id})
        return FrameRow(rows[0]["seq"], rows[0]["body"]) if rows else None

    async def delete_frames(self, scope: str, stream_id: str) -> None:
        await self._fetch("delete_frames", {"scope": scope, "stream_id": stream_id})

    async def add_access_token(
        self, token_id: str, principal: str, scopes: Sequence[str], digest: str, expires_in_ms: int | None
    ) -> None:
        given = {
            "token_id": token_id,
            "principal": principal,
            "scopes": list(scopes),
            "digest": digest,
            "expires_in_ms": expires_in_ms,
        }
        await self._fetch("add_access_token", given)

    async def find_access_token(self, digest: str) -> AccessToken | None:
        rows = await self._fetch("find_access_token", {"digest": digest})
        return _token_of(rows[0]) if rows else None

    async def access_tokens(self) -> tuple[AccessToken, ...]:
        return tuple(map(_token_of, await self._fetch("access_tokens", {})))

    async def revoke_access_token(self, token_id: str) -> bool:
        return bool(await self._fetch("revoke_access_token", {"token_id": token_id}))


def _token_of(row: Row) -> AccessToken:
    given = row["scopes"]
    scopes = cast("list[str]", json.loads(given) if isinstance(given, str) else given)
    return AccessToken(
        row["token_id"], row["principal"], tuple(scopes), row["created_at_ms"], row["expires_at_ms"], row["revoked_at_ms"]
    )
