"""Approval tokens: proof that an approval was given by somebody who was shown the request.

`v1.<payload>.<mac>`, HMAC-SHA256 over the first two segments, both in URL-safe base64 without padding. The key is derived from
the secret for this purpose alone, so that no other signature made with the same secret passes for a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any

from deuz_workers.errors import ConfigurationError

FORMAT = "v1"
PURPOSE = b"deuz approval token"
DENIAL = "Approval token missing, invalid, expired, or bound to another run."
"""What an approval without a good token turns into."""
DEFAULT_TTL_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class ApprovalToken:
    """What a token says."""

    scope: str
    run_id: str
    approval_id: str
    expires_at_s: int
    """Unix time in seconds."""


class ApprovalSigner:
    """Makes and checks tokens."""

    def __init__(self, secret: str, *, ttl_s: int = DEFAULT_TTL_S) -> None:
        """Raises `ConfigurationError` for an empty secret."""
        if not secret:
            raise ConfigurationError("the secret of approval tokens is empty; set approval_secret to 32 characters or more")
        self._key = hmac.new(secret.encode("utf-8", "surrogatepass"), PURPOSE, hashlib.sha256).digest()
        self.ttl_s = ttl_s

    def sign(self, scope: str, run_id: str, approval_id: str, *, now_ms: int) -> str:
        """A token for one request, good for `ttl_s` from `now_ms` (Unix time)."""
        payload = {"scope": scope, "run_id": run_id, "approval_id": approval_id, "exp": now_ms // 1000 + self.ttl_s}
        text = _pack(json.dumps(payload, separators=(",", ":"), sort_keys=True).encode())
        return f"{FORMAT}.{text}.{self._mac(text)}"

    def read(self, token: object, *, now_ms: int | None) -> ApprovalToken | None:
        """What a good token says, None for any other. Never raises. `now_ms` None: expiry is not looked at."""
        try:
            form, text, mac = str(token).split(".")
            if form != FORMAT or not hmac.compare_digest(self._mac(text).encode(), mac.encode()):
                return None
            payload: Any = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            read = ApprovalToken(payload["scope"], payload["run_id"], payload["approval_id"], payload["exp"])
            return read if now_ms is None or now_ms < read.expires_at_s * 1000 else None
        except Exception:  # noqa: BLE001 - whatever it is, it is no token
            return None

    def fits(self, token: object, scope: str, run_id: str, approval_id: str, *, now_ms: int | None) -> bool:
        read = self.read(token, now_ms=now_ms)
        return read is not None and (read.scope, read.run_id, read.approval_id) == (scope, run_id, approval_id)

    def _mac(self, text: str) -> str:
        return _pack(hmac.new(self._key, f"{FORMAT}.{text}".encode(), hashlib.sha256).digest())


def _pack(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
