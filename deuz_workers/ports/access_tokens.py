"""Tokens of the gateway as the store keeps them: never the token, only its digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Times are Unix time in milliseconds by the store's clock."""

    token_id: str
    principal: str
    """Who uses it."""
    scopes: tuple[str, ...]
    """What they may touch; `*` is all."""
    created_at_ms: int
    expires_at_ms: int | None
    revoked_at_ms: int | None


@runtime_checkable
class AccessTokenStore(Protocol):
    """Each operation is atomic. What cannot be reached raises `StoreUnavailableError`."""

    async def add_access_token(
        self, token_id: str, principal: str, scopes: Sequence[str], digest: str, expires_in_ms: int | None
    ) -> None:
        """Good from now on. The same again changes nothing."""
        ...

    async def find_access_token(self, digest: str) -> AccessToken | None:
        """The one with that digest, if it is neither revoked nor expired."""
        ...

    async def access_tokens(self) -> tuple[AccessToken, ...]:
        """All, oldest first."""
        ...

    async def revoke_access_token(self, token_id: str) -> bool:
        """It is good no more. False: there is none of that id."""
        ...
