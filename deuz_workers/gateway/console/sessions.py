"""Who looks at the console: somebody who signed in with an access token, or whoever the host says they are."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from deuz_workers.app.access_tokens import AccessTokens, digest_of
from deuz_workers.core.console_session import TTL_MS, ConsoleSession, FormSigner, SessionSigner
from deuz_workers.gateway.authentication import Authenticate
from deuz_workers.gateway.principal import Principal
from deuz_workers.gateway.problems import RequestError
from deuz_workers.ports.runtime import Ids
from deuz_workers.ports.store import RunStore

SESSION, VISIT = "deuz_session", "deuz_visit"
"""Cookies: of somebody who is signed in; of somebody who is about to."""
VISIT_S = 3_600
FIELD = "csrf"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is known. `subject`: what tokens of their forms are bound to."""

    principal: Principal
    subject: str


class Sessions:
    """Nothing of them is kept here: any process with the same secret knows them.

    `host`: says who a request is from, in place of signing in.
    """

    def __init__(self, secret: str, store: RunStore, ids: Ids, host: Authenticate | None) -> None:
        self._store = store
        self._ids = ids
        self._host = host
        self._signer = SessionSigner(secret)
        self._forms = FormSigner(secret)
        self._tokens = None if host is not None else AccessTokens(store, ids)

    @property
    def signs_in(self) -> bool:
        """By itself; else the host does."""
        return self._tokens is not None

    async def visitor(self, request: Request) -> Visitor | None:
        """None: nobody that is known. A token that was revoked or has expired ends the sessions that began with it."""
        if self._tokens is None:
            assert self._host is not None
            principal = await self._host(request)
            return None if principal is None else Visitor(principal, f"host:{principal.name}")
        cookie = request.cookies.get(SESSION)
        if cookie is None:
            return None
        session = self._signer.read(cookie, now_ms=await self._store.now_ms())
        found = None if session is None else await self._tokens.find_digest(session.token_digest)
        if session is None or found is None:
            return None
        return Visitor(Principal(found.principal, found.scopes), f"session:{session.token_digest}:{session.nonce}")

    async def open(self, request: Request, token: str, answer: Response) -> bool:
        """`answer` carries a session of the token's principal; False: the token is not good, and nothing was changed."""
        assert self._tokens is not None
        if await self._tokens.find(token) is None:
            return False
        expires_at_ms = await self._store.now_ms() + TTL_MS
        session = ConsoleSession(digest_of(token), self._ids.token()[:16], expires_at_ms)
        self._set(request, answer, SESSION, self._signer.sign(session), TTL_MS // 1_000)
        return True

    def close(self, request: Request, answer: Response) -> None:
        """The browser forgets the session."""
        self._set(request, answer, SESSION, "", 0)

    # -- forms -------------------------------------------------------------------------------------------------------------

    def form_token(self, subject: str) -> str:
        return self._forms.token(subject)

    def check_form(self, request: Request, token: str | None, subject: str) -> None:
        """Raises `RequestError` for a form that no page of ours showed to this visitor."""
        site = request.headers.get("sec-fetch-site")
        if site not in (None, "same-origin", "none") or not self._forms.fits(token, subject):
            raise RequestError(
                "this form was not shown to you by this page, or you have signed in anew since; load the page again",
                403,
                code="form_refused",
            )

    def visit(self, request: Request) -> str:
        """What the form of somebody who is not signed in yet is bound to; the same until they are."""
        found = request.cookies.get(VISIT, "")
        return found if len(found) == 32 and found.isalnum() else self._ids.token()[:32]

    def keep_visit(self, request: Request, answer: Response, visit: str) -> None:
        self._set(request, answer, VISIT, visit, VISIT_S)

    def _set(self, request: Request, answer: Response, name: str, value: str, seconds: int) -> None:
        answer.set_cookie(
            name,
            value,
            max_age=seconds,
            path=f"{request.scope.get('root_path', '')}/console",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
