"""Bearer tokens of the gateway: made once, shown once, stored as a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from deuz_workers.app.names import check_id
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.access_tokens import AccessToken, AccessTokenStore
from deuz_workers.ports.runtime import Ids
from deuz_workers.ports.store import RunStore

PREFIX = "deuz"


@dataclass(frozen=True, slots=True)
class MadeToken:
    """`token` is the only copy there is."""

    token_id: str
    token: str


class AccessTokens:
    """Of one store. Raises `ConfigurationError` for a store of yours that keeps none."""

    def __init__(self, store: RunStore, ids: Ids) -> None:
        if not isinstance(store, AccessTokenStore):
            raise ConfigurationError(
                f"{type(store).__name__} keeps no access tokens; give it the methods of ports.access_tokens"
            )
        self._store: AccessTokenStore = store
        self._ids = ids

    async def create(self, principal: str, scopes: Iterable[str], expires_in: timedelta | None = None) -> MadeToken:
        """Good for `scopes` from now on; `*` is all. Raises `ConfigurationError`, and nothing was written."""
        check_id("a principal", principal)
        chosen = tuple(dict.fromkeys(check_id("a scope", scope) for scope in scopes))
        if not chosen:
            raise ConfigurationError("a token is for some scope; name one, or '*' for all")
        if expires_in is not None and not timedelta(0) < expires_in <= timedelta(days=36_525):
            raise ConfigurationError(f"a token is good for a time ahead, a century at most, not for {expires_in}")
        token_id = self._ids.token()[:12]
        # 256 bits of chance, so that a plain digest is enough: nobody can try them all.
        token = f"{PREFIX}_{token_id}_{self._ids.token()}{self._ids.token()}"
        ms = None if expires_in is None else round(expires_in / timedelta(milliseconds=1))
        await self._store.add_access_token(token_id, principal, chosen, digest_of(token), ms)
        return MadeToken(token_id, token)

    async def find(self, token: str) -> AccessToken | None:
        """The stored record of a token that is good now."""
        return await self.find_digest(digest_of(token)) if token.startswith(f"{PREFIX}_") else None

    async def find_digest(self, digest: str) -> AccessToken | None:
        """The same, of a token that is known by its digest alone."""
        return await self._store.find_access_token(digest)

    async def list(self) -> tuple[AccessToken, ...]:
        """All, oldest first, revoked and expired ones too."""
        return await self._store.access_tokens()

    async def revoke(self, token_id: str) -> bool:
        """It is refused from the next request on. False: there is none of that id."""
        return await self._store.revoke_access_token(token_id)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
