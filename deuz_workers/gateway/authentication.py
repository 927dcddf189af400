"""Who a request is from: a bearer token of ours, or whatever the host's own function says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from deuz_workers.app.access_tokens import AccessTokens
from deuz_workers.gateway.principal import Principal
from deuz_workers.gateway.problems import RequestError

Authenticate = Callable[[Request], Awaitable[Principal | None]]
"""None: nobody that is known. What it raises is a 500 and tells nothing."""

_IN_QUERY = ("token", "access_token", "authorization", "api_key")


def bearer_tokens(tokens: AccessTokens) -> Authenticate:
    """By `Authorization: Bearer`. A revoked token is refused from the next request on."""

    async def authenticate(request: Request) -> Principal | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            return None
        found = await tokens.find(given.strip())
        return None if found is None else Principal(found.principal, found.scopes)

    return authenticate


def refuse_tokens_in_query(request: Request) -> None:
    """Addresses end up in logs and histories."""
    if any(name in request.query_params for name in _IN_QUERY):
        raise RequestError(
            "credentials do not belong into an address; send Authorization: Bearer, or take a ticket for a stream",
            400,
            code="token_in_query",
        )


def unauthorized() -> RequestError:
    return RequestError("send Authorization: Bearer with a token that is good", 401, code="unauthorized")
