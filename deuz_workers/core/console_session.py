"""Sessions of people who look at runs with a browser: what their cookie says, and the tokens of the forms they are shown.

A session is a statement and no row: any process that knows the secret reads it. It names the digest of the access token that
somebody signed in with, never the token, and whoever reads it asks the store whether that token is still good. So a revoked
token ends its sessions, and a cookie gives nobody the token.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from deuz_workers.core.seal import Seal

TTL_MS = 12 * 3_600_000
"""A working day; then the token is asked for again."""


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """`token_digest`: of the access token; `nonce`: tells two sessions of one token apart; `expires_at_ms`: Unix time."""

    token_digest: str
    nonce: str
    expires_at_ms: int


class SessionSigner:
    """Makes and checks what cookies say."""

    def __init__(self, secret: str) -> None:
        self._seal = Seal(secret, b"deuz console session", "s1")

    def sign(self, session: ConsoleSession) -> str:
        return self._seal.sign([session.token_digest, session.nonce, session.expires_at_ms])

    def read(self, cookie: object, *, now_ms: int) -> ConsoleSession | None:
        """What a good cookie says, None for any other. Never raises."""
        match self._seal.read(cookie):
            case [str(digest), str(nonce), int(expires_at_ms)] if now_ms < expires_at_ms:
                return ConsoleSession(digest, nonce, expires_at_ms)
            case _:
                return None


class FormSigner:
    """Tokens that a form carries, so that no page of another site can send it for somebody who is signed in.

    A token is bound to a subject: the session, or who the host says somebody is. It is the same as long as that is, so that
    whoever answers after lunch need not load the page again.
    """

    def __init__(self, secret: str) -> None:
        self._key = hmac.new(secret.encode("utf-8", "surrogatepass"), b"deuz console form", hashlib.sha256).digest()

    def token(self, subject: str) -> str:
        return hmac.new(self._key, subject.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def fits(self, token: object, subject: str) -> bool:
        return isinstance(token, str) and hmac.compare_digest(token.encode("utf-8", "replace"), self.token(subject).encode())
